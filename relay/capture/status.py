"""The state and status of a capture loop. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """State of a capture loop."""

    STARTING = "starting"  # its log is being opened and checked
    RUNNING = "running"
    UNREACHABLE = "unreachable"  # the database is; retried for ever
    RETRYING = "retrying"  # a problem of this machine, or an unconfirmed error; retried
    PAUSED = "paused"
    STOPPED = "stopped"
    ERROR = "error"


# States that are retried automatically.
TROUBLED = frozenset({State.UNREACHABLE, State.RETRYING})
# States that last until `start`.
RESTING = frozenset({State.PAUSED, State.STOPPED, State.ERROR})
_NOT_WELL = TROUBLED | {State.ERROR, State.STARTING}


@dataclass(frozen=True, slots=True)
class CaptureStatus:
    """Status of a capture loop at one moment. `problem` is "" if there is none.

    Times are seconds since 1970. `is_connected`: the log is proved, and the database was
    heard from within a few seconds; otherwise the lag of the ring is unknown.
    """

    state: State
    problem: str = ""
    scn: int = -1
    timestamp_ns: int = 0  # commit time of the newest window
    delay_s: float = (
        0.0  # from commit to ring, of the newest window with data; 0 when all is captured
    )
    windows: int = 0
    events: int = 0
    size_bytes: int = 0
    reconnects: int = 0
    warnings: tuple[str, ...] = ()  # found by the source at its last open, and its search
    was_opened: bool = False  # and proved, at least once since the start
    is_connected: bool = False
    since: float | None = None  # when this state began
    next_try_at: float | None = None  # if it is retried
    heard_at: float | None = None  # when the database was last heard from
    search_left_bytes: int | None = None  # of the log, which a search has yet to read

    @property
    def is_well(self) -> bool:
        """Whether there is no problem, and the log is proved or capture was paused or stopped."""
        return not self.problem and self.state not in _NOT_WELL

    @property
    def known_delay_s(self) -> float | None:
        """Delay from commit to ring; None while not connected."""
        return self.delay_s if self.is_connected else None
