"""The status of a database's log: how far capture is behind it, and when it is purged.

The probe has its own connection and thread. It also runs while capture is paused, because a
database purges its log regardless.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from databus.relay.sources.source import Newest


class Holding(StrEnum):
    """Whether the database still has what capture needs next."""

    UNKNOWN = "unknown"  # not probed yet, or the server did not answer
    HELD = "held"
    NEAR_PURGE = "near_purge"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class LogStatus:
    """The result of a probe; None = not known.

    `hours_left` is how long the server keeps the log that capture reads next: an estimate that
    is never too high while the server's clock and settings do not change, and infinite if
    nothing purges the log. `warning` tells what to do. `doubt` tells why the log may not be the
    one of the open stream; capture then opens it again.
    """

    holding: Holding = Holding.UNKNOWN
    behind_bytes: int | None = None
    behind_s: float | None = None
    hours_left: float | None = None
    warning: str = ""
    doubt: str = ""


class LogProbe(Protocol):
    """Probes one database. Used by one thread, except for `cancel`."""

    def probe(self, newest: Callable[[], Newest | None]) -> LogStatus:
        """Compare the relay's newest transaction with the database's log; raises SourceError."""
        ...

    def cancel(self) -> None:
        """Abort a probe that waits for the database. Any thread may call."""
