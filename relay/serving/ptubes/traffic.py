"""The sessions of Ptubes' clients, and counts of what was served and refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from databus.relay.serving.ptubes.reader_tasks import ReaderTask
from databus.relay.serving.ptubes.session import Session
from databus.schemas.errors import DatabusError


class OpenSession(NamedTuple):
    """A session and the address of its client."""

    session: Session
    address: str


class Sessions:
    """The open sessions, by the key of their connection; at most one each."""

    def __init__(self) -> None:
        self._open: dict[int, OpenSession] = {}
        self._ended_bytes = self._ended_events = 0
        self.failures: Counter[tuple[str, str]] = Counter()  # by request and error

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[OpenSession]:
        return iter(list(self._open.values()))

    @property
    def bytes_sent(self) -> int:
        """Bytes of all answers to fetches."""
        return self._ended_bytes + sum(one.session.bytes_sent for one in self)

    @property
    def events_sent(self) -> int:
        """Number of events in them."""
        return self._ended_events + sum(one.session.events_sent for one in self)

    @property
    def held_bytes(self) -> int:
        """Bytes of windows that sessions hold for their clients' next fetches."""
        return sum(one.session.held_bytes for one in self)

    def begin(self, key: int, session: Session, address: str) -> None:
        """Record a session in place of the one that its connection had."""
        self.end(key)
        self._open[key] = OpenSession(session, address)

    def get(self, key: int) -> Session | None:
        """Return the session of a connection."""
        found = self._open.get(key)
        return None if found is None else found.session

    def end(self, key: int) -> None:
        """End the session of a connection, if it has one."""
        found = self._open.pop(key, None)
        if found is not None:
            found.session.disconnect()
            self._ended_bytes += found.session.bytes_sent
            self._ended_events += found.session.events_sent

    def end_of_source(self, physical_source: str, tasks: Mapping[str, ReaderTask]) -> None:
        """End the sessions that read a physical source."""
        for key, one in list(self._open.items()):
            if tasks[one.session.wanted.reader_task].physical_source == physical_source:
                self.end(key)

    def tasks_of(self, reader_task: str) -> list[str]:
        """Return the names of the clients that read a reader task."""
        wanted = [one.session.wanted for one in self]
        return sorted({one.task for one in wanted if one.reader_task == reader_task})

    def failed(self, request: str, error: DatabusError) -> None:
        """Count a request that failed."""
        self.failures[request, type(error).__name__] += 1
