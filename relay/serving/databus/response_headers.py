"""The headers of a response to `/stream`."""

from __future__ import annotations

import json
from collections.abc import Mapping

from databus.relay.ring.event_selector import Position
from databus.relay.serving.databus.multi_source_stream import MultiSourceResponse
from databus.relay.serving.databus.stream import StreamResponse
from databus.schemas.protocol import Header


def response_headers(response: StreamResponse | MultiSourceResponse) -> dict[str, str]:
    """Return the headers of a response that describe its body and the next request."""
    headers = {}
    if response.resume:
        headers[Header.RESUME] = _resume_text(response.resume)
    if response.pending_event_bytes is not None:
        headers[Header.PENDING_EVENT_BYTES] = str(response.pending_event_bytes)
    if response.is_ahead:
        headers[Header.AHEAD] = "true"
    if isinstance(response, StreamResponse) and response.stored is not None:
        headers["Content-Encoding"] = "zstd"
    return headers


def _resume_text(resume: Position | Mapping[str, Position]) -> str:
    if isinstance(resume, Mapping):
        return json.dumps(resume, separators=(",", ":"))
    return f"{resume[0]},{resume[1]}"
