"""Check whether the relay is capturing the sources that a query reads.

A relay goes on serving its ring while a source is in error, unreachable, starting,
paused or stopped. Then a query that has read everything may still lack changes of
the database. So a query asks for the capture states, at most once a second, and a
query that ends when all is read gets an error or a warning.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from databus.client.spark.planning.offsets import AtScn, Place
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
BEHIND = "behind"  # no state of the relay's own: it has less than the query has read
UNREACHABLE = "unreachable"
_EVERY_S = 1.0


class Stopped(NamedTuple):
    """The state of a physical source that is not being captured, and the reason."""

    state: str
    problem: str


def stopped_sources(server: str, answer: Any, names: Iterable[str]) -> dict[str, Stopped]:
    """Return the physical sources that a relay is not capturing, from its status.

    A source in state `retrying` is captured if it is `connected`: then the relay
    retries to save MaxSCN. Raises ServerError for a malformed status.
    """
    try:
        states = {name: _stopped(answer[name]) for name in names}
    except (KeyError, TypeError, AttributeError) as error:
        raise ServerError(server, f"its status is malformed: {error!r}") from error
    return {name: stopped for name, stopped in states.items() if stopped is not None}


def _stopped(status: Any) -> Stopped | None:
    state, problem = str(status["state"]), str(status["problem"])
    if state == RETRYING and status.get("connected") is True:
        return None
    if state == RUNNING:
        return Stopped(UNREACHABLE, problem) if problem else None
    return Stopped(state, problem)


def sources_behind(places: Mapping[str, Place], newest: Mapping[str, int]) -> dict[str, Stopped]:
    """Return the physical sources whose relay has less than a query has read of them.

    Nothing tells then whether its log is the one that was read: the newest SCN is not known.
    """
    found = {}
    for name, place in places.items():
        scn = newest.get(name)
        if scn is not None and isinstance(place, AtScn) and scn < place.scn:
            has = f"has windows up to scn {scn} only" if scn >= 0 else "has no window yet"
            problem = (
                f"the relay {has}, and this query goes on after scn {place.scn}: either it still "
                "reads its source's log again, or its source is another database, or was reset or "
                "restored. In the first case wait; else use a new target and a new checkpoint"
            )
            found[name] = Stopped(BEHIND, problem)
    return found


def stopped_error(name: str, stopped: Stopped, scn: int) -> SourceStoppedError:
    """Return the error for a query that reads up to the newest change, which is not known."""
    why = f" ({stopped.problem})" if stopped.problem else ""
    return SourceStoppedError(
        name,
        scn,
        f"its relay reports state {stopped.state}{why}: everything that the relay has is read, "
        "but the database may have newer changes; fix the source and start again, or set "
        "onStoppedSource=warn to end without an error",
    )


def still_stopped_error(name: str, stopped: Stopped, scn: int, for_s: float) -> SourceStoppedError:
    """Return the error for a query that goes on, and gets no more changes of a source."""
    why = f" ({stopped.problem})" if stopped.problem else ""
    return SourceStoppedError(
        name,
        scn,
        f"its relay has reported state {stopped.state}{why} for {for_s:.0f} s, longer than "
        "stoppedSourceSeconds: everything that the relay has is read; fix the source and start "
        "the query again, which continues",
    )


class CaptureStates:
    """Asks relays for the states of one query's physical sources."""

    def __init__(self, relays: ServerPool, clock: Callable[[], float] = time.monotonic) -> None:
        self._relays = relays
        self._clock = clock
        self._asked_s: float | None = None
        self._found: Mapping[str, Stopped] = {}

    def look(self, names: Iterable[str], *, at_once: bool = False) -> Mapping[str, Stopped]:
        """Return the sources that are not captured, as of now or up to a second ago.

        From then on, the relay that captures most of the sources is asked first.
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
        # Another relay may capture what this one does not.
        for other in self._relays.ask_others(PATH):
            try:
                theirs = stopped_sources(other.server, other.json(), names)
            except DatabusError:
                continue  # it does not have these sources, or is another project's relay
            if len(theirs) < len(found):
                best, found = other.server, theirs
        self._relays.prefer(best)
        return found
