"""Keeps the entry of a running server in the list of servers. A store that is away stops nothing.

It runs on the server's loop, which has the numbers, and writes on a thread of its own, one request
after another: the entry is never written after it was removed.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from databus.conf.settings import ListedServerSettings
from databus.daemon.presence import Presence
from databus.leases.errors import LeaseError
from databus.servers.directory import EVERY_S, ServerDirectory
from databus.servers.entry import HeldSource, Kind, ServerEntry
from databus.servers.places import open_directory

log = logging.getLogger(__name__)

Held = Callable[[], Mapping[str, HeldSource]]


class Announcer:
    """The entry of one server. For the thread of its loop."""

    def __init__(
        self,
        directory: ServerDirectory,
        kind: Kind,
        room: str,
        public_url: str,
        held: Held,
        every_s: float = EVERY_S,
    ) -> None:
        """Own the directory. `held` returns what the server serves now; nothing = it is not listed.

        Without a `public_url` others reach it where it listens.
        """
        self.problem = ""
        """Why the entry could not be written the last time."""
        self.is_listed = False
        self._directory, self._held, self._every_s = directory, held, every_s
        self._kind, self._room, self._public_url = kind, room, public_url
        self._instance = secrets.token_hex(8)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="databus-announcer")
        self._task: asyncio.Task[None] | None = None

    def enter(self, url: str, connections: Callable[[], int]) -> None:
        """Be listed from now on, as a server that listens at `url`."""
        self._task = asyncio.create_task(self._run(self._public_url or url, connections))

    async def leave(self, timeout_s: float) -> None:
        """Be listed no more; give up after `timeout_s`."""
        if self._task is not None:
            self._task.cancel()
        leaving = asyncio.get_running_loop().run_in_executor(self._thread, self._leave)
        self._thread.shutdown(wait=False)
        try:
            await asyncio.wait_for(asyncio.shield(leaving), timeout_s)
        except (TimeoutError, LeaseError) as error:
            log.warning("%s: not taken out of the list: %s", self._directory.shown, error)

    async def _run(self, url: str, connections: Callable[[], int]) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                entry = self._entry(url, connections())
                await loop.run_in_executor(self._thread, self._write, entry)
            except LeaseError as error:
                self._note(str(error))
            except Exception as error:
                # A mistake in the code of this process: a server that nobody finds looks well.
                log.exception("the entry in the list of servers at %s", self._directory.shown)
                self._note(repr(error))
            else:
                self._note("")
                self.is_listed = bool(entry.physical_sources or entry.draining)
            await asyncio.sleep(self._every_s)

    def _entry(self, url: str, connections: int) -> ServerEntry:
        found = self._held()
        held = {name: one for name, one in found.items() if not one.is_draining}
        draining = tuple(name for name, one in found.items() if one.is_draining)
        return ServerEntry(
            self._instance, self._kind, url, self._room, connections, held, time.time(), draining
        )

    def _write(self, entry: ServerEntry) -> None:
        if entry.physical_sources or entry.draining:
            self._directory.put(entry)
        elif self.is_listed:
            self._directory.remove(entry.instance)

    def _leave(self) -> None:
        try:
            self._directory.remove(self._instance)
        finally:
            self._directory.close()

    def _note(self, problem: str) -> None:
        if problem and not self.problem:
            log.warning("clients may not find this server: %s; trying again", problem)
        self.problem = problem


def make_presence(settings: ListedServerSettings, kind: Kind, held: Held) -> Presence | None:
    """Return what lists a server; None without a coordinator. Raises SettingsError."""
    if not settings.coordinator:
        return None
    directory = open_directory(settings.coordinator)
    return Announcer(directory, kind, settings.room, settings.public_url, held)
