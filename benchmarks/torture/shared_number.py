"""A number shared between processes: eight bytes of a mapped file, one writer.

It outlives a `kill -9` of its writer, and readers do not block anybody.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

_NUMBER = struct.Struct("<q")


class SharedNumber:
    """One number, 0 at first; a context manager."""

    def __init__(self, path: Path) -> None:
        with path.open("a+b") as file:
            if file.seek(0, 2) < _NUMBER.size:
                file.truncate(_NUMBER.size)
            self._map = mmap.mmap(file.fileno(), _NUMBER.size)

    def get(self) -> int:
        """Return the number."""
        number: int = _NUMBER.unpack(self._map[:])[0]
        return number

    def set(self, number: int) -> None:
        """Change the number, in one store of eight bytes."""
        self._map[:] = _NUMBER.pack(number)

    def close(self) -> None:
        """Let go of the file; once, at the end."""
        self._map.close()

    def __enter__(self) -> SharedNumber:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
