"""Keeps cursors: in files of the relay's data folder, written by a thread of its own.

An acknowledgement has no answer, so nothing waits for the disk. After a crash a client is sent
again what it acknowledged in the last moment. A subscription is answered once it is kept.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from databus.daemon.files import make_folder, replace_file, sync_folder
from databus.relay.serving.canal.consuming.cursors import Cursor, unreadable
from databus.schemas.errors import DatabusError

log = logging.getLogger(__name__)

FOLDER = "canal"
_MOST_BYTES = 1 << 20
_RETRY_S = 1.0
_CLIENT_ID = re.compile(r"-?[0-9]+")

Key = tuple[str, int]  # destination and client id


class CursorStore(Protocol):
    """Where cursors are kept. Blocks; `write` and `remove` are called by one thread."""

    def read(self, key: Key) -> Cursor | None:
        """Return a cursor; None without one. Raises DatabusError."""
        ...

    def client_ids(self, destination: str) -> list[int]:
        """Return the clients of a destination that have a cursor; raises as `write`."""
        ...

    def write(self, cursor: Cursor) -> None:
        """Keep a cursor durably; raises DatabusError or OSError."""
        ...

    def remove(self, key: Key) -> None:
        """Forget a cursor durably, and that the client has subscribed; raises as `write`."""
        ...

    def forget(self, destination: str) -> None:
        """Forget what is known of a destination here: another relay may write from now on."""
        ...


class FileCursors:
    """Cursors in the files `canal/DESTINATION/CLIENT.json` of a data folder."""

    def __init__(self, data_dir: Path) -> None:
        self._folder = data_dir / FOLDER

    def read(self, key: Key) -> Cursor | None:
        """Return a cursor; None without one. Raises CanalError if it cannot be used."""
        path = self._path(key)
        try:
            with path.open("rb") as file:
                value = json.loads(file.read(_MOST_BYTES))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise unreadable(str(path), str(error)) from error
        return Cursor.from_json(value, *key, str(path))

    def client_ids(self, destination: str) -> list[int]:
        """Return the clients that have a file."""
        return ids_of(path.stem for path in (self._folder / destination).glob("*.json"))

    def write(self, cursor: Cursor) -> None:
        """Replace a cursor's file; raises OSError."""
        path = self._path((cursor.destination, cursor.client_id))
        make_folder(path.parent)
        replace_file(path, json.dumps(cursor.to_json(), indent=1).encode())

    def remove(self, key: Key) -> None:
        """Remove a cursor's file; raises OSError."""
        path = self._path(key)
        if path.exists():
            path.unlink()
            sync_folder(path.parent)

    def forget(self, destination: str) -> None:
        """Do nothing: nobody else writes them."""

    def _path(self, key: Key) -> Path:
        destination, client_id = key
        return self._folder / destination / f"{client_id}.json"


class CursorKeeper:
    """Writes cursors on a thread, the newest of each client. Used on the loop's thread."""

    def __init__(self, store: CursorStore, on_refusal: Callable[[Key, DatabusError], None]) -> None:
        """`on_refusal` is called, on the thread, for a cursor that may not be written any more."""
        self.problem = ""
        """Why cursors cannot be written now."""
        self.store = store
        self._on_refusal = on_refusal
        self._pending: dict[Key, tuple[Cursor | None, list[Future[None]]]] = {}
        self._condition = threading.Condition()
        self._is_ended = False
        self._thread = threading.Thread(target=self._run, name="canal-cursors", daemon=True)
        self._thread.start()

    def keep(self, key: Key, cursor: Cursor | None) -> Future[None]:
        """Write a cursor soon, or remove it; the result says when it was, or why it is refused."""
        done: Future[None] = Future()
        with self._condition:
            _, waiting = self._pending.get(key, (None, []))
            self._pending[key] = cursor, [*waiting, done]
            self._condition.notify()
        return done

    def drop(self, destination: str) -> None:
        """Do not write what is not written yet of a destination: it is another relay's now."""
        with self._condition:
            for key in [key for key in self._pending if key[0] == destination]:
                for done in self._pending.pop(key)[1]:
                    done.cancel()

    def close(self, timeout_s: float) -> bool:
        """Write what is left and end the thread; return whether it ended. Idempotent."""
        with self._condition:
            self._is_ended = True
            self._condition.notify()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._pending or self._is_ended)
                if not self._pending:
                    return
                key = next(iter(self._pending))
                cursor, waiting = self._pending.pop(key)
            if not self._write(key, cursor, waiting):
                with self._condition:
                    self._put_back(key, cursor, waiting)
                    if self._is_ended:
                        return
                    self._condition.wait(_RETRY_S)

    def _put_back(self, key: Key, cursor: Cursor | None, waiting: list[Future[None]]) -> None:
        newer = self._pending.pop(key, None)
        if newer is not None:
            cursor, waiting = newer[0], [*waiting, *newer[1]]
        self._pending[key] = cursor, waiting

    def _write(self, key: Key, cursor: Cursor | None, waiting: list[Future[None]]) -> bool:
        """Write or remove a cursor; return False if it is to be tried again."""
        try:
            if cursor is None:
                self.store.remove(key)
            else:
                self.store.write(cursor)
        except CursorTakenError as error:
            self._on_refusal(key, error)
            _finish(waiting, error)
            return True
        except (DatabusError, OSError) as error:
            if not self.problem:
                log.warning("canal: the cursor of %s, client %d: %s; trying again", *key, error)
            self.problem = str(error)
            return False
        except Exception as error:
            # A thread that ended would look like cursors that are kept.
            log.exception("canal: the cursor of %s, client %d", *key)
            self.problem = repr(error)
            return False
        self.problem = ""
        _finish(waiting, None)
        return True


def ids_of(names: Iterable[str]) -> list[int]:
    """Return the client ids among the names of files or nodes."""
    return sorted(int(name) for name in names if _CLIENT_ID.fullmatch(name))


class CursorTakenError(DatabusError):
    """Another relay has written a client's cursor: it serves the destination now."""

    status = 409


def _finish(waiting: list[Future[None]], error: Exception | None) -> None:
    for done in waiting:
        with suppress(Exception):  # cancelled by who waited
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)
