"""How a sink reads one physical source, as its client says."""

from __future__ import annotations

import time
from dataclasses import dataclass

from databus.client.client import DatabusClient
from databus.client.monitoring.reporter import Mode, ReportedLag, mode_of


@dataclass(frozen=True, slots=True)
class Reading:
    """What the registration of a sink says; None = not known."""

    phase: Mode = "starting"
    server: str = ""
    lag_s: float | None = None  # of what is read
    has_all: bool = False  # nothing more was there to read when a relay last said so


def reading_of(client: DatabusClient, physical: str) -> Reading:
    """Return how the registration of a physical source reads."""
    for one in client.registrations:
        if one.subscription.name == physical:
            break
    else:
        return Reading()
    status, answer = one.status, client.report_answer
    phase = mode_of(one.connection, one.stats, has_read=one.relay is not None)
    # The lag is unknown while the relay cannot reach its source, or the client no relay.
    is_known = phase == "online" and not answer.waits_for and client.silence_of(one) is None
    is_waiting = status.buffered_bytes > 0
    behind = answer.behind
    has_all = is_known and not is_waiting and behind is not None and behind.size_bytes == 0
    lag_s = one.stats.lag_s(time.time(), is_waiting=True) if is_waiting else _told_s(behind)
    shown = (0.0 if has_all else lag_s) if is_known else None
    return Reading(phase, status.server or "", shown, has_all)


def _told_s(behind: ReportedLag | None) -> float | None:
    return None if behind is None else behind.seconds
