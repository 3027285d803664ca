"""The reloads of one sink: at most one for each source."""

from __future__ import annotations

import threading
from collections.abc import Callable

from databus.client.dispatcher.data_window import DataWindow
from databus.client.events.row_condition import row_condition
from databus.client.sinks.errors import SinkError
from databus.client.sinks.reloading.reload import Reload, ReloadStatus, Target
from databus.client.sinks.reloading.requests import ReloadFile, ReloadRequest
from databus.client.sinks.rules.changes import RuleOf
from databus.conf.settings import ClientSettings


class SinkReloads:
    """Starts and ends reloads, which are kept in a file. Thread-safe."""

    def __init__(
        self,
        sink: str,
        file: ReloadFile,
        settings: ClientSettings,
        rule_of: RuleOf,
        target_of: Callable[[str], Target | None],
    ) -> None:
        """`settings` are the client's; `target_of` returns the session that reads a source."""
        self._sink, self._file, self._settings = sink, file, settings
        self._rule_of, self._target_of = rule_of, target_of
        self._lock = threading.Lock()
        self._running: dict[str, Reload] = {}
        self._ends: dict[str, bool] = {}  # of the last one of each source: whether it was whole

    def start(self) -> None:
        """Begin those that an earlier process has not ended."""
        for request in self._file.of(self._sink):
            self._start(request)

    def end(self) -> None:
        """Ask all of them to end; they stay in the file."""
        for one in self._all():
            one.end()

    def join(self) -> None:
        """Wait for their threads."""
        for one in self._all():
            one.join()

    @property
    def status(self) -> list[ReloadStatus]:
        """How those are that have not ended."""
        return [one.status for one in self._all()]

    @property
    def ends(self) -> dict[str, bool]:
        """How the last reload of each source has ended: whether all rows were given to the sink."""
        with self._lock:
            return {name: one for name, one in self._ends.items() if name not in self._running}

    def add(self, source: str, where: str = "") -> None:
        """Write all rows of a source again, while its changes go on; also after a restart.

        `where` is SQL: only the rows that it holds for. It takes the place of one of this source
        that runs. Raises SinkError, SettingsError for a condition, and CheckpointError.
        """
        if where:
            row_condition(where)
        if not self._settings.bootstrap_servers and self._settings.coordinator is None:
            raise SinkError(
                f"{self._sink}: a reload reads a bootstrap server: set `bootstrap_servers`"
            )
        if self._target_of(source) is None:
            raise SinkError(f"{self._sink} does not read {source} now")
        self.cancel(source)
        request = ReloadRequest(self._sink, source, where)
        self._file.add(request)
        self._start(request)

    def cancel(self, source: str) -> bool:
        """End a reload; return whether there was one. Raises CheckpointError.

        Its thread may be waiting for a sink that takes nothing, and is not waited for.
        """
        self._file.remove(self._sink, source)
        with self._lock:
            found = self._running.get(source)
            if found is not None:
                found.end()
                del self._running[source]
                self._ends[source] = False
        return found is not None

    def passes(self, window: DataWindow) -> None:
        """Take note of a window that the target is given now."""
        if self._running:  # hot path: there is hardly ever one
            for one in self._all():
                one.passes(window)

    def _start(self, request: ReloadRequest) -> None:
        found = Reload(request, self._settings, self._rule_of, self._target_of, self._ended)
        with self._lock:
            self._running[request.source] = found
        found.start()

    def _ended(self, reload: Reload) -> None:
        """Forget one that has reached its end, unless another has taken its place."""
        source = reload.request.source
        with self._lock:
            if self._running.get(source) is not reload:
                return
        self._file.remove(self._sink, source)
        with self._lock:
            if self._running.get(source) is reload:
                del self._running[source]
                self._ends[source] = True

    def _all(self) -> list[Reload]:
        with self._lock:
            return [self._running[source] for source in sorted(self._running)]
