"""The headers of a response to `/stream`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from urllib.parse import quote

from databus.relay.relay import Relay
from databus.relay.ring.event_selector import WINDOW_DONE, Position
from databus.relay.serving.databus.parameters import StreamRequest
from databus.relay.serving.reading.marks import (
    ends_with_rows,
    log_window_up_to,
    mark_up_to,
    names_to_tell,
)
from databus.relay.serving.reading.multi_source_stream import MultiSourceResponse
from databus.relay.serving.reading.stream import StreamResponse
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


def mark_header(
    response: StreamResponse | MultiSourceResponse, request: StreamRequest, relay: Relay
) -> dict[str, str]:
    """Return mark and log window for a consumer whose last window has no rows: those are a mark.

    None are sent for several physical sources, nor with events in another form: the search costs
    more than a small answer, and only clients of this project keep it.
    """
    selection, *others = request.selections
    if others or not isinstance(response, StreamResponse) or response.is_ahead:
        return {}
    scn, offset = response.resume or (-1, 0)
    is_whole = scn >= 0 and offset == WINDOW_DONE and response.stored is None
    if not is_whole or not request.form.is_version_2_binary or ends_with_rows(response.body):
        return {}
    reader = relay.physical_source(selection.physical_source).reader
    mark = mark_up_to(reader, scn, selection.src_ids)
    headers = {} if mark is None else {Header.MARK: f"{mark[0]},{mark[1]}"}
    names, are_all = names_to_tell(relay, selection), selection.readable is None
    window = log_window_up_to(reader, scn, names, are_all=are_all)
    if window is None:
        return headers
    scn, ts_ns, source = window
    return headers | {Header.LOG_WINDOW: f"{scn},{ts_ns},{quote(source)}"}


def _resume_text(resume: Position | Mapping[str, Position]) -> str:
    if isinstance(resume, Mapping):
        return json.dumps(resume, separators=(",", ":"))
    return f"{resume[0]},{resume[1]}"
