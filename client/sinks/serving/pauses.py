"""Which sinks are paused: a private file, so that a pause outlives the process."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from databus.client.sinks.state_files import keep_file
from databus.daemon.guarded_files import content_of
from databus.schemas.errors import CheckpointError

NAME = "paused.json"


class PauseFile:
    """The names of the paused sinks of a folder. Thread-safe; one process at a time."""

    def __init__(self, folder: Path) -> None:
        """Read the file; raise CheckpointError if it is damaged."""
        self._path = folder / NAME
        self._lock = threading.Lock()
        self._names = read_pauses(self._path)

    def __contains__(self, sink: str) -> bool:
        with self._lock:
            return sink in self._names

    def set(self, sink: str, *, is_paused: bool) -> None:
        """Keep, durably, whether a sink is paused; raise CheckpointError."""
        with self._lock:
            names = self._names | {sink} if is_paused else self._names - {sink}
            if names == self._names:
                return
            keep_file(self._path, (json.dumps({"paused": sorted(names)}) + "\n").encode())
            self._names = names


def read_pauses(path: Path) -> frozenset[str]:
    """Return the names in a file, none if there is none; raise CheckpointError."""
    try:
        data = content_of(path)
        return frozenset() if data is None else frozenset(map(str, json.loads(data)["paused"]))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CheckpointError(
            f"{path} cannot be read: {error!r}; remove it: then no sink is paused"
        ) from error
