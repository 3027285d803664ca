"""A bootstrap answer's bytes to a page: events of different SCNs, then one checkpoint event.

The reading is `RowReader`'s; only what ends is another thing. A page has no
end-of-period events, for it is no transaction.
"""

from __future__ import annotations

from typing import NamedTuple, NoReturn

from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import ProtocolError
from databus.schemas.event.control import checkpoint_of
from databus.schemas.event.event import Event
from databus.schemas.stream.row_reader import RowEvent, RowReader


class RowPage(NamedTuple):
    """A page as it came.

    `unknown` is as in `RowWindow`. `is_ordered`: no event has a smaller SCN
    than the one before it, as it must be in a catch-up.
    """

    checkpoint: Checkpoint
    events: tuple[RowEvent, ...]
    size_bytes: int  # on the wire, the checkpoint event included
    unknown: frozenset[tuple[int, bytes]]
    is_ordered: bool


class PageReader(RowReader):
    """Cuts a bootstrap answer into its page; otherwise as `RowReader`."""

    def receive(self, chunk: bytes) -> list[RowPage]:  # type: ignore[override]
        """Take the next bytes; return the page that they complete.

        Raises ProtocolError for damage and for other control events, error
        events with their text among them; WindowTooLargeError for a page
        larger than `max_window_bytes`.
        """
        return super().receive(chunk)  # type: ignore[return-value]

    def _look(self, scn: int, src_id: int, digest: bytes) -> None:
        if scn < self._scn and self._events:
            self._is_ordered = False
        super()._look(scn, src_id, digest)

    def _end(self, event: Event, offset: int) -> RowPage:  # type: ignore[override]
        if event.is_eop:
            self._end_window(event.scn, event.timestamp_ns, offset)
        if event.is_error:
            text = event.value.decode("utf-8", "replace")
            raise ProtocolError(f"the server sent error event {event.src_id}: {text}", offset)
        if not event.is_checkpoint:
            raise ProtocolError(f"an event of src_id {event.src_id} in a page", offset)
        ended = RowPage(
            checkpoint_of(event),
            tuple(self._events),
            self._window_bytes,
            self._unknown,
            self._is_ordered,
        )
        self._begin_window()
        return ended

    def _take_ddl(self, event: Event, offset: int) -> NoReturn:
        raise ProtocolError(f"an event of src_id {event.src_id} in a page", offset)

    def _end_window(self, scn: int, timestamp_ns: int, offset: int) -> NoReturn:  # noqa: ARG002
        raise ProtocolError(f"the end of window {scn} in a page", offset)

    def _begin_window(self) -> None:
        super()._begin_window()
        self._is_ordered = True
