"""The clients of a relay and their positions. Pure: the time is passed in.

A client is identified by the id in its requests' header, or else by its address and user
agent. The relay keeps a fixed amount per client: the positions of its last requests, the
bytes sent to it, its last report. A client that was silent for an hour is forgotten, and if
there are too many, the one that was silent longest. One that keeps no checkpoint, as it reports,
does not come back: it is forgotten when it says goodbye, or after half a minute of silence.

A client's position is where it would continue after a crash: after its last checkpoint, as
its report says, or as the relay keeps it for the clients of another protocol. What it has
requested may stay in its buffer for hours, and is lost with its process. The position of its
requests counts only if nothing says its checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from databus.daemon.client_report import MAX_ID, ClientReport
from databus.relay.monitoring.history import RateCounter, SmoothRate

MOST_CLIENTS = 2000
MOST_STREAMS = 50  # per client: sets of sources that it reads separately
FORGOTTEN_AFTER_S = 3600.0
SILENT_AFTER_S = 30.0
_REPORTS_MISSED = 3  # a report is valid for this many intervals, and at least SILENT_AFTER_S
_STREAM_OVER_S = 2.5 * SILENT_AFTER_S  # the longest `wait`, plus SILENT_AFTER_S
DOUBT_EVERY_S = 1.0
MOST_FILTER_TEXT = 500
_MOST_AGENT = 60
_ID = re.compile(rf"[A-Za-z0-9_.:-]{{1,{MAX_ID}}}")


class Caller(NamedTuple):
    """The sender of a request."""

    id: str
    address: str
    agent: str


def caller_of(client_id: str | None, address: str, agent: str) -> Caller:
    """Return the sender of a request: by its header, or else by address and user agent."""
    agent = agent[:_MOST_AGENT]
    if client_id and _ID.fullmatch(client_id):
        return Caller(client_id, address, agent)
    return Caller(f"{address} {agent}".strip(), address, agent)


class StreamKey(NamedTuple):
    """Identity of one stream of a client."""

    physical_source: str
    src_ids: frozenset[int] | None  # None = all sources
    filters: str


class KeptKey(NamedTuple):
    """Identity of one reported registration of a client."""

    physical_source: str
    name: str
    sources: tuple[str, ...]


@dataclass(slots=True)
class Stream:
    """A client's position in one set of sources, by its last request or its report.

    `position` is the ring position at which that request began, or that of the checkpoint
    (`is_kept`); None if it is not in the ring. `scn` is None if the client requested the
    oldest window, or has no checkpoint. The answer began at `read_from` and ended at
    `read_until`, -1 without one.
    `began` is where its first request began, or its first one after ScnNotFound.
    """

    scn: int | None = None
    position: int | None = None
    read_from: int | None = None
    read_until: int = -1
    is_inside: bool = False  # it has only a part of window `scn`
    is_gone: bool = False  # the answer was ScnNotFound, or would be after a restart
    is_in_catch_up: bool = False  # it reads the source's own log, behind ring and relay log
    is_kept: bool = False
    began: int | None = None
    asked_s: float = 0.0
    doubted_s: float = -DOUBT_EVERY_S
    progress: SmoothRate = field(default_factory=SmoothRate)

    def comes_back(self, position: int, now_s: float) -> bool:
        """Return whether a request repeats a part of the last answer, which thus failed.

        True at most once in DOUBT_EVERY_S: clients without an id that share an address look like
        one that repeats itself.
        """
        if not self.is_in_last_answer(position) or now_s - self.doubted_s < DOUBT_EVERY_S:
            return False
        self.doubted_s = now_s
        return True

    def is_in_last_answer(self, position: int) -> bool:
        """Return whether the last answer had the windows at a ring position."""
        return self.read_from is not None and self.read_from <= position < self.read_until

    def has_read(self, scn: int, tail: int) -> bool:
        """Return whether it has all windows up to `scn`, the newest one, which ends at `tail`."""
        if self.position is not None and self.position >= tail:
            return True
        own = -1 if self.scn is None else self.scn
        return own > scn or (own == scn and not self.is_inside)


@dataclass(slots=True)
class Client:
    """One client; times are of the clock that is passed in.

    `kept` has the positions in its report, except those in a bootstrap. With `is_kept_here` they
    are those that the relay itself keeps; then `last_seen_s` is -inf before its first request.
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
    is_kept_here: bool = False
    last_error: str = ""
    last_error_s: float | None = None
    report: ClientReport | None = None
    reported_s: float = float("-inf")

    @property
    def name(self) -> str:
        """Its name, or else its id."""
        return self.report.name if self.report and self.report.name else self.caller.id

    def is_heard(self, now_s: float) -> bool:
        """Return whether it was heard from lately; a held request counts."""
        is_of_late = now_s - self.last_seen_s < SILENT_AFTER_S
        return self.open_requests > 0 or is_of_late or self.has_fresh_report(now_s)

    def has_fresh_report(self, now_s: float) -> bool:
        """Return whether its last report is still valid."""
        return now_s < self._report_ends_s

    @property
    def has_ended(self) -> bool:
        """Whether its last word was a goodbye."""
        report = self.report
        return report is not None and report.state == "shut_down" and not self.open_requests

    @property
    def is_passing(self) -> bool:
        """Whether it keeps no checkpoint, and so does not come back to where it was."""
        return self.report is not None and not self.report.keeps_checkpoints

    def lives_by_its_checkpoints(self, now_s: float) -> bool:
        """Return whether `kept` determines its position: its report is valid, or came last.

        A client that sends requests after its report has expired has stopped reporting.
        """
        if self.is_kept_here or self.report is None:
            return self.is_kept_here
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
        """Return a stream, and record the time of its request."""
        # Inserted again below, so that the first key is the least recently requested.
        found = self.streams.pop(key, None) or Stream()
        if len(self.streams) >= MOST_STREAMS:
            del self.streams[next(iter(self.streams))]  # the least recently requested one
        self.streams[key] = found
        found.asked_s = now_s
        return found

    def all_streams(self) -> Iterator[tuple[str, Stream]]:
        """Yield all its known positions, with their physical sources."""
        for asked, stream in self.streams.items():
            yield asked.physical_source, stream
        for kept, stream in self.kept.items():
            yield kept.physical_source, stream

    def places(self, now_s: float) -> Mapping[str, Stream]:
        """Return, by physical source, its oldest position; reported ones take precedence.

        Streams that it has stopped requesting, while it requests others, are ignored.
        """
        newest_s = self._last_asked_s
        asked = [
            (key, stream)
            for key, stream in self.streams.items()
            if newest_s - stream.asked_s <= _STREAM_OVER_S
        ]
        kept = self.kept.items() if self.lives_by_its_checkpoints(now_s) else ()
        return _furthest_behind(asked) | _furthest_behind(kept)

    def began_in(self, physical_source: str, src_ids: frozenset[int]) -> int | None:
        """Return the ring position at which it first read these sources; None if unknown."""
        found = [
            stream.began
            for key, stream in self.streams.items()
            if key.physical_source == physical_source
            and key.src_ids in (None, src_ids)
            and stream.began is not None
        ]
        return min(found, default=None)


@dataclass(frozen=True, slots=True)
class ClientNews:
    """What a client has done in another process since the last time, and has open there."""

    caller: Caller
    requests: int
    open_requests: int
    served_bytes: int
    last_seen_s: float
    streams: Mapping[StreamKey, Stream]


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
    """All recent clients. One thread."""

    def __init__(self) -> None:
        self._clients: dict[str, Client] = {}  # the least recently seen first

    def __iter__(self) -> Iterator[Client]:
        return iter(list(self._clients.values()))

    def __len__(self) -> int:
        return len(self._clients)

    def kept_scns(self, physical_source: str) -> dict[str, int]:
        """Return the oldest reported checkpoint of each client of a name."""
        found: dict[str, int] = {}
        for client in self._clients.values():
            for key, stream in client.kept.items():
                if key.physical_source == physical_source and stream.scn is not None:
                    found[client.name] = min(stream.scn, found.get(client.name, stream.scn))
        return found

    def get(self, client_id: str) -> Client | None:
        """Return a client by its id, or None."""
        return self._clients.get(client_id)

    def begin(self, caller: Caller, now_s: float) -> Client:
        """Record the start of a request; `end` must follow."""
        client = self._seen(caller, now_s)
        client.requests += 1
        client.open_requests += 1
        return client

    def end(self, client: Client, now_s: float, served_bytes: int = 0) -> None:
        """Record the end of a request."""
        client.open_requests -= 1
        client.last_seen_s = now_s
        client.served_bytes += served_bytes

    def failed(self, client: Client, now_s: float, text: str) -> None:
        """Record the error with which a request was answered."""
        client.last_error, client.last_error_s = text, now_s

    def add(self, news: ClientNews, opened: int) -> None:
        """Add what a client has done in another process; `opened` requests more are open there."""
        known = self._clients.get(news.caller.id)
        seen_s = news.last_seen_s if known is None else max(news.last_seen_s, known.last_seen_s)
        client = self._seen(news.caller, seen_s)
        client.requests += news.requests
        client.open_requests += opened
        client.served_bytes += news.served_bytes
        for key, stream in news.streams.items():
            before = client.streams.get(key)
            if before is None:
                client.stream(key, stream.asked_s)
            elif before.asked_s > stream.asked_s:
                continue
            else:
                stream.progress = before.progress
            client.streams[key] = stream

    def reported(self, caller: Caller, report: ClientReport, now_s: float) -> Client:
        """Store a client's report."""
        client = self._seen(caller, now_s)
        client.report, client.reported_s = report, now_s
        if client.has_ended and client.is_passing:
            del self._clients[caller.id]
        return client

    def keep(self, caller: Caller, now_s: float) -> Client:
        """Return a client whose checkpoints the relay keeps, whether it was heard of or not."""
        client = self._clients.get(caller.id)
        if client is None:
            client = self._seen(caller, now_s)
            client.last_seen_s = float("-inf")
        client.is_kept_here = True
        return client

    def keep_no_more(self, client_id: str) -> None:
        """Forget the checkpoints of a client that has unsubscribed, or is served elsewhere."""
        client = self._clients.get(client_id)
        if client is not None:
            client.is_kept_here, client.kept = False, {}

    def tick(self, now_s: float) -> None:
        """Once a second: sample the positions, and forget clients that were silent too long."""
        for client in list(self._clients.values()):
            patience_s = SILENT_AFTER_S if client.is_passing else FORGOTTEN_AFTER_S
            is_silent = now_s - client.last_seen_s > patience_s
            if is_silent and client.open_requests == 0 and not client.is_kept_here:
                del self._clients[client.caller.id]
                continue
            client.served.tick(now_s, client.served_bytes)
            for _, stream in client.all_streams():
                if stream.position is not None:
                    stream.progress.tick(now_s, stream.position)

    def forget_positions(self, physical_source: str) -> None:
        """Forget all positions in a ring that was emptied."""
        for client in self._clients.values():
            for name, stream in client.all_streams():
                if name == physical_source:
                    stream.position, stream.began, stream.progress = None, None, SmoothRate()
                    stream.read_from = None

    def waiting_for(self, physical_source: str, scn: int, tail: int, now_s: float) -> list[str]:
        """Return the names of recent clients that have not consumed all windows up to `scn`.

        `scn` is the newest window, which ends at `tail`. For clients that report, windows
        that were read but not consumed count as missing.
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
        """Return the names of recent clients that read a physical source."""
        return sorted(
            client.name
            for client in self
            if client.is_heard(now_s) and physical_source in client.places(now_s)
        )

    def _seen(self, caller: Caller, now_s: float) -> Client:
        # Removed and inserted again, which keeps the dict in order of last contact.
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
        """Forget the client that was silent longest, preferably one without open requests."""
        idle = (client for client in self._clients.values() if client.open_requests == 0)
        found = next(idle, None) or next(iter(self._clients.values()))
        del self._clients[found.caller.id]
