"""Asks another relay how far its own source is read, and what it still holds.

What is behind is counted from the database: what the other relay is behind, and what this one is
behind it.
"""

from __future__ import annotations

from collections.abc import Callable

from databus.conf.settings import PhysicalSourceSettings
from databus.relay.sources.log_status import Holding, LogStatus
from databus.relay.sources.source import Newest
from databus.relay.sources.upstream.answers import UpstreamState, read_state
from databus.relay.sources.upstream.requests import Upstream


class UpstreamProbe:
    """Probes one relay, over a connection of its own, which is closed each time."""

    def __init__(self, settings: PhysicalSourceSettings) -> None:
        self._upstream = Upstream(settings)

    def probe(self, newest: Callable[[], Newest | None]) -> LogStatus:
        """Compare the newest window here with what the other relay has; raises SourceError."""
        try:
            # First: what comes meanwhile is there, too.
            here = newest()
            state = self._upstream.get(self._upstream.path(), read_state)
        finally:
            self._upstream.close()
        return status_of(here, state, self._upstream.url)

    def cancel(self) -> None:
        """Do nothing: an answer is waited for a few seconds at most."""


def status_of(here: Newest | None, state: UpstreamState, url: str) -> LogStatus:
    """Return the log status of a relay that reads another one in a state. Pure."""
    if here is None:
        return LogStatus()
    if here.scn < state.after_scn:
        warning = (
            f"relay {url} holds what comes after scn {state.after_scn}, and here scn {here.scn} is "
            "the newest: what is between is lost unless another relay of `uri` has it"
        )
        return LogStatus(Holding.GONE, warning=warning)
    behind_s, behind_bytes = state.behind_s, state.behind_bytes
    if here.scn < state.newest_scn:
        late_s = max(0.0, state.newest_at - here.timestamp_ns / 1e9)
        behind_s = None if behind_s is None else behind_s + late_s
        behind_bytes = None
    return LogStatus(Holding.HELD, behind_bytes, behind_s, warning=state.warning)
