"""Whether a registration's servers answer, and since when they do not. Pure.

A client must not look healthy while no server answers. The time of the last answer alone
does not tell: a request may be held for seconds, and a frozen server accepts it and sends
nothing until the timeout.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple


class Silence(NamedTuple):
    """No server answers: since when (clock of the recorder), and the last error."""

    since_s: float
    problem: str


class Reachability:
    """Results of a registration's event requests. Written on one thread, read on any."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._heard_s = clock()
        self.has_heard = False
        self._failed: frozenset[str] = frozenset()  # servers that failed since the last answer
        self._problem = ""

    def answered(self) -> None:
        """Record a successful answer to an event request."""
        self._heard_s, self.has_heard = self._clock(), True
        self._failed, self._problem = frozenset(), ""

    def failed(self, server: str | None, problem: str) -> None:
        """Record a failed request; `server` is None if there is none to ask."""
        self._problem = problem
        self._failed |= {server or ""}

    def silence(self, servers: Collection[str], others: Silence | None) -> Silence | None:
        """Return the silence of all servers; None while one of them may answer.

        `servers` are those that are asked for events now. `others` is the silence seen by
        requests that servers answer at once (the reporter's): while an event request is
        held, only those can tell.
        """
        if self._failed and self._failed.issuperset(servers):
            return Silence(self._heard_s, self._problem)
        if others is not None and others.since_s >= self._heard_s:
            return Silence(self._heard_s, self._problem or others.problem)
        return None
