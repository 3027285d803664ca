"""The reloads that were asked for and have not ended: a private file, so none is forgotten."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from databus.client.sinks.state_files import keep_file
from databus.daemon.guarded_files import content_of
from databus.schemas.errors import CheckpointError

NAME = "reloads.json"


class ReloadRequest(NamedTuple):
    """All rows of a source again, or those that a condition holds for."""

    sink: str
    source: str
    where: str = ""  # SQL; "" = all rows


class ReloadFile:
    """The requests of a folder. Thread-safe; one process at a time."""

    def __init__(self, folder: Path) -> None:
        """Read the file; raise CheckpointError if it is damaged."""
        self._path = folder / NAME
        self._lock = threading.Lock()
        self._requests = _read(self._path)

    def of(self, sink: str) -> list[ReloadRequest]:
        """Return those of a sink, by source."""
        with self._lock:
            return [one for _, one in sorted(self._requests.items()) if one.sink == sink]

    def add(self, request: ReloadRequest) -> None:
        """Keep a request durably, in place of one for the same source; raise CheckpointError."""
        with self._lock:
            self._write({**self._requests, request[:2]: request})

    def remove(self, sink: str, source: str) -> None:
        """Forget a request; raise CheckpointError."""
        with self._lock:
            self._write({k: v for k, v in self._requests.items() if k != (sink, source)})

    def _write(self, requests: Mapping[tuple[str, str], ReloadRequest]) -> None:
        values = {"reloads": [one._asdict() for _, one in sorted(requests.items())]}
        keep_file(self._path, (json.dumps(values, indent=1) + "\n").encode())
        self._requests = requests


def _read(path: Path) -> Mapping[tuple[str, str], ReloadRequest]:
    try:
        data = content_of(path)
        told = [] if data is None else json.loads(data)["reloads"]
        found = [ReloadRequest(*(str(one[name]) for name in ReloadRequest._fields)) for one in told]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CheckpointError(
            f"{path} cannot be read: {error!r}; remove it: then no table is reloaded, ask again"
        ) from error
    return {one[:2]: one for one in found}
