"""What a capture loop says of itself. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """What a capture loop is doing."""

    STARTING = "starting"  # nothing is known yet: its log is being opened and proved
    RUNNING = "running"
    UNREACHABLE = "unreachable"  # the database; tried again for ever
    RETRYING = "retrying"  # this machine lacks something, or a doubt; tried again
    PAUSED = "paused"
    STOPPED = "stopped"
    ERROR = "error"


# It is tried again by itself.
TROUBLED = frozenset({State.UNREACHABLE, State.RETRYING})
# Until somebody has it go on.
RESTING = frozenset({State.PAUSED, State.STOPPED, State.ERROR})
_NOT_WELL = TROUBLED | {State.ERROR, State.STARTING}


@dataclass(frozen=True, slots=True)
class CaptureStatus:
    """How a capture loop is, at one moment. `problem` is empty when all is well.

    Times are seconds since 1970. `is_connected`: the log is proved, and something was
    heard of the database within a few seconds; without it nobody knows how far behind
    the ring is.
    """

    state: State
    problem: str = ""
    scn: int = -1
    timestamp_ns: int = 0  # commit time of the newest window
    delay_s: float = 0.0  # from commit to ring, of the newest window with data
    windows: int = 0
    events: int = 0
    size_bytes: int = 0
    reconnects: int = 0
    warnings: tuple[str, ...] = ()  # of what the source found as it was opened last
    was_opened: bool = False  # and proved, since the start, at least once
    is_connected: bool = False
    since: float | None = None  # when this state began
    next_try_at: float | None = None  # of what is tried again
    heard_at: float | None = None  # when the database was last heard of

    @property
    def is_well(self) -> bool:
        """Whether its log was proved, or it rests by somebody's wish, and nothing is wrong."""
        return not self.problem and self.state not in _NOT_WELL

    @property
    def known_delay_s(self) -> float | None:
        """From commit to ring, as long as there is somebody to be behind."""
        return self.delay_s if self.is_connected else None
