"""Which entries of a physical source a consumer gets. Pure.

The rows that its filter rejects are left out, and a transaction of which nothing is left, with its
begin and its end. What was sent before a rollback, of a transaction that was not acknowledged to
its end, is not sent again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from databus.relay.ring.event_selector import WINDOW_DONE, Position
from databus.relay.serving.canal.consuming.batches import NOT_INSIDE, Inside, Place
from databus.relay.serving.canal.entries import Entry, Kind
from databus.relay.serving.canal.protocol.filters import TableFilter


class Item(NamedTuple):
    """An entry to send. Only the place after the last entry of a batch is asked for."""

    data: bytes
    size_bytes: int
    kind: Kind
    source: str
    base: Place
    inside: tuple[int, int, int] | None
    """As `Inside`, in the window after `base`; None = `base` is the place after the entry."""

    @property
    def place(self) -> Place:
        """The place of its physical source after it."""
        return _place(self.base, self.inside)


class Passing:
    """Selects the entries of one physical source, in order, from a place on.

    Its loop runs for each entry, and makes no call that can be spared.
    """

    def __init__(self, source: str, tables: TableFilter, place: Place) -> None:
        self._base: Place = place
        self._inside: tuple[int, int, int] | None = None  # as in an item
        self._source, self._tables = source, tables
        self._last: tuple[int, int, int] = NOT_INSIDE
        # An entry that is not sent, and no row of it yet.
        self._begin: tuple[Entry, tuple[int, int, int]] | None = None
        self._is_begun = self._has_rows = False

    @property
    def place(self) -> Place:
        """How far it has come, with what was left out."""
        return _place(self._base, self._inside)

    def take(self, entries: Iterable[Entry]) -> list[Item]:
        """Return those of the next entries that are to be sent."""
        found: list[Item] = []
        for entry in entries:
            _, _, kind, tables, scn, offset = entry
            last_scn, last_offset, nth = self._last
            at = (scn, offset, nth + 1 if scn == last_scn and offset == last_offset else 1)
            self._last = at
            if kind is Kind.BEGIN:
                self._has_rows = False
                self._is_begun = self._has(at)
                self._begin = None if self._is_begun else (entry, at)
            elif kind is Kind.END:
                if self._is_begun:
                    self._send(entry, at, found)
            elif not tables or any(map(self._tables.passes, tables)):
                self._has_rows |= kind is Kind.ROWS
                if self._begin is not None:
                    begin, self._begin, self._is_begun = self._begin, None, True
                    self._send(*begin, found)
                if offset == WINDOW_DONE or not self._has(at):
                    self._send(entry, at, found)
            else:
                self._has_rows |= kind is Kind.ROWS
            if offset == WINDOW_DONE:
                if self._inside is not None or self._base.settled != (scn, WINDOW_DONE):
                    self._settle(scn)
                self._begin, self._is_begun, self._has_rows = None, False, False
        return found

    def reach(self, place: Position) -> None:
        """Note that everything up to a place was taken, if that is the end of a window."""
        scn, offset = place
        if offset == WINDOW_DONE and scn >= 0 and self._base.settled != place:
            self._base, self._inside = self.place.after_window(scn), None

    def _has(self, at: tuple[int, int, int]) -> bool:
        """Return whether an entry was sent."""
        inside = self._inside or self._base.inside
        return at[0] == inside[0] and at <= inside

    def _settle(self, scn: int) -> None:
        self._base = self._base.after_window(scn, has_rows=self._has_rows)
        self._inside = None

    def _send(self, entry: Entry, at: tuple[int, int, int], found: list[Item]) -> None:
        if entry.offset == WINDOW_DONE:
            self._settle(entry.scn)
        else:
            self._inside = at
        found.append(
            Item(entry.data, entry.size_bytes, entry.kind, self._source, self._base, self._inside)
        )


def _place(base: Place, inside: tuple[int, int, int] | None) -> Place:
    return base if inside is None else base._replace(inside=Inside(*inside))
