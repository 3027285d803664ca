"""Who reads from a relay, and how far each of them is. Pure: the time is passed in.

A client is known by the id in its requests' header, or else by its address and
what program it says it is. Of each one the relay keeps a fixed amount: where
its last requests began, how much it was sent, what it says of itself. A client
that was not heard of for an hour is forgotten, and when there are too many, the
one that was silent for longest.

A client's place is where it would go on after a crash: after its newest checkpoint,
as its report says. What it has asked for may lie in its buffer for hours, and is
gone with its process. Only of a client that reports nothing does what it asks for count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from databus.daemon.client_report import MAX_ID, ClientReport
from databus.relay.monitoring.history import RateCounter

MOST_CLIENTS = 2000
MOST_STREAMS = 50  # of one client: sets of sources that it reads apart
FORGOTTEN_AFTER_S = 3600.0
SILENT_AFTER_S = 30.0
_REPORTS_MISSED = 3  # so many intervals, and SILENT_AFTER_S at least, does a report count
_STREAM_OVER_S = 2.5 * SILENT_AFTER_S  # the longest `wait`, and as long as a client may be silent
MOST_FILTER_TEXT = 500
_MOST_AGENT = 60
_ID = re.compile(rf"[A-Za-z0-9_.:-]{{1,{MAX_ID}}}")


class Caller(NamedTuple):
    """Who sent a request."""

    id: str
    address: str
    agent: str


def caller_of(client_id: str | None, address: str, agent: str) -> Caller:
    """Return who sent a request, by its header; by address and program when there is none."""
    agent = agent[:_MOST_AGENT]
    if client_id and _ID.fullmatch(client_id):
        return Caller(client_id, address, agent)
    return Caller(f"{address} {agent}".strip(), address, agent)


class StreamKey(NamedTuple):
    """What tells one stream of a client from another."""

    physical_source: str
    src_ids: frozenset[int] | None  # None = all of it
    filters: str


class KeptKey(NamedTuple):
    """What tells one reported registration of a client from another."""

    physical_source: str
    name: str
    sources: tuple[str, ...]


@dataclass(slots=True)
class Stream:
    """How far a client is with one set of sources: as its last request said, or its report.

    `position` is where in the ring that request began, or what follows the
    checkpoint (`is_kept`), None when the ring did not have it; `scn` is None when it
    asked for whatever is oldest, or has no checkpoint. The answer had what lies
    before `read_until`, -1 when there was none. `began` is where the first request
    of all began, or the first one after it was answered ScnNotFound.
    """

    scn: int | None = None
    position: int | None = None
    read_until: int = -1
    is_inside: bool = False  # has a part of window `scn` only
    is_gone: bool = False  # the answer was ScnNotFound, or would be after a restart
    is_kept: bool = False
    began: int | None = None
    asked_s: float = 0.0
    progress: RateCounter = field(default_factory=RateCounter)

    def comes_back(self, position: int) -> bool:
        """Say whether a request begins with what the last answer had: it did not get on with it."""
        return self.position is not None and self.position <= position < self.read_until

    def has_read(self, scn: int, tail: int) -> bool:
        """Say whether it has all up to a window, the newest of the ring, which ends at `tail`."""
        if self.position is not None and self.position >= tail:
            return True
        own = -1 if self.scn is None else self.scn
        return own > scn or (own == scn and not self.is_inside)


@dataclass(slots=True)
class Client:
    """One client; times are of the clock that is passed in.

    `kept` has its places by its report, those in bootstraps left out.
    """

    caller: Caller
    first_seen_s: float
    last_seen_s: float
    requests: int = 0
    open_requests: int = 0
    served_bytes: int = 0
    served: RateCounter = field(default_factory=RateCounter)
    streams: dict[StreamKey, Stream] = field(default_factory=dict)
    kept: dict[KeptKey, Stream] = field(default_factory=dict)
    last_error: str = ""
    last_error_s: float | None = None
    report: ClientReport | None = None
    reported_s: float = float("-inf")

    @property
    def name(self) -> str:
        """What people call it."""
        return self.report.name if self.report and self.report.name else self.caller.id

    def is_heard(self, now_s: float) -> bool:
        """Say whether it was heard of lately; a request that is held counts."""
        is_of_late = now_s - self.last_seen_s < SILENT_AFTER_S
        return self.open_requests > 0 or is_of_late or self.has_fresh_report(now_s)

    def has_fresh_report(self, now_s: float) -> bool:
        """Say whether what it tells of itself is of now."""
        return now_s < self._report_ends_s

    def lives_by_its_report(self, now_s: float) -> bool:
        """Say whether its report says where it is: a fresh one, or the last that was heard of it.

        Who has asked for something since his last report ran out reports no more.
        """
        if self.report is None:
            return False
        return self.has_fresh_report(now_s) or self._last_asked_s < self._report_ends_s

    @property
    def _report_ends_s(self) -> float:
        if self.report is None:
            return float("-inf")
        return self.reported_s + max(SILENT_AFTER_S, _REPORTS_MISSED * self.report.every_s)

    @property
    def _last_asked_s(self) -> float:
        return max((stream.asked_s for stream in self.streams.values()), default=float("-inf"))

    def stream(self, key: StreamKey, now_s: float) -> Stream:
        """Return a stream of it, noting that it was asked for."""
        found = self.streams.pop(key, None) or Stream()
        if len(self.streams) >= MOST_STREAMS:
            del self.streams[next(iter(self.streams))]  # the one that was not asked for longest
        self.streams[key] = found
        found.asked_s = now_s
        return found

    def all_streams(self) -> Iterator[tuple[str, Stream]]:
        """Yield all that is known of where it is, each with its physical source."""
        for asked, stream in self.streams.items():
            yield asked.physical_source, stream
        for kept, stream in self.kept.items():
            yield kept.physical_source, stream

    def places(self, now_s: float) -> Mapping[str, Stream]:
        """Return, by physical source, where it is furthest behind, by its report where it has one.

        Streams that it does not ask for any more while it asks for others count no more.
        """
        newest_s = self._last_asked_s
        asked = [
            (key, stream)
            for key, stream in self.streams.items()
            if newest_s - stream.asked_s <= _STREAM_OVER_S
        ]
        kept = self.kept.items() if self.lives_by_its_report(now_s) else ()
        return _furthest_behind(asked) | _furthest_behind(kept)

    def began_in(self, physical_source: str, src_ids: frozenset[int]) -> int | None:
        """Return where it first began to read sources; None when it has not, as far as is known."""
        found = [
            stream.began
            for key, stream in self.streams.items()
            if key.physical_source == physical_source
            and key.src_ids in (None, src_ids)
            and stream.began is not None
        ]
        return min(found, default=None)


def _furthest_behind(
    streams: Iterable[tuple[StreamKey | KeptKey, Stream]],
) -> dict[str, Stream]:
    found: dict[str, Stream] = {}
    for key, stream in streams:
        other = found.get(key.physical_source)
        if other is None or _rank(stream) < _rank(other):
            found[key.physical_source] = stream
    return found


def _rank(stream: Stream) -> tuple[int, int]:
    if stream.is_gone:
        return 0, 0
    return (2, stream.scn or 0) if stream.position is None else (1, stream.position)


class ClientTable:
    """All clients of late. One thread."""

    def __init__(self) -> None:
        self._clients: dict[str, Client] = {}  # in the order in which they were last seen

    def __iter__(self) -> Iterator[Client]:
        return iter(list(self._clients.values()))

    def __len__(self) -> int:
        return len(self._clients)

    def get(self, client_id: str) -> Client | None:
        """Return a client by its id."""
        return self._clients.get(client_id)

    def begin(self, caller: Caller, now_s: float) -> Client:
        """Note a request that is about to be answered; `end` must follow."""
        client = self._seen(caller, now_s)
        client.requests += 1
        client.open_requests += 1
        return client

    def end(self, client: Client, now_s: float, served_bytes: int = 0) -> None:
        """Note that a request was answered, or let go of."""
        client.open_requests -= 1
        client.last_seen_s = now_s
        client.served_bytes += served_bytes

    def failed(self, client: Client, now_s: float, text: str) -> None:
        """Note the error that a request was answered with."""
        client.last_error, client.last_error_s = text, now_s

    def reported(self, caller: Caller, report: ClientReport, now_s: float) -> Client:
        """Keep what a client tells of itself."""
        client = self._seen(caller, now_s)
        client.report, client.reported_s = report, now_s
        return client

    def tick(self, now_s: float) -> None:
        """Once a second: note how far everybody is, forget who was silent for long."""
        for client in list(self._clients.values()):
            if client.open_requests == 0 and now_s - client.last_seen_s > FORGOTTEN_AFTER_S:
                del self._clients[client.caller.id]
                continue
            client.served.tick(now_s, client.served_bytes)
            for _, stream in client.all_streams():
                if stream.position is not None:
                    stream.progress.tick(now_s, stream.position)

    def forget_positions(self, physical_source: str) -> None:
        """Forget where in a ring clients are: it was emptied, and counts anew."""
        for client in self._clients.values():
            for name, stream in client.all_streams():
                if name == physical_source:
                    stream.position, stream.began, stream.progress = None, None, RateCounter()

    def waiting_for(self, physical_source: str, scn: int, tail: int, now_s: float) -> list[str]:
        """Return the names of clients heard of lately that are not done up to an SCN.

        What those that report have read and not consumed is not done. `tail` is where its
        window ends, the newest of the ring.
        """
        return [
            client.name
            for client in self
            if client.is_heard(now_s)
            and (place := client.places(now_s).get(physical_source)) is not None
            and (place.is_kept or not place.is_gone)
            and not place.has_read(scn, tail)
        ]

    def readers_of(self, physical_source: str, now_s: float) -> list[str]:
        """Return the names of clients heard of lately that read a physical source."""
        return sorted(
            client.name
            for client in self
            if client.is_heard(now_s) and physical_source in client.places(now_s)
        )

    def _seen(self, caller: Caller, now_s: float) -> Client:
        client = self._clients.pop(caller.id, None)
        if client is None:
            client = Client(caller, now_s, now_s)
            if len(self._clients) >= MOST_CLIENTS:
                self._make_room()
        client.caller = caller
        client.last_seen_s = now_s
        self._clients[caller.id] = client
        return client

    def _make_room(self) -> None:
        """Forget the one that was silent for longest, and answers no request now."""
        idle = (client for client in self._clients.values() if client.open_requests == 0)
        found = next(idle, None) or next(iter(self._clients.values()))
        del self._clients[found.caller.id]
