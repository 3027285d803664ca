"""The positions of all sinks of a process: one file, replaced as a whole.

One record, written in one step, has the position of every (sink, physical source). So no crash can
leave some newer and some older than the others. Each is a checkpoint of the client, which names a
window of its log: a relay of another log refuses it.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from databus.client.sinks.contract import Position
from databus.client.sinks.rules.beginnings import with_own
from databus.client.sinks.state_files import keep_file
from databus.daemon.files import FileHeldError, open_locked
from databus.daemon.guarded_files import content_of
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import CheckpointError

log = logging.getLogger(__name__)

NAME, LOCK = "positions.json", "positions.lock"
_VERSION = 1


class StoredPosition(NamedTuple):
    """A sink's position in a physical source, and the sources that were read up to there."""

    sink: str
    source: str
    sources: tuple[str, ...]
    checkpoint: Checkpoint


_Key = tuple[str, str]


class PositionFile:
    """The positions in a folder. Thread-safe; one process at a time, see `hold`."""

    def __init__(self, folder: Path) -> None:
        """Read the file; raise CheckpointError if it is damaged."""
        self.path = folder / NAME
        self._lock = threading.Lock()
        self._positions = read_positions(self.path)

    def all(self) -> list[StoredPosition]:
        """Return the positions, by sink and physical source."""
        with self._lock:
            return [self._positions[key] for key in sorted(self._positions)]

    def load(self, sink: str, source: str) -> StoredPosition | None:
        """Return a position, or None."""
        with self._lock:
            return self._positions.get((sink, source))

    def save(self, position: StoredPosition) -> None:
        """Write the record with another position, durably; raise CheckpointError."""
        with self._lock:
            self._write({**self._positions, (position.sink, position.source): position})

    def replace(self, sinks: Collection[str], positions: Mapping[_Key, StoredPosition]) -> None:
        """Write the record with other positions of some sinks; raise CheckpointError."""
        with self._lock:
            kept = {key: one for key, one in self._positions.items() if one.sink not in sinks}
            self._write({**kept, **positions})

    def _write(self, positions: Mapping[_Key, StoredPosition]) -> None:
        keep_file(self.path, encoded(positions))
        self._positions = positions


class SinkCheckpoints:
    """The positions of one sink, as a checkpoint store of its client.

    A registration's name is that of the physical source. Other sources than before go on from the
    same position: rows that a new one had before it are missing in the target, which is logged.
    """

    def __init__(
        self,
        file: PositionFile,
        sink: str,
        own: Callable[[str], Position | None] = lambda _source: None,
    ) -> None:
        """`own` returns the position that the target has now, if it keeps one."""
        self._file, self._sink, self._own = file, sink, own
        self._expected: dict[str, tuple[str, ...]] = {}

    def expect(self, name: str, sources: Sequence[str]) -> None:
        """Take positions of these sources only: a reader of others has been replaced.

        It ends on threads of its own, and what it stores late would undo where the next begins.
        """
        self._expected[name] = tuple(sources)

    def load(self, name: str, sources: Sequence[str]) -> Checkpoint | None:
        """Return the stored checkpoint, or None."""
        found = self._file.load(self._sink, name)
        if found is None:
            return None
        new = [one for one in sources if one not in found.sources]
        if new:
            log.warning(
                "%s: %s is read from SCN %d on, and was not read before",
                self._sink,
                ", ".join(new),
                found.checkpoint.window_scn,
            )
        return found.checkpoint

    def save(self, name: str, sources: Sequence[str], checkpoint: Checkpoint) -> None:
        """Save durably; raise CheckpointError. Of a reader that was replaced nothing is saved."""
        if self._expected.get(name, tuple(sources)) != tuple(sources):
            return
        checkpoint = with_own(checkpoint, self._own(name))
        self._file.save(StoredPosition(self._sink, name, tuple(sources), checkpoint))


def read_positions(path: Path) -> Mapping[_Key, StoredPosition]:
    """Return the positions in a file, none if there is none; raise CheckpointError if damaged."""
    try:
        data = content_of(path)
        return {} if data is None else decoded(data)
    except (OSError, ValueError, TypeError, KeyError, RecursionError, CheckpointError) as error:
        raise CheckpointError(
            f"{path} cannot be read: {error}; restore it from a copy, or remove it: then every "
            "sink begins at its `start`, but for those whose target has a position of its own"
        ) from error


def hold(folder: Path) -> Callable[[], None]:
    """Let no other process use the positions of a folder; return what lets them go.

    Raises CheckpointError, with the process that has them.
    """
    path = folder / LOCK
    try:
        fd = open_locked(path)
    except FileHeldError as held:
        raise CheckpointError(
            f"{folder} is in use by process {held.content or 'of unknown id'}: stop it, or use "
            "another data_dir"
        ) from None
    except OSError as error:
        raise CheckpointError(f"data_dir {folder} cannot be used: {error}") from error
    os.ftruncate(fd, 0)
    os.pwrite(fd, str(os.getpid()).encode(), 0)
    return lambda: os.close(fd)


def encoded(positions: Mapping[_Key, StoredPosition]) -> bytes:
    """Return the content of the file."""
    kept: dict[str, dict[str, Any]] = {}
    for (sink, source), one in sorted(positions.items()):
        checkpoint = json.loads(one.checkpoint.to_json())
        kept.setdefault(sink, {})[source] = {
            "sources": list(one.sources),
            "checkpoint": checkpoint,
        }
    values = {"version": _VERSION, "positions": kept, "crc": _checksum(kept)}
    return (json.dumps(values, indent=1) + "\n").encode()


def decoded(data: bytes) -> Mapping[_Key, StoredPosition]:
    """Read the content of the file; raise ValueError, TypeError, KeyError and CheckpointError."""
    values = json.loads(data.decode("utf-8"))
    kept = values["positions"]
    if values["version"] != _VERSION:
        raise ValueError(f"it is of version {values['version']}, and this one reads {_VERSION}")
    if values["crc"] != _checksum(kept):
        raise ValueError("its checksum is wrong: it was damaged, or edited by hand")
    return {
        (sink, source): StoredPosition(
            sink,
            source,
            tuple(map(str, one["sources"])),
            Checkpoint.from_json(json.dumps(one["checkpoint"])),
        )
        for sink, by_source in kept.items()
        for source, one in by_source.items()
    }


def _checksum(kept: Any) -> str:
    text = json.dumps(kept, sort_keys=True, separators=(",", ":"))
    return f"{crc32(text.encode()):08x}"
