"""The sessions: one entry for each client and set of sources. Pure: the clock is passed in.

The protocol has no sessions; each request is complete in itself. This table is for
monitoring only: its size is bounded and its entries expire.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from databus.schemas.errors import DatabusError

MOST_SESSIONS = 1000
FORGET_S = 3600.0
_ID = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_MAX_TEXT = 200
_MAX_SOURCES = 50


class ServedPhase(StrEnum):
    """The phase of a client's bootstrap."""

    STARTING = "starting"  # has requested a start SCN
    SNAPSHOT = "snapshot"
    CATCH_UP = "catchup"
    FINISHED = "finished"  # has received the last page of its catch-up


class Caller(NamedTuple):
    """The sender of a request: the id that it sends, or else its address and program."""

    id: str
    address: str
    agent: str


def caller_of(client_id: str, address: str, agent: str) -> Caller:
    """Return the caller, from the request's headers and address."""
    agent = agent[:_MAX_TEXT]
    known = client_id if _ID.fullmatch(client_id) else f"{address} {agent}"[:_MAX_TEXT].rstrip()
    return Caller(known, address, agent)


@dataclass(slots=True)
class Session:
    """What one client was sent of some sources. Times are wall-clock times."""

    caller: Caller
    sources: tuple[str, ...]
    first_seen_s: float
    last_seen_s: float
    phase: ServedPhase = ServedPhase.STARTING
    snapshot_source: str = ""
    start_scn: int = -1
    target_scn: int = -1
    pages: int = 0
    rows: int = 0
    size_bytes: int = 0
    problem: str = ""  # why the last request was refused


class Sessions:
    """The clients of the last hour. For one thread."""

    def __init__(
        self,
        wall_s: Callable[[], float],
        most: int = MOST_SESSIONS,
        forget_s: float = FORGET_S,
    ) -> None:
        self._wall_s = wall_s
        self._most = most
        self._forget_s = forget_s
        # In the order of their last requests.
        self._sessions: dict[tuple[str, tuple[str, ...]], Session] = {}

    @contextmanager
    def asking(self, caller: Caller, sources: Sequence[str]) -> Iterator[Session]:
        """Yield the session of a request; record the error if the request is refused."""
        session = self._find(caller, tuple(sources[:_MAX_SOURCES]))
        try:
            yield session
        except DatabusError as error:
            session.problem = str(error)[:_MAX_TEXT]
            raise
        session.problem = ""

    def set_target(self, caller: Caller, source: str, scn: int) -> None:
        """Record the target SCN of the caller's sessions; one that starts there is finished."""
        for session in self._sessions.values():
            if session.caller.id == caller.id and source in session.sources:
                session.target_scn, session.last_seen_s = scn, self._wall_s()
                if session.phase is ServedPhase.SNAPSHOT and session.start_scn == scn:
                    session.phase = ServedPhase.FINISHED

    def look(self) -> list[Session]:
        """Return all sessions, the most recent first."""
        self._forget()
        return sorted(self._sessions.values(), key=lambda s: s.last_seen_s, reverse=True)

    def _find(self, caller: Caller, sources: tuple[str, ...]) -> Session:
        now_s = self._wall_s()
        key = caller.id, sources
        # Popped and inserted again, so that the dict stays in the order of the last requests.
        session = self._sessions.pop(key, None) or Session(caller, sources, now_s, now_s)
        session.caller, session.last_seen_s = caller, now_s
        self._sessions[key] = session
        self._forget()
        return session

    def _forget(self) -> None:
        oldest_s = self._wall_s() - self._forget_s
        while self._sessions:
            key = next(iter(self._sessions))
            is_old = self._sessions[key].last_seen_s < oldest_s
            if not is_old and len(self._sessions) <= self._most:
                return
            del self._sessions[key]
