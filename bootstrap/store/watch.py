"""Checks the stores of this process for damage, and says which of them may be served.

A file may have been damaged while no process ran, so no store is served before it was
checked completely. A small store is checked at the first request. For a larger one the
client is told to ask again, while the check runs at full speed. After that all stores are
checked continuously, with a fiftieth of the time. Damage that is found here or by a
reader is remembered as long as that file exists; readers verify every event that they
send, because a file may be damaged between two checks.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from databus.bootstrap.store.check import SMALL_BYTES, check_store
from databus.schemas.errors import BootstrapError, BootstrapTooOldError, StoreDamagedError

log = logging.getLogger(__name__)

SHARE = 0.02  # of the time
FIRST_SHARE = 1.0  # for the first check: the store is not served meanwhile
REST_S = 60.0  # between two checks
LOOK_S = 1.0  # between two looks for a store that does not exist yet, or was replaced

FileId = tuple[int, int]


@dataclass(slots=True)
class WatchedStore:
    """The result of the checks of one file."""

    file: FileId | None = None
    # Only the text: an exception would keep its frames alive, and the files that they opened.
    problem: str = ""
    trouble: str = ""  # why the last check did not finish; it is tried again
    is_checked: bool = False
    checked_bytes: int = 0
    round_at_s: float | None = None


class StoreWatch:
    """Checks stores until it is stopped. Any thread may call."""

    def __init__(
        self,
        paths: Mapping[str, Path],
        share: float = SHARE,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._paths = paths
        self._share = share
        self._monotonic_s = monotonic_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="store-watch", daemon=True)
        self._locks = {name: threading.Lock() for name in paths}
        self._next_s = dict.fromkeys(paths, 0.0)
        self.watched = {name: WatchedStore() for name in paths}

    def start(self) -> None:
        """Start the thread. Call it once."""
        self._thread.start()

    def stop(self, timeout_s: float | None = None) -> None:
        """Stop the thread."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def admit(self, name: str, file: FileId, size_bytes: int) -> None:
        """Return if a store may be read; raises BootstrapError when its file is damaged.

        Checks a small store first, once. Raises BootstrapTooOldError for a larger one that
        was not checked yet.
        """
        watched = self._watched(name, file)
        if not watched.is_checked and not watched.problem and size_bytes <= SMALL_BYTES:
            with self._locks[name]:
                if not watched.is_checked:
                    self._look(name, watched, share=1.0)
        if watched.problem:
            raise StoreDamagedError(watched.problem)
        if not watched.is_checked:
            come_to = watched.trouble or f"{watched.checked_bytes} bytes of rows so far"
            raise BootstrapTooOldError(
                f"store {self._paths[name]} is being checked before it is served: {come_to}; "
                "ask again later"
            )

    def note(self, name: str, error: BootstrapError) -> None:
        """Record a reader's error if it means that the file is damaged."""
        watched = self.watched[name]
        if str(self._paths[name]) in str(error):
            self._found(watched, error)

    def look_soon(self, name: str) -> None:
        """Check a store now instead of at its next time."""
        self._next_s[name] = 0.0

    def problem(self, name: str) -> str:
        """Return the damage of a store, or why it cannot be checked; "" for none."""
        watched = self.watched[name]
        return watched.problem or watched.trouble

    def _watched(self, name: str, file: FileId) -> WatchedStore:
        if self.watched[name].file != file:
            self.watched[name] = WatchedStore(file)
        return self.watched[name]

    def _look(self, name: str, watched: WatchedStore, share: float) -> None:
        began_s = self._monotonic_s()
        try:
            for size_bytes in check_store(self._paths[name]):
                watched.checked_bytes += size_bytes
                spent_s = self._monotonic_s() - began_s
                if self._stopped.wait(spent_s * (1 / share - 1)):
                    return
                began_s = self._monotonic_s()
        except BootstrapError as error:
            self._found(watched, error)  # first: damage must never be reported as temporary
            if not watched.problem:
                # Temporary, such as another process's lock: the store is checked again.
                watched.trouble = str(error)
            return
        watched.trouble = ""
        watched.is_checked, watched.round_at_s = True, self._monotonic_s()

    def _found(self, watched: WatchedStore, error: BootstrapError) -> None:
        if not watched.problem and isinstance(error, StoreDamagedError):
            watched.problem = str(error)
            log.error("%s", error)

    def _run(self) -> None:
        while not self._stopped.is_set():
            for name, path in self._paths.items():
                file = file_at(path)
                if file is None:
                    continue
                watched = self._watched(name, file[0])
                is_due = not watched.is_checked or self._monotonic_s() >= self._next_s[name]
                if not watched.problem and is_due:
                    share = self._share if watched.is_checked else FIRST_SHARE
                    with self._locks[name]:
                        self._look(name, watched, share)
                    self._next_s[name] = self._monotonic_s() + REST_S
            self._stopped.wait(LOOK_S)


def file_at(path: Path) -> tuple[FileId, int] | None:
    """Return the file's identity and size, or None when there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return (status.st_dev, status.st_ino), status.st_size
