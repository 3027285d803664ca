"""The checksum over all rows of a schema store, kept up to date while rows are added.

It is the CRC-32 of `repr` of one tuple of all rows, in order. A row that is added behind the
others, as the next version of a source usually is, costs only its own bytes; one in the middle
also those of the rows behind it. Computing it anew reads and encodes every row, which made
each DDL statement cost as much as all that were before.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from zlib import crc32

Key = tuple[int, str, int]  # what the rows are ordered by


class Seal:
    """The checksum over rows that are added in any order."""

    def __init__(self, rows: Iterable[tuple[Key, Sequence[object]]] = ()) -> None:
        """Begin with rows and their keys, in order."""
        pairs = list(rows)
        self._keys = [key for key, _ in pairs]
        self._pieces = [_piece(row) for _, row in pairs]
        self._running: list[int] = []  # the CRC up to and including each piece

    def add(self, key: Key, row: Sequence[object]) -> None:
        """Add a row."""
        at = bisect_left(self._keys, key)
        self._keys.insert(at, key)
        self._pieces.insert(at, _piece(row))
        del self._running[at:]

    @property
    def value(self) -> int:
        """The checksum."""
        for number in range(len(self._running), len(self._pieces)):
            before = self._running[-1] if number else crc32(b"(")
            self._running.append(
                crc32(self._pieces[number], crc32(b", " if number else b"", before))
            )
        # A tuple of one has a comma.
        end = b",)" if len(self._pieces) == 1 else b")"
        return crc32(end, self._running[-1] if self._running else crc32(b"("))


def _piece(row: Sequence[object]) -> bytes:
    return repr(tuple(row)).encode("utf-8", "surrogatepass")
