"""The status of a physical source at one moment: what API, metrics, health, page and `top` say.

Pure: `Relay.status_of` takes it, and everybody who reports on a source gets it from there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from databus.relay.capture.status import CaptureStatus, State
from databus.relay.monitoring.history import Sample
from databus.relay.sources.log_status import LogStatus

_MOST_WAITING = 10  # consumers that a text names
_NOT_PROVED_YET = "its log is being opened; whether the database is well is not known yet"
_WORST_FIRST = (
    State.ERROR,
    State.RETRYING,
    State.UNREACHABLE,
    State.STARTING,
    State.PAUSED,
    State.STOPPED,
)


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is wrong with a physical source; times are seconds since 1970."""

    physical_source: str
    state: State
    text: str
    since: float | None = None
    next_try_at: float | None = None  # None = somebody must act

    @property
    def badness(self) -> int:
        """Rank of its state: 0 is the worst."""
        return _WORST_FIRST.index(self.state)


@dataclass(frozen=True, slots=True)
class RingStatus:
    """What a ring holds. SCNs are -1, and times 0, where there is none.

    `head` and `tail` are logical positions: window `max_scn` ends at `tail`. `damage` says
    what is wrong with windows of it.
    """

    capacity_bytes: int
    head: int
    tail: int
    min_scn: int
    max_scn: int
    prev_scn: int
    oldest_ns: int
    newest_ns: int
    damage: str

    @property
    def used_bytes(self) -> int:
        """Bytes of windows held."""
        return max(0, self.tail - self.head)


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """A physical source at one moment."""

    name: str
    capture: CaptureStatus
    ring: RingStatus
    log: LogStatus
    held_requests: int
    waiting_consumers: tuple[str, ...]  # that cannot go on before an error is mended
    is_draining: bool

    @property
    def capture_problem(self) -> str:
        """What is wrong with capture, and who waits for it; "" for nothing."""
        names = self.waiting_consumers
        if not names:
            return self.capture.problem
        more = [f"{len(names) - _MOST_WAITING} more"] if len(names) > _MOST_WAITING else []
        waiting = ", ".join([*names[:_MOST_WAITING], *more])
        return f"{self.capture.problem}; these consumers wait: {waiting}"

    @property
    def problem(self) -> str:
        """What is wrong with capture, else with the ring; "" for nothing."""
        return self.capture_problem or self.ring.damage

    @property
    def warnings(self) -> int:
        """How many warnings there are of the database and its log."""
        return len(self.capture.warnings) + bool(self.log.warning)

    def troubles(self) -> Iterator[Trouble]:
        """Yield what is wrong with it: capture, and the ring."""
        capture = self.capture
        if not capture.is_well:
            text = self.capture_problem or _NOT_PROVED_YET
            yield Trouble(self.name, capture.state, text, capture.since, capture.next_try_at)
        if self.ring.damage:
            yield Trouble(self.name, State.ERROR, self.ring.damage)

    def sample(self, at: float) -> Sample:
        """Return the figures that are kept over time; `at` is in seconds since 1970."""
        capture, ring = self.capture, self.ring
        return Sample(
            at,
            capture.events,
            capture.windows,
            capture.size_bytes,
            ring.tail,
            ring.used_bytes,
            capture.known_delay_s,
            self.log.behind_s,
        )


def status_json(status: SourceStatus) -> dict[str, Any]:
    """Return a status as `/controlSources/status` and `/health` have it."""
    capture, ring, delay_s = status.capture, status.ring, status.capture.known_delay_s
    return {
        "state": capture.state.value,
        "problem": status.problem,
        "connected": capture.is_connected,
        "since": capture.since,
        "nextTryAt": capture.next_try_at,
        "heardAt": capture.heard_at,
        "scn": capture.scn,
        "timestampNs": capture.timestamp_ns,
        "delaySeconds": None if delay_s is None else round(delay_s, 6),
        "windows": capture.windows,
        "events": capture.events,
        "bytes": capture.size_bytes,
        "reconnects": capture.reconnects,
        "minScn": ring.min_scn,
        "prevScn": ring.prev_scn,
        "log": _log_json(status.log),
        "warnings": list(capture.warnings),
    }


def _log_json(log: LogStatus) -> dict[str, Any]:
    return {
        "holding": log.holding.value,
        "behindBytes": log.behind_bytes,
        "behindSeconds": log.behind_s,
        "hoursLeft": finite(log.hours_left),
        "warning": log.warning,
    }


def finite(hours: float | None) -> float | None:
    """Return hours as JSON can have them: a log that nothing purges has none to count."""
    return None if hours is None or math.isinf(hours) else hours
