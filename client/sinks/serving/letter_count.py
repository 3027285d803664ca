"""How many dead letters a sink has, as its file says."""

from __future__ import annotations

from pathlib import Path

from databus.client.sinks.running.dead_letters import lines_of
from databus.schemas.errors import CheckpointError


class LetterCount:
    """Counts the letters of a sink; a file that has not changed is not read again."""

    def __init__(self, path: Path | None, sink: str) -> None:
        self._path, self._sink = path, sink
        self._seen: tuple[int, int] | None = None
        self._count: int | None = 0

    def now(self) -> int | None:
        """Return how many there are; None if the file cannot be read."""
        if self._path is None:
            return 0
        try:
            found = self._path.stat()
        except FileNotFoundError:
            self._seen = None
            return 0
        except OSError:
            return None
        seen = found.st_mtime_ns, found.st_size
        if seen != self._seen:
            self._seen, self._count = seen, self._counted(self._path)
        return self._count

    def _counted(self, path: Path) -> int | None:
        try:
            return sum(1 for line in lines_of(path, self._sink) if not line.is_note)
        except CheckpointError:
            return None
