"""Delete the oldest segments of a log: by the size of all of them, and by their age.

What a consumer with a name has not read yet is kept (`hold`), until the log is larger than a limit
of its own. What is not in the archive yet, where there is one, is kept without a limit: a disk that
is full makes capture wait, and nothing is lost.

Logs that were moved aside count, and go first. The segment being written stays, and so does one
that a reader has open, in this process or another, with all that are newer. A segment is renamed
first and deleted at the next round, so a mistake in the settings can be undone for that long.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from databus.relay.log.archive.archiver import Archiver
from databus.relay.log.directory import DELETED, folders_aside
from databus.relay.log.hold import Hold
from databus.relay.log.segment import read_sealed, segment_paths
from databus.relay.log.writer import LogWriter

_HOUR_NS = 3600 * 1_000_000_000


class Retention:
    """Keeps one log within its limits. The writer's thread calls it."""

    def __init__(
        self,
        writer: LogWriter,
        retention_bytes: int,
        retention_hours: float,
        hold: Hold | None = None,
        hold_bytes: int = 0,
        archiver: Archiver | None = None,
    ) -> None:
        self._writer = writer
        self._hold, self._hold_bytes = hold or Hold(()), hold_bytes
        self._archiver = archiver
        self.unread = ""  # why windows were deleted that a consumer had not read; "" if none were
        self._most_bytes = retention_bytes
        self._most_ns = int(retention_hours * _HOUR_NS)
        self.size_bytes = 0  # of all segments after the last round, those aside included

    def clean(self, now_ns: int) -> None:
        """Do one round; raise OSError."""
        folder = self._writer.folder
        _delete_renamed([*folders_aside(folder), folder])
        folders = [*folders_aside(folder), folder]
        sizes = {path: path.stat().st_size for one in folders for path in segment_paths(one)}
        size_bytes = sum(sizes.values())
        for path, written_ns in self._candidates(folders[:-1]):
            is_old = now_ns - written_ns > self._most_ns
            if not (is_old or size_bytes > self._most_bytes):
                break
            is_held = self._is_held(path)
            if is_held and size_bytes <= self._hold_bytes:
                break
            if not self._is_archived(path) or not self._take_out(path):
                break
            if is_held:
                names = ", ".join(self._hold.names)
                self.unread = f"{path.name} was deleted, though {names} had not read all of it"
            size_bytes -= sizes.get(path, 0)
        self.size_bytes = size_bytes

    def _is_held(self, path: Path) -> bool:
        """Return whether a consumer with a name has not read the oldest segment."""
        after_scn, segments = self._hold.after_scn, self._writer.segments
        if after_scn is None or not segments or segments[0].path != path:
            return False  # a log that was moved aside is read by nobody
        return segments[0].end.scn > after_scn

    def _is_archived(self, path: Path) -> bool:
        """Return whether a segment is in the archive, or will never be."""
        segment = None if self._archiver is None else read_sealed(path)
        return segment is None or self._archiver is None or self._archiver.holds(segment)

    def _candidates(self, aside: list[Path]) -> Iterator[tuple[Path, int]]:
        """Yield the segments that may go, oldest first, and when they were written last."""
        for folder in aside:
            for path in segment_paths(folder):
                yield path, path.stat().st_mtime_ns
        for segment in self._writer.segments[:-1]:
            yield segment.path, segment.sealed_ns or segment.path.stat().st_mtime_ns

    def _take_out(self, path: Path) -> bool:
        """Take a segment out of the log and rename it; return False if a reader has it open."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            # Held until it is renamed: a reader that comes now is told that it is gone.
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        else:
            if path.parent == self._writer.folder:
                self._writer.drop(1)
            path.rename(path.with_name(path.name + DELETED))
            return True
        finally:
            os.close(fd)


def _delete_renamed(folders: list[Path]) -> None:
    for folder in folders:
        for path in folder.glob(f"*{DELETED}"):
            path.unlink()
    for folder in folders[:-1]:
        with suppress(OSError):  # it still has segments
            folder.rmdir()
