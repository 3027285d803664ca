"""Finds out which sources have rows in the windows that were appended lately.

A commit wakes only the requests that it concerns, so the work for it must not grow with those
that wait for other tables.
"""

from __future__ import annotations

from databus.relay.ring.reader import RingReader
from databus.schemas.errors import DatabusError
from databus.schemas.event.event import EOP_SRC_ID
from databus.schemas.event.layout import V2, struct_of

MOST_BYTES = 64 << 10  # more are a bulk load, which is not looked through
_EVENT = struct_of(V2.length, V2.src_id)


class AppendedSources:
    """Reads the sources of a ring's new events. On the event loop's thread only."""

    def __init__(self, reader: RingReader) -> None:
        self._reader = reader
        self._seen = reader.tail

    def begin(self) -> None:
        """Skip what has been appended so far."""
        self._seen = self._reader.tail

    def take(self) -> frozenset[int] | None:
        """Return the ids of sources with rows since the last call; None if it may be any."""
        position, self._seen = self._seen, self._reader.tail
        size_bytes = self._seen - position
        if not 0 <= size_bytes <= MOST_BYTES:
            return None
        try:
            return _src_ids(self._reader.read(position, size_bytes), size_bytes)
        except DatabusError:
            return None


def _src_ids(data: bytes, size_bytes: int) -> frozenset[int] | None:
    found, at = set(), 0
    while at + _EVENT.size <= len(data):
        length, src_id = _EVENT.unpack_from(data, at)
        # A statement is for the consumers of all tables.
        if length < _EVENT.size or (src_id < 0 and src_id != EOP_SRC_ID):
            return None
        if src_id >= 0:
            found.add(src_id)
        at += length
    return frozenset(found) if at == size_bytes else None
