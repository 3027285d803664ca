"""The rows of each table in what a ring gets, counted once a second behind the writer.

The data path has no part in it: the events' headers are read where consumers read them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from databus.relay.monitoring.history import RateCounter
from databus.relay.ring.reader import RingReader
from databus.schemas.errors import DatabusError, ProtocolError
from databus.schemas.event.layout import V2, struct_of
from databus.schemas.event.v2 import SMALLEST_BYTES

# By source: rows, bytes, commit time of the newest row in ns.
Found = dict[int, tuple[int, int, int]]

if TYPE_CHECKING:
    from collections.abc import Callable

compiled_tally: Callable[[bytes, Found], int] | None
try:
    from databus.relay.ring import _core as ring_core
except ImportError:  # not built: Python reads every event
    compiled_tally = None
else:
    compiled_tally = ring_core.tally_rows

_PIECE_BYTES = 1 << 20
_MOST_BYTES = 32 << 20  # a second; what is more is counted in the next ones
_EVENT = struct_of(V2.length, V2.timestamp_ns, V2.src_id)


def tally_in_python(data: bytes, found: Found) -> int:
    """Add the rows of whole events to `found`; return where the last whole event ends.

    An event that empties a table counts as a row, because it is sent as one. Raises ProtocolError.
    """
    at = 0
    while at + SMALLEST_BYTES <= len(data):
        length, newest_ns, src_id = _EVENT.unpack_from(data, at)
        if length < SMALLEST_BYTES:
            raise ProtocolError("no event begins here", at)
        if at + length > len(data):
            break
        if src_id >= 0:
            rows, size_bytes, _ = found.get(src_id, (0, 0, 0))
            found[src_id] = (rows + 1, size_bytes + length, newest_ns)
        at += length
    return at


tally_rows = compiled_tally or tally_in_python


class TableCount:
    """Totals of one table since the relay's start."""

    __slots__ = ("_rates", "_sizes", "newest_ns", "rows", "size_bytes")

    def __init__(self) -> None:
        self.rows = self.size_bytes = self.newest_ns = 0
        self._rates, self._sizes = RateCounter(), RateCounter()

    def tick(self, now_s: float) -> None:
        """Remember the totals of this second."""
        self._rates.tick(now_s, self.rows)
        self._sizes.tick(now_s, self.size_bytes)

    def rates(self, now_s: float) -> tuple[float, float]:
        """Return rows and bytes per second, over the last few seconds."""
        return self._rates.rate(now_s, self.rows), self._sizes.rate(now_s, self.size_bytes)


class TableCounts:
    """Counts the rows of one ring by source. On the loop's thread."""

    def __init__(self, reader: RingReader, src_ids: Iterable[int]) -> None:
        self.reader = reader
        self._position = reader.tail
        self._ring_id = reader.ring_id
        self.missed_bytes = 0  # were overwritten, or damaged, before they could be counted
        self.by_source = {src_id: TableCount() for src_id in src_ids}

    def tick(self, now_s: float) -> None:
        """Count, and remember the totals for the rates; once a second."""
        for count in self.by_source.values():
            count.tick(now_s)
        self.count()

    def count(self) -> None:
        """Count what was appended since the last call."""
        if self.reader.ring_id != self._ring_id or self._position > self.reader.tail:
            self._ring_id, self._position = self.reader.ring_id, self.reader.head  # emptied
        found: Found = {}
        until = min(self.reader.tail, self._position + _MOST_BYTES)
        while self._position < until and self._count_piece(found):
            pass
        for src_id, (rows, size_bytes, newest_ns) in found.items():
            count = self.by_source.setdefault(src_id, TableCount())
            count.rows += rows
            count.size_bytes += size_bytes
            count.newest_ns = newest_ns

    def _count_piece(self, found: Found) -> bool:
        """Count a piece; return whether to go on."""
        size_bytes = _PIECE_BYTES
        try:
            while True:
                data = self.reader.read(self._position, size_bytes)
                used = tally_rows(data, found)
                if used or len(data) < size_bytes:
                    break
                size_bytes *= 2  # one event is larger than the piece
        except DatabusError:
            # Overtaken, or damaged: what can still be read begins at the next second's end.
            self.missed_bytes += self.reader.tail - self._position
            self._position = self.reader.tail
            return False
        self._position += used
        return used > 0
