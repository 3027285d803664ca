"""One page of memory that the capturing process and its serving processes share.

All are cells of 8 bytes, written with one aligned store, as those of a ring:

    0          heartbeat of the capturing process, in ns of the monotonic clock
    1 + p      revision of the state of physical source p, in the order of the settings; it grows
               before a window that depends on the change can be read
    then       heartbeat of each serving process

The monotonic clock is the machine's, so one process can tell the age of another one's heartbeat. A
heartbeat is 0 before the first one.
"""

from __future__ import annotations

import mmap
import os
from threading import Lock

PAGE_BYTES = 4096
FROZEN_S = 5.0  # without a heartbeat, a process is taken for frozen


def make_page() -> int:
    """Return the descriptor of a new page, to be given to other processes."""
    fd = os.memfd_create("databus-serving")
    os.ftruncate(fd, PAGE_BYTES)
    return fd


class SharedPage:
    """The page, mapped into this process."""

    def __init__(self, fd: int, physical_sources: int) -> None:
        self._mapping = mmap.mmap(fd, PAGE_BYTES)
        self._bytes = memoryview(self._mapping)
        self._cells = self._bytes.cast("Q")
        self._lock = Lock()
        self._first_child = 1 + physical_sources

    def close(self) -> None:
        """Unmap the page."""
        self._cells.release()
        self._bytes.release()
        self._mapping.close()

    def revision(self, source: int) -> int:
        """Return the revision of a physical source's state."""
        found: int = self._cells[1 + source]
        return found

    def change(self, source: int) -> int:
        """Count a change of a physical source's state; return its revision. Thread-safe."""
        with self._lock:
            revision = self.revision(source) + 1
            self._cells[1 + source] = revision
        return revision

    def beat(self, now_ns: int) -> None:
        """Store a heartbeat of the capturing process."""
        self._cells[0] = now_ns

    @property
    def beat_ns(self) -> int:
        """The last heartbeat of the capturing process."""
        found: int = self._cells[0]
        return found

    def child_beat(self, number: int, now_ns: int) -> None:
        """Store a heartbeat of a serving process; 0 for one that is to begin."""
        self._cells[self._first_child + number] = now_ns

    def child_beat_ns(self, number: int) -> int:
        """Return the last heartbeat of a serving process."""
        found: int = self._cells[self._first_child + number]
        return found
