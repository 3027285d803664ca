"""Whose a folder of the sink `files` is: that of one sink, and of one process at a time.

`_manifest/sink` names the sink. It is written at the first start, so a folder without it, where the
sink has been before, is not the one that was left. A process that writes has a lock on
`_manifest/lock` in a local folder: a second one is refused. Of two objects of one sink in one
process, as a query of Spark leaves one when it is started again, the newer one has the folder.
Other file systems have no locks: there the name of the process is in `_manifest/process`, the
newest process wins, and the one before it stops.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from pathlib import Path
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from databus.client.sinks.contract import Opening
from databus.client.sinks.errors import SinkError
from databus.client.sinks.ready.manifest import FOLDER, newest
from databus.daemon.files import FileHeldError, open_locked
from databus.relay.log.archive.store import ArchiveStore

SINK, LOCK, PROCESS = f"{FOLDER}/sink", f"{FOLDER}/lock", f"{FOLDER}/process"
_HOLDER = f"{socket.gethostname()[:40]}:{os.getpid()}"
_TOKEN = f"{_HOLDER}:{uuid4().hex}"
_held: dict[Path, FolderOwner] = {}  # by lock, in this process
_taking = threading.Lock()


class FolderOwner:
    """Takes a folder for a sink, and says before each flush whether it still has it."""

    def __init__(self, store: ArchiveStore, uri: str) -> None:
        parts = urlsplit(uri)
        self._lock = Path(unquote(parts.path)) / LOCK if parts.scheme == "file" else None
        self._store = store
        self._fd = -1
        self._sink = ("", "")  # its name and its physical source

    def take(self, opening: Opening) -> None:
        """Take the folder; raise SinkError if it is another's, or has lost its manifest."""
        if self._lock is None:
            self._check_sink(opening)
            self._replace_process()
            return
        self._sink = opening.sink, opening.physical_source
        with _taking:
            self._fd = self._lock_folder(self._lock)
            _held[self._lock] = self
        self._check_sink(opening)

    def check(self) -> None:
        """Raise SinkError if the folder was removed, or another process has taken it."""
        if self._lock is None:
            owner = self._process()[0]
            if owner != _TOKEN:
                raise self._replaced(owner)
            return
        if self._fd < 0:
            raise SinkError(f"{self._store}: a newer one of this sink writes into it")
        try:
            is_there = os.path.samestat(os.fstat(self._fd), self._lock.stat())
        except FileNotFoundError:
            is_there = False
        if not is_there:
            raise self._lost()

    def release(self) -> None:
        """Let another process take the folder."""
        with _taking:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                os.close(fd)
                if self._lock is not None:
                    _held.pop(self._lock, None)

    def _lock_folder(self, lock: Path) -> int:
        """Return the descriptor of the locked file; raise SinkError if another one has it."""
        try:
            fd = open_locked(lock)
        except FileHeldError as error:
            other = _held.get(lock)
            if other is None or other._sink != self._sink:
                raise SinkError(
                    f"{self._store}: process {error.content or 'unknown'} writes into this folder: "
                    "stop it, or name another folder"
                ) from None
            fd, other._fd = other._fd, -1
            return fd
        os.ftruncate(fd, 0)
        os.pwrite(fd, _HOLDER.encode(), 0)
        return fd

    def _check_sink(self, opening: Opening) -> None:
        names = self._store.names(FOLDER)
        mine = {"sink": opening.sink, "source": opening.physical_source}
        if SINK.rpartition("/")[2] not in names:
            if not opening.is_first and not newest(list(names)):
                raise self._lost()
            self._store.write(SINK, [json.dumps(mine).encode()])
            return
        found = self._read(SINK)
        if found != mine:
            raise SinkError(
                f"{self._store} is the folder of the sink {found.get('sink')} over "
                f"{found.get('source')}: name another one"
            )

    def _replace_process(self) -> None:
        owner, replaced = self._process()
        if _TOKEN == replaced != owner:
            raise self._replaced(owner)
        if owner != _TOKEN:
            self._store.write(PROCESS, [json.dumps({"owner": _TOKEN, "replaced": owner}).encode()])

    def _process(self) -> tuple[str, str]:
        """Return the process that writes, and the one before it; "" = none."""
        if PROCESS.rpartition("/")[2] not in self._store.names(FOLDER):
            return "", ""
        found = self._read(PROCESS)
        return str(found.get("owner", "")), str(found.get("replaced", ""))

    def _read(self, path: str) -> dict[str, object]:
        try:
            found = json.loads(self._store.read(path))
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise SinkError(
                f"{self._store}: {path} is damaged: remove it if the folder is this sink's"
            )
        return found

    def _replaced(self, owner: str) -> SinkError:
        return (
            SinkError(f"{self._store}: another process writes into it: {owner}")
            if owner
            else self._lost()
        )

    def _lost(self) -> SinkError:
        return SinkError(
            f"{self._store} has no manifest any more, and the sink has written one: put the folder "
            "back, or begin anew with another name of the sink and a bootstrap"
        )
