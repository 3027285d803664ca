"""Reads the page of a bootstrap answer: events of different SCNs, then one checkpoint event.

Rows are collected as in `RowReader`; only the end differs. A page has no end-of-period events,
because it is not a transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import ProtocolError
from databus.schemas.event.control import checkpoint_of
from databus.schemas.event.event import Event
from databus.schemas.stream.row_event import RowEvent, sealed
from databus.schemas.stream.row_reader import RowCollector


class RowPage(NamedTuple):
    """A received page.

    `unknown` is as in `RowWindow`. `is_ordered`: no event has a smaller SCN than the one before
    it, which is required in a catch-up.
    """

    checkpoint: Checkpoint
    events: Sequence[RowEvent]  # a tuple, or PackedRows
    size_bytes: int  # on the wire, the checkpoint event included
    unknown: frozenset[tuple[int, bytes]]
    is_ordered: bool


class PageReader:
    """Cuts a bootstrap answer into its page."""

    has_windows = False

    def __init__(self, max_window_bytes: int) -> None:
        self._rows: RowCollector[RowPage] = RowCollector(max_window_bytes, self)

    @property
    def known(self) -> frozenset[tuple[int, bytes]]:
        """The (src_id, digest) pairs that rows may have."""
        return self._rows.known

    @known.setter
    def known(self, known: frozenset[tuple[int, bytes]]) -> None:
        self._rows.known = known

    @property
    def pending_events(self) -> int:
        """Number of events of the incomplete page."""
        return self._rows.pending_events

    def receive(self, chunk: bytes) -> list[RowPage]:
        """Take the next bytes; return the page that they complete.

        Raises ProtocolError for damage and for other control events, error
        events with their text among them; WindowTooLargeError for a page
        larger than `max_window_bytes`.
        """
        return self._rows.receive(chunk)

    def reset(self) -> None:
        """Drop the incomplete event and the collected rows."""
        self._rows.reset()

    def close(self) -> None:
        """End the response; raises ProtocolError inside an event."""
        self._rows.close()

    def end_window(self, scn: int, timestamp_ns: int, offset: int) -> NoReturn:  # noqa: ARG002
        """Refuse the end of a window."""
        raise ProtocolError(f"the end of window {scn} in a page", offset)

    def end(self, event: Event, offset: int) -> RowPage:
        """Return the page that a checkpoint event ends; refuse all other control events."""
        if event.is_error:
            text = event.value.decode("utf-8", "replace")
            raise ProtocolError(f"the server sent error event {event.src_id}: {text}", offset)
        if not event.is_checkpoint:
            raise ProtocolError(f"an event of src_id {event.src_id} in a page", offset)
        rows = self._rows
        page = RowPage(
            checkpoint_of(event),
            sealed(rows.events),
            rows.framer.window_bytes,
            rows.unknown,
            rows.is_ordered,
        )
        rows.begin()
        return page

    def take_statement(self, event: Event, offset: int) -> NoReturn:
        """Refuse a statement."""
        raise ProtocolError(f"an event of src_id {event.src_id} in a page", offset)
