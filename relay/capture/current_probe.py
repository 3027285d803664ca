"""Probes the log of whichever server a physical source is read from.

A relay that stands by reads another relay. It asks its own database, too: otherwise nobody would
know that it could not take over, until it has to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from databus.conf.settings import PhysicalSourceSettings
from databus.relay.sources.log_status import LogProbe, LogStatus
from databus.relay.sources.source import Newest
from databus.schemas.errors import SourceError

OpenLogProbe = Callable[[PhysicalSourceSettings], LogProbe | None]
SettingsNow = Callable[[], PhysicalSourceSettings]


def current_probe(
    open_probe: OpenLogProbe, current: SettingsNow, database: SettingsNow | None = None
) -> LogProbe | None:
    """Return a probe that follows a source from server to server; None for a kind without one.

    `current` is what is read now, and `database` what would be read by a relay that captures.
    """
    settings = current()
    probe = open_probe(settings)
    if probe is None:
        return None
    reading = _CurrentProbe(open_probe, current, settings, probe)
    if database is None:
        return reading
    return _ProbeOfStandby(reading, _CurrentProbe(open_probe, database, settings, probe))


class _CurrentProbe:
    """A probe that is opened anew when the server or the epoch changes."""

    def __init__(
        self,
        open_probe: OpenLogProbe,
        current: SettingsNow,
        settings: PhysicalSourceSettings,
        probe: LogProbe,
    ) -> None:
        self._open_probe = open_probe
        self._current = current
        self._settings = settings
        self._probe = probe
        self._is_cancelled = False

    @property
    def uri(self) -> str:
        """What is asked."""
        return self._current().uri

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


class _ProbeOfStandby:
    """A probe of what is read, with a warning if that is a relay and the database is away."""

    def __init__(self, reading: _CurrentProbe, database: _CurrentProbe) -> None:
        self._reading, self._database = reading, database

    def probe(self, newest: Callable[[], Newest | None]) -> LogStatus:
        """Probe the log, and the database of a relay that stands by; raises SourceError."""
        status = self._reading.probe(newest)
        if self._reading.uri == self._database.uri:
            return status
        try:
            # Only whether it answers: another server may have another log, with other places.
            self._database.probe(newest)
        except SourceError as error:
            text = f"this relay stands by, and could not take over: {error}"
            return replace(status, warning="; ".join(filter(None, (status.warning, text))))
        return status

    def cancel(self) -> None:
        """Abort a probe that waits for a server."""
        self._reading.cancel()
        self._database.cancel()
