"""Read whole windows from LinkedIn's relays.

Such a relay knows sources by id alone, holds no request open, and does not say where in a
window an answer ends: it counts the events that it left out, too. So the incomplete window at
the end of an answer is requested again, with more room if it is the only one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from databus.client.responses import read_stream_headers
from databus.client.spark.planning.requests import filters_text, online_at
from databus.client.spark.planning.server_pool import MAX_ANSWER_BYTES, Answer, ServerPool
from databus.client.spark.planning.window_ends import WindowEnd, WindowEnds, window_ends
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import CheckpointError, ProtocolError, ServerError
from databus.schemas.filters import EventFilter
from databus.schemas.protocol import Parameter


class StockPage(NamedTuple):
    """The whole windows of an answer. `answer.body` may have more events after them."""

    answer: Answer
    windows: Sequence[WindowEnd]


class StockStream:
    """Requests to `/stream` of LinkedIn's relays."""

    def __init__(
        self,
        relays: ServerPool,
        src_ids: Mapping[str, int],
        filters: Mapping[str, EventFilter],
        fetch_bytes: int,
    ) -> None:
        """Read these sources; `filters` may have other ones, too."""
        self._relays = relays
        self._size_bytes = fetch_bytes
        self._parameters = {
            Parameter.SOURCES: ",".join(map(str, src_ids.values())),
            Parameter.OUTPUT: "binary",
            Parameter.EVENT_VERSION: "2",
        }
        ours = {name: wanted for name, wanted in filters.items() if name in src_ids}
        text = filters_text(ours, src_ids)
        if text is not None:
            self._parameters[Parameter.FILTERS] = text

    def after(self, scn: int) -> StockPage:
        """Return the next windows after `scn` (-1: the oldest ones), none if there is no newer one.

        Raises ScnNotFoundError; ServerError for bytes that are not windows in order;
        CheckpointError if the relay turns out to be one of this project.
        """
        checkpoint = Checkpoint.flexible() if scn < 0 else online_at(scn)
        while True:
            answer, found = self._ask(checkpoint, scn, {})
            if found.whole or not answer.body:
                return StockPage(answer, found.whole)
            self._grow(2 * self._size_bytes, answer.server, f"window {found.pending_scn}")

    def newest(self) -> tuple[int, int] | None:
        """Return SCN and time (ns; 0 = unknown) of the newest window; None if there is none."""
        # Such a relay sends the newest window again.
        answer, found = self._ask(Checkpoint.flexible(), -1, {Parameter.FROM_LATEST: "true"})
        if found.whole:
            return found.whole[-1].scn, found.whole[-1].time_ns
        if found.pending_scn is not None:
            return found.pending_scn, 0
        if answer.body:
            raise ServerError(answer.server, "the newest window has neither rows nor an end")
        return None

    def _ask(
        self, checkpoint: Checkpoint, scn: int, more: Mapping[str, str]
    ) -> tuple[Answer, WindowEnds]:
        while True:
            parameters = {
                **self._parameters,
                **more,
                Parameter.CHECKPOINT: checkpoint.to_json(),
                Parameter.SIZE: str(self._size_bytes),
            }
            answer = self._relays.get("/stream", parameters, scn)
            headers = read_stream_headers(answer.server, answer.headers)
            if headers.resume is not None:
                raise CheckpointError(
                    f"{answer.server} is a relay of this project, but the query reads a LinkedIn "
                    "relay: their SCNs are not the same; start the query with another "
                    "checkpoint folder"
                )
            if headers.pending_event_bytes is None or answer.body:
                return answer, _read(answer, scn)
            self._grow(headers.pending_event_bytes, answer.server, f"an event after scn {scn}")

    def _grow(self, size_bytes: int, server: str, what: str) -> None:
        if self._size_bytes >= MAX_ANSWER_BYTES or size_bytes <= self._size_bytes:
            raise ServerError(
                server, f"{what} does not come in an answer of {self._size_bytes} bytes"
            )
        self._size_bytes = min(size_bytes, MAX_ANSWER_BYTES)


def _read(answer: Answer, after_scn: int) -> WindowEnds:
    try:
        return window_ends(answer.body, after_scn)
    except ProtocolError as error:
        raise ServerError(answer.server, f"bad bytes in /stream: {error}") from error
