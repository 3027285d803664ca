"""Copies of rings' bytes that several readers at the same place share.

A copy is kept if its range was copied before: more readers follow at that place. It has passed
the check that it was not overwritten meanwhile. Nothing is kept of what one reader reads.

The bytes of a range change when they are overwritten, which each reader still finds out from
head; when another writer opens the ring, which raises its generation; and when they are
damaged. So the generation, and how often the check was told to distrust bytes, are part of
what a copy is kept by.

Pages of the ring itself are never given to a socket: bytes may be overwritten while they are
sent, and cannot be taken back.
"""

from __future__ import annotations

from threading import Lock
from typing import NamedTuple

from databus.relay.ring.layout import GENERATION, HEAD, RingFile

LEAST_BYTES = 16 << 10  # less is copied as fast as it is found
MOST_BYTES = 8 << 20  # of all copies that are kept
_REMEMBERED = 64  # ranges that were copied lately


class Range(NamedTuple):
    """Bytes of a ring: since when they are valid, their logical position and their number."""

    ring_file: RingFile
    generation: int
    doubts: int
    position: int
    length: int


class SharedCopies:
    """The newest copies that were made more than once, of any number of rings. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: dict[Range, bytes] = {}  # the oldest first
        self._kept_bytes = 0
        self._copied: dict[Range, None] = {}  # the oldest first

    @property
    def kept_bytes(self) -> int:
        """Number of bytes that are kept."""
        return self._kept_bytes

    def read(self, wanted: Range) -> bytes | None:
        """Return the bytes of a range; None if the writer has overtaken the reader."""
        data = self._kept.get(wanted)
        cells = wanted.ring_file.cells
        is_kept = data is not None and cells[GENERATION] == wanted.generation
        if data is None or not is_kept:
            data = wanted.ring_file.copy_out(wanted.position, wanted.length)
        # After the copy: the writer moves head before it overwrites.
        if cells[HEAD] > wanted.position:
            return None
        is_worth_it = not is_kept and LEAST_BYTES <= wanted.length <= MOST_BYTES
        if is_worth_it and cells[GENERATION] == wanted.generation:
            self._offer(wanted, data)
        return data

    def _offer(self, wanted: Range, data: bytes) -> None:
        """Keep a copy if its range was copied before, in the place of the oldest ones."""
        with self._lock:
            if wanted not in self._copied:
                self._copied[wanted] = None
                if len(self._copied) > _REMEMBERED:
                    del self._copied[next(iter(self._copied))]
            elif wanted not in self._kept:
                self._kept[wanted] = data
                self._kept_bytes += len(data)
                while self._kept_bytes > MOST_BYTES:
                    self._kept_bytes -= len(self._kept.pop(next(iter(self._kept))))
