"""The servers of a client: those that its settings name, or those that its coordinator lists."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from databus.client.machines.server_set import Servers, found_servers
from databus.conf.settings import ClientSettings
from databus.servers.entry import ServerEntry
from databus.servers.places import open_directory
from databus.servers.watch import ServerWatch

_FIRST_S = 1.0


class ServerFinder:
    """Finds servers if the settings name no relays. Thread-safe."""

    def __init__(self, settings: ClientSettings, use: Callable[[Servers], None]) -> None:
        """Call `use` on another thread with each new set of servers. Raises SettingsError."""
        self._settings, self._use = settings, use
        self._watch: ServerWatch | None = None
        self._found_at = ""
        self._has_looked = threading.Event()
        if not settings.relays:
            directory = open_directory(settings.coordinator)
            self._found_at = directory.shown
            self._watch = ServerWatch(directory, self._take)

    @property
    def first(self) -> Servers:
        """The servers that are known without looking for any."""
        named = self._settings.bootstrap_servers
        return Servers(self._settings.relays, named, found_at=self._found_at)

    @property
    def problem(self) -> str:
        """Why the list of servers is not known now, or may be old; "" if it is well."""
        return "" if self._watch is None else self._watch.problem

    def start(self) -> None:
        """Begin to look, and wait a moment for the first servers."""
        if self._watch is not None:
            self._watch.start()
            self._has_looked.wait(_FIRST_S)

    def stop(self) -> None:
        """Look no more. Idempotent."""
        if self._watch is not None:
            self._watch.stop()

    def _take(self, entries: Sequence[ServerEntry]) -> None:
        settings = self._settings
        self._use(found_servers(entries, self._found_at, settings.room, settings.bootstrap_servers))
        self._has_looked.set()
