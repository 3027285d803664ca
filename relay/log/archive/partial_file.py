"""A file of which only some bytes are here; the others are holes."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from databus.daemon.files import PRIVATE, OpenFile


class PartialFile(OpenFile):
    """A file in which bytes are put as they are needed. Thread-safe.

    It stays readable after it was deleted, as long as anybody holds this.
    """

    def __init__(self, fd: int, size_bytes: int) -> None:
        """Take over the descriptor of a file that is one hole."""
        super().__init__(fd)
        self._size_bytes = size_bytes
        self._here: list[tuple[int, int]] = []  # begin and end, sorted; none touches the next one
        self._lock = threading.Lock()

    @classmethod
    def make(cls, path: Path, size_bytes: int) -> PartialFile:
        """Make a file that is one hole; raise OSError."""
        made = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE)
        file = cls(made, size_bytes)
        os.ftruncate(file.fd, size_bytes)
        return file

    @property
    def held_bytes(self) -> int:
        """How many bytes are here."""
        with self._lock:
            return sum(end - begin for begin, end in self._here)

    def gap(self, begin: int, end: int) -> tuple[int, int] | None:
        """Return begin and end of the first hole that some of these bytes are in; None without."""
        with self._lock:
            for low, high in self._here:
                if low > begin:
                    return (begin, low) if begin < end else None
                begin = max(begin, high)
        return (begin, self._size_bytes) if begin < end else None

    def before(self, at: int) -> int:
        """Return how many bytes without a hole end at an offset."""
        with self._lock:
            return next((high - low for low, high in self._here if high == at), 0)

    def write(self, at: int, data: bytes) -> None:
        """Put bytes at an offset; raise OSError."""
        view, begin, end = memoryview(data), at, at + len(data)
        while view:
            count = os.pwrite(self.fd, view, at)
            view, at = view[count:], at + count
        with self._lock:
            touched = [one for one in self._here if one[0] <= end and begin <= one[1]]
            apart = [one for one in self._here if one not in touched]
            lows, highs = zip((begin, end), *touched, strict=True)
            self._here = sorted([*apart, (min(lows), max(highs))])
