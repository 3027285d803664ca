"""How the events of a frame are compressed: well, or fast while the log is behind its ring.

zstd at its fastest ordinary level compresses a few hundred MB/s on one core. A ring takes more
than that in a burst. The log may not hold it up then, so frames are stored: they are zstd's as
well, but their blocks are raw. Where the disk is what is slow, that would make it slower still.
So the times of both are measured, and the way that is faster in all is taken.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from zstandard import ZstdCompressor

LEVEL = 1  # of zstd: the fastest ordinary one; higher ones save little on events
STORED_LEVEL = -(1 << 17)  # the least that zstd knows: nothing is searched for, blocks are raw
_NEW = 0.2  # weight of a new measurement
_DISK_S = 1e-9  # for each byte, before anything is measured: 1 GB/s
_MEASURED_BYTES = 4 << 20  # less is synced in a time that says nothing of the disk's speed


class _Way:
    """One level, and what it costs: seconds and bytes on disk, for each byte of events."""

    def __init__(self, level: int, cost_s: float, ratio: float) -> None:
        self._compressor = ZstdCompressor(level=level, write_checksum=True)
        self._cost_s, self._ratio = cost_s, ratio

    def compress(self, data: bytes, clock_s: Callable[[], float]) -> bytes:
        began_s = clock_s()
        stored = self._compressor.compress(data)
        self._cost_s += _NEW * ((clock_s() - began_s) / len(data) - self._cost_s)
        self._ratio += _NEW * (len(stored) / len(data) - self._ratio)
        return stored

    def cost_s(self, disk_s: float) -> float:
        """Return the seconds for each byte of events, given those for each byte on disk.

        The disk writes one step while the next one is compressed.
        """
        return max(self._cost_s, self._ratio * disk_s)


class FrameCompressor:
    """Compresses frames one after the other. On one thread."""

    def __init__(self, clock_s: Callable[[], float] = time.perf_counter) -> None:
        # Before anything is measured: 500 MB/s and a third; 5 GB/s and nothing.
        self._well = _Way(LEVEL, 2e-9, 0.33)
        self._fast = _Way(STORED_LEVEL, 0.2e-9, 1.0)
        self._disk_s = _DISK_S
        self._clock_s = clock_s

    def compress(self, data: bytes, *, is_behind: bool) -> bytes:
        """Return one frame of zstd, with its checksum; `is_behind` says that time is short."""
        is_fast = is_behind and self._fast.cost_s(self._disk_s) < self._well.cost_s(self._disk_s)
        return (self._fast if is_fast else self._well).compress(data, self._clock_s)

    def note_written(self, size_bytes: int, seconds: float) -> None:
        """Take over how long a sync of so many bytes took.

        While there are few, what was measured before is forgotten: a disk may be faster again.
        """
        measured_s = seconds / size_bytes if size_bytes >= _MEASURED_BYTES else _DISK_S
        self._disk_s += _NEW * (measured_s - self._disk_s)
