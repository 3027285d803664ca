"""Whether a relay captures what a query reads: the newest window is the newest only while it does.

A source that is in error, out of reach, not opened yet, paused or stopped leaves its relay
serving what it has, and "all of that is read" says nothing of the database. So
a query asks, once a second at most, and who ends when all is read is told.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from databus.client.spark.planning.server_pool import ServerPool
from databus.schemas.errors import (
    DatabusError,
    ServerError,
    SourceStoppedError,
    UnknownCommandError,
)

PATH = "/controlSources/status"
STARTING = "starting"
RUNNING = "running"
RETRYING = "retrying"
UNREACHABLE = "unreachable"
_EVERY_S = 1.0


class Stopped(NamedTuple):
    """How a physical source is that is not captured now, and why."""

    state: str
    problem: str


def stopped_sources(server: str, answer: Any, names: Iterable[str]) -> dict[str, Stopped]:
    """Return those of some physical sources that a relay does not capture, by its own words.

    One that is `retrying` may be captured meanwhile, when it is something else that is
    tried: to save MaxSCN. `connected` tells. Raises ServerError for an answer that makes
    no sense.
    """
    try:
        told = {name: _stopped(answer[name]) for name in names}
    except (KeyError, TypeError, AttributeError) as error:
        raise ServerError(server, f"its status makes no sense: {error!r}") from error
    return {name: stopped for name, stopped in told.items() if stopped is not None}


def _stopped(status: Any) -> Stopped | None:
    state, problem = str(status["state"]), str(status["problem"])
    if state == RETRYING and status.get("connected") is True:
        return None
    if state == RUNNING:
        return Stopped(UNREACHABLE, problem) if problem else None
    return Stopped(state, problem)


def stopped_error(name: str, stopped: Stopped, scn: int) -> SourceStoppedError:
    """Return the error of a query that was to read up to the newest, which nobody knows."""
    why = f" ({stopped.problem})" if stopped.problem else ""
    return SourceStoppedError(
        name,
        scn,
        f"its relay says {stopped.state}{why}: all that the relay has is read, and what the "
        "database has beyond that is not known; mend the source and start again, or set "
        "onStoppedSource=warn to end without an error",
    )


class CaptureStates:
    """Asks relays how the physical sources of one query are."""

    def __init__(self, relays: ServerPool, clock: Callable[[], float] = time.monotonic) -> None:
        self._relays = relays
        self._clock = clock
        self._asked_s: float | None = None
        self._found: Mapping[str, Stopped] = {}

    def look(self, names: Iterable[str], *, at_once: bool = False) -> Mapping[str, Stopped]:
        """Return those that are not captured, as of now or a second ago.

        Of several relays the one that captures most is asked first from then on.
        """
        now_s = self._clock()
        if at_once or self._asked_s is None or now_s - self._asked_s >= _EVERY_S:
            self._found = self._ask(list(names))
            self._asked_s = now_s
        return self._found

    def _ask(self, names: list[str]) -> Mapping[str, Stopped]:
        try:
            answer = self._relays.get(PATH, {})
        except DatabusError as error:
            if isinstance(error, UnknownCommandError):
                return {}
            raise
        found = stopped_sources(answer.server, answer.json(), names)
        if not found:
            return found
        best = answer.server
        for other in self._relays.ask_others(PATH):
            try:
                theirs = stopped_sources(other.server, other.json(), names)
            except DatabusError:
                continue  # it does not know them, or is of another make
            if len(theirs) < len(found):
                best, found = other.server, theirs
        self._relays.prefer(best)
        return found
