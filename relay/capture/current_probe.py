"""Probes the log of whichever server a physical source is read from."""

from __future__ import annotations

from collections.abc import Callable

from databus.conf.settings import PhysicalSourceSettings
from databus.relay.sources.log_status import LogProbe, LogStatus
from databus.relay.sources.source import Newest

OpenLogProbe = Callable[[PhysicalSourceSettings], LogProbe | None]


def current_probe(
    open_probe: OpenLogProbe, current: Callable[[], PhysicalSourceSettings]
) -> LogProbe | None:
    """Return a probe that follows a source from server to server; None for a kind without one."""
    settings = current()
    probe = open_probe(settings)
    return None if probe is None else _CurrentProbe(open_probe, current, settings, probe)


class _CurrentProbe:
    """A probe that is opened anew when the server or the epoch changes."""

    def __init__(
        self,
        open_probe: OpenLogProbe,
        current: Callable[[], PhysicalSourceSettings],
        settings: PhysicalSourceSettings,
        probe: LogProbe,
    ) -> None:
        self._open_probe = open_probe
        self._current = current
        self._settings = settings
        self._probe = probe
        self._is_cancelled = False

    def probe(self, newest: Callable[[], Newest | None]) -> LogStatus:
        """Probe the log; raises SourceError."""
        settings = self._current()
        if settings != self._settings:
            opened = self._open_probe(settings)
            assert opened is not None  # it is of the same kind
            self._settings, self._probe = settings, opened
            if self._is_cancelled:
                opened.cancel()
        return self._probe.probe(newest)

    def cancel(self) -> None:
        """Abort a probe that waits for the server."""
        self._is_cancelled = True
        self._probe.cancel()
