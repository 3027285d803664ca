"""Whether a registration hears of its servers, and since when it does not. Pure.

Nothing may look well because nobody answers. What was answered last may have been
long ago: a request is held for seconds, and a server that is frozen takes it and says
nothing until the time is out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple


class Silence(NamedTuple):
    """Nobody answers: since when, by the clock of who keeps it, and what came of the last try."""

    since_s: float
    problem: str


class Reach:
    """What came of a registration's requests for events. Written on one thread, read on any."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._heard_s = clock()
        self.has_heard = False
        self._failed: frozenset[str] = frozenset()  # since somebody answered
        self._problem = ""

    def answered(self) -> None:
        """Note that a server answered a request for events, and well."""
        self._heard_s, self.has_heard = self._clock(), True
        self._failed, self._problem = frozenset(), ""

    def failed(self, server: str, problem: str) -> None:
        """Note that a request came to nothing."""
        self._problem = problem
        self._failed |= {server}

    def silence(self, servers: Collection[str], others: Silence | None) -> Silence | None:
        """Return since when nobody answers; None while somebody may.

        `servers` are those that are asked for events now; `others` is what somebody else
        knows who asks them things that are answered at once: as long as a request is held,
        only he can tell.
        """
        if servers and self._failed.issuperset(servers):
            return Silence(self._heard_s, self._problem)
        if others is not None and others.since_s >= self._heard_s:
            return Silence(self._heard_s, self._problem or others.problem)
        return None
