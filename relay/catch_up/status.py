"""The status of a catch-up at one moment. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CatchUpState(StrEnum):
    """State of a catch-up."""

    QUEUED = "queued"  # as many as may run are running
    OPENING = "opening"  # the source's log is being opened, and proved to be the same
    READING = "reading"
    HELD_BACK = "held_back"  # it is far ahead of its slowest reader
    JOINED = "joined"  # it leads to what the relay holds
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Catching:
    """All catch-ups of a physical source. `opened`, `failed` and `read` count since the start.

    `scn` is the newest window of the one that is furthest behind, -1 without one.
    """

    running: int
    queued: int
    size_bytes: int
    scn: int
    opened: int
    failed: int
    read: int  # bytes of events


@dataclass(frozen=True, slots=True)
class CatchUpStatus:
    """What a catch-up has read. Missing SCNs are -1.

    It reads the windows after `begin_scn`, has read those up to `scn`, and leads to those after
    `until_scn`, which the relay holds. `readers` are held requests and those of the last seconds.
    `problem` is the one that is retried, or that ended it.
    """

    state: CatchUpState
    asked_scn: int
    begin_scn: int = -1
    scn: int = -1
    timestamp_ns: int = 0  # commit time of window `scn`
    until_scn: int = -1
    size_bytes: int = 0  # on disk
    windows: int = 0
    read_bytes: int = 0  # of events, by requests
    idle_s: float = 0.0  # since the last request
    problem: str = ""
