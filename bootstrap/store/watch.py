"""Which stores of this process were looked at, and which of them may be served from.

A file that was at rest may have changed: nothing of it is served before all of it was
looked at. A small one is looked at when it is first asked for; for a larger one
whoever asks is told to ask again, and the look goes as fast as it can. After that
all are looked at again all day, a fiftieth of the time. What is found,
here or by whoever reads, is kept for as long as that file is there: a reader checks
every event that it sends, for a file may be damaged between two looks.
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
FIRST_SHARE = 1.0  # as long as it was not looked at once: it is not served meanwhile
REST_S = 60.0  # between two rounds
LOOK_S = 1.0  # for a store that is not made yet, or made anew

FileId = tuple[int, int]


@dataclass(slots=True)
class WatchedStore:
    """What is known of one file."""

    file: FileId | None = None
    # Its text alone: an error holds the frames it came through, and what they have open.
    problem: str = ""
    trouble: str = ""  # why the last look did not come to an end; it is tried again
    is_checked: bool = False
    checked_bytes: int = 0
    round_at_s: float | None = None


class StoreWatch:
    """Looks at stores until it is stopped. Any thread may call."""

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
        """Start looking; once."""
        self._thread.start()

    def stop(self, timeout_s: float | None = None) -> None:
        """End the thread."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def admit(self, name: str, file: FileId, size_bytes: int) -> None:
        """Let a store be read from; raises BootstrapError when its file is damaged.

        A small one is looked at first, once. Raises BootstrapTooOldError for a larger
        one that was not looked at yet.
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
        """Note what a reader came upon, if it says that the file is damaged."""
        watched = self.watched[name]
        if str(self._paths[name]) in str(error):
            self._found(watched, error)

    def look_soon(self, name: str) -> None:
        """Look at a store at once, and not only when it is its time."""
        self._next_s[name] = 0.0

    def problem(self, name: str) -> str:
        """Return what is wrong with a store, or keeps it from being looked at; "" if nothing."""
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
            self._found(watched, error)  # first: damage is never told as what passes
            if not watched.problem:
                # Another process's lock, for one, passes: it is looked at again.
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
    """Return which file is there, and its size; None when there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return (status.st_dev, status.st_ino), status.st_size
