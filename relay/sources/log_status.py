"""How a relay stands to the database behind a source: how far it is behind, and for how long
what it has yet to read will still be there.

It is asked on another connection and another thread than those that capture,
and also while capture rests: a log is purged whoever is paused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from databus.relay.sources.source import Newest


class Holding(StrEnum):
    """Whether the database still has what capture needs next."""

    UNKNOWN = "unknown"  # not looked yet, or the server did not answer
    HELD = "held"
    NEAR_PURGE = "near_purge"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class LogStatus:
    """What a look at the database found; None = not known.

    `hours_left` is an estimate of how long the server keeps what is to be read
    next, never too long as far as its clock and its settings stay as they are;
    infinite when nothing purges it. `warning` says what to do, or nothing. `doubt` says
    why the log may not be the one that an open stream is of: it is to be opened again.
    """

    holding: Holding = Holding.UNKNOWN
    behind_bytes: int | None = None
    behind_s: float | None = None
    hours_left: float | None = None
    warning: str = ""
    doubt: str = ""


class LogProbe(Protocol):
    """Looks at one database; used by one thread but for `cancel`."""

    def probe(self, newest: Callable[[], Newest | None]) -> LogStatus:
        """Compare the newest transaction that the relay holds with what the database has.

        Raises SourceError when it cannot be asked.
        """
        ...

    def cancel(self) -> None:
        """End a look that waits for the database; any thread may call."""
