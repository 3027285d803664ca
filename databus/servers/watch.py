"""Follows the list of servers. While its store is away, the servers that are known stay."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from databus.leases.errors import LeaseError
from databus.servers.directory import ServerDirectory
from databus.servers.entry import ServerEntry

log = logging.getLogger(__name__)

_RETRY_S = 1.0


class ServerWatch:
    """A thread that calls `on_change` with the servers when they, or their numbers, change.

    An empty list after one that was not empty changes nothing: it is more likely that a store lost
    its data, or that servers are cut off from it, than that all of them are gone, and those that
    are gone do no harm.
    """

    def __init__(
        self, directory: ServerDirectory, on_change: Callable[[Sequence[ServerEntry]], None]
    ) -> None:
        """Own the directory; `on_change` is called on the thread."""
        self.problem = ""
        """Why the list is not known now, or may be old."""
        self._directory, self._on_change = directory, on_change
        self._known: list[ServerEntry] | None = None
        self._ended = threading.Event()
        self._look = threading.Event()
        self._thread = threading.Thread(target=self._run, name="databus-servers", daemon=True)

    def start(self) -> None:
        """Begin to look; do nothing if it has."""
        if self._thread.ident is None and not self._ended.is_set():
            self._thread.start()

    def stop(self) -> None:
        """End the thread, and close the directory. Idempotent."""
        self._ended.set()
        self._look.set()
        if self._thread.ident is None:
            self._directory.close()
        elif self._thread is not threading.current_thread():
            self._thread.join()

    def look_again(self, *_: object) -> None:
        """Look at the list now; any thread may call it."""
        self._look.set()

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                # Before the list is read: a change during the reading must not be missed.
                self._look.clear()
                if self._ended.is_set():
                    return
                self._look.wait(self._read())
        finally:
            self._directory.close()

    def _read(self) -> float:
        """Read the list; return for how long to wait then, in seconds."""
        try:
            return self._take(self._directory.entries(self.look_again))
        except LeaseError as error:
            self._note(f"{error}; {self._meanwhile()}")
        except Exception as error:
            # A mistake in the code of this process: a watch that has silently ended looks well.
            log.exception("the list of servers at %s", self._directory.shown)
            self._note(f"{error!r}; {self._meanwhile()}")
        self._ended.wait(_RETRY_S)
        return 0.0

    def _take(self, entries: Sequence[ServerEntry]) -> float:
        found = sorted(entries, key=lambda one: (one.url, one.renewed))
        if not found and self._known:
            self._note(f"no server is listed at {self._directory.shown}; {self._meanwhile()}")
            return self._directory.poll_s
        self._note("")
        if found != self._known:
            self._known = found
            self._on_change(found)
        return self._directory.poll_s

    def _meanwhile(self) -> str:
        if not self._known:
            return "no server is known"
        return f"going on with the {len(self._known)} servers that are known"

    def _note(self, problem: str) -> None:
        if problem and not self.problem:
            log.warning("%s", problem)
        elif self.problem and not problem:
            log.warning("the list of servers at %s is read again", self._directory.shown)
        self.problem = problem
