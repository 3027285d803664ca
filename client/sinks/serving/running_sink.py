"""One sink of a settings file: its client, and a feed for each physical source that it reads.

Relays are asked now and then what they capture: a new source that the sink's patterns match is read
from its beginning, as soon as the sink has come so far.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from databus.client.client import DatabusClient
from databus.client.sinks.contract import Change, Position
from databus.client.sinks.errors import UnknownSinkError
from databus.client.sinks.rules.beginnings import known_scn, with_known
from databus.client.sinks.running.feed import STOP_S, Feed, FeedStatus, OnAlert, SinkState
from databus.client.sinks.running.plan import SinkPlan
from databus.client.sinks.running.stream import ClientStream
from databus.client.sinks.serving.discovery import RelayLook, chosen
from databus.client.sinks.serving.letter_count import LetterCount
from databus.client.sinks.serving.positions import PositionFile, SinkCheckpoints
from databus.client.sinks.serving.reading import Reading, reading_of
from databus.client.sinks.serving.reporting import with_sink
from databus.client.sinks.serving.sink_settings import client_settings
from databus.conf.sink_settings import SinksSettings
from databus.daemon.client_report import ClientReport
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import DatabusError

log = logging.getLogger(__name__)

LOOK_EVERY_S = 2.0
# The state of a sink is that of the worst of its feeds.
_WORST_FIRST = (
    SinkState.STOPPED,
    SinkState.FAILING,
    SinkState.PAUSED,
    SinkState.STARTING,
    SinkState.RUNNING,
    SinkState.ENDED,
    SinkState.DONE,
)
_OVER = (SinkState.ENDED, SinkState.DONE)


class RunningSink:
    """Starts and ends feeds. Thread-safe."""

    def __init__(
        self,
        plan: SinkPlan,
        settings: SinksSettings,
        positions: PositionFile,
        on_alert: OnAlert | None = None,
        look_every_s: float = LOOK_EVERY_S,
        *,
        is_paused: bool = False,
    ) -> None:
        """Raises SettingsError."""
        self.plan = plan
        self.problem = ""  # why it is not known what it reads
        self.is_paused = is_paused
        letters = plan.dead_letters
        self.dead_letters = LetterCount(None if letters is None else letters.path, plan.name)
        own = client_settings(settings, plan.settings)
        self._positions = positions
        self._store = SinkCheckpoints(positions, plan.name, self._own)
        self._client = _SinkClient(self._told, settings=own, checkpoints=self._store)
        self._look = RelayLook(own)
        self._on_alert, self._look_every_s = on_alert, look_every_s
        self._lock = threading.Lock()
        self._feeds: dict[str, Feed] = {}
        self._streams: dict[str, ClientStream] = {}
        self._replaced: Feed | None = None  # it ends, and another goes on in its place
        self._ending = threading.Event()
        self._is_refused = False
        self._watcher = threading.Thread(
            target=self._watch, name=f"databus-sink-{plan.name}-sources", daemon=True
        )

    def start(self) -> None:
        """Begin to look for its sources, and to read them."""
        self._client.start()
        self._look.start()
        self._watcher.start()

    def stop(self, timeout_s: float = STOP_S) -> None:
        """End, after a last attempt to write what is held."""
        self._ending.set()
        if self._watcher.is_alive():
            self._watcher.join()
        for feed in self.feeds:
            feed.stop(timeout_s)
        self._look.stop()
        self._client.stop()

    @property
    def feeds(self) -> list[Feed]:
        """Its feeds."""
        with self._lock:
            return list(self._feeds.values())

    @property
    def state(self) -> SinkState:
        """Its state."""
        states = set(map(self._state_of, self.feeds))
        if self._is_refused:
            return SinkState.STOPPED
        if not states:
            if self.is_paused:
                return SinkState.PAUSED
            return SinkState.FAILING if self.problem else SinkState.STARTING
        return next(one for one in _WORST_FIRST if one in states)

    def _state_of(self, feed: Feed) -> SinkState:
        is_over = feed.state in _OVER
        return SinkState.STARTING if is_over and feed is self._replaced else feed.state

    @property
    def status(self) -> list[FeedStatus]:
        """How each of its feeds is."""
        return [feed.status for feed in self.feeds]

    def reading(self, physical: str) -> Reading:
        """How it reads a physical source."""
        return reading_of(self._client, physical)

    def pause(self) -> None:
        """Read and write nothing more, until `resume`."""
        with self._lock:
            self.is_paused = True
            for feed in self._feeds.values():
                feed.pause()

    def resume(self) -> None:
        """Go on after `pause`."""
        with self._lock:
            self.is_paused = False
            for feed in self._feeds.values():
                feed.resume()

    def retry(self) -> None:
        """Try again now what fails, also after the last retry."""
        for feed in self.feeds:
            feed.retry()

    def skip_row(self, physical: str, id: str) -> Change | None:
        """Drop the row of this `id`, which fails; as `Feed.skip_row` does it.

        Raises UnknownSinkError, and SinkError if this row does not fail.
        """
        with self._lock:
            feed = self._feeds.get(physical)
        if feed is None:
            raise UnknownSinkError(f"{self.plan.name} reads no physical source {physical}")
        return feed.skip_row(id)

    def _told(self, report: ClientReport) -> ClientReport:
        return with_sink(report, self.state, self.status, self.problem)

    def _own(self, physical: str) -> Position | None:
        with self._lock:
            feed = self._feeds.get(physical)
        return None if feed is None else feed.reached

    def _watch(self) -> None:
        while True:
            try:
                found = chosen(self.plan.settings.sources, self._look.sources())
                conflict = self._conflict(found)
                self._is_refused = bool(conflict)
                if not conflict:
                    self._take(found)
                self._tell(conflict)
            except DatabusError as error:
                self._tell(str(error))
            except Exception as error:  # the next look may be better, and the feeds go on
                log.exception("%s: looking for sources failed", self.plan.name)
                self._tell(repr(error))
            if self._ending.wait(self._look_every_s):
                return

    def _tell(self, problem: str) -> None:
        if problem and problem != self.problem:
            if self._is_refused:
                log.error("%s: stopped: %s", self.plan.name, problem)
            elif not self.feeds:
                log.warning("%s: waiting: %s", self.plan.name, problem)
        self.problem = problem

    def _conflict(self, found: Mapping[str, tuple[str, ...]]) -> str:
        """Return why these sources cannot be of one sink, or ""."""
        physical_sources = {*found, *self._streams}
        if len(physical_sources) <= 1 or not self.plan.has_one_position:
            return ""
        return (
            f"its sources are of {len(physical_sources)} physical sources, "
            f"{', '.join(sorted(physical_sources))}, and the target of a sink "
            f"{self.plan.settings.kind!r} keeps one position: make a sink of each, with a place of "
            "its own"
        )

    def _take(self, found: Mapping[str, tuple[str, ...]]) -> None:
        for physical, names in found.items():
            stream = self._streams.get(physical)
            if stream is None:
                self._begin(physical, self._read_before(physical, names))
                continue
            feed = self._feeds[physical]
            if feed is self._replaced and self._has_ended(feed):  # the next could not begin
                self._begin(physical, stream.sources)
            more = sorted({*stream.sources, *names})
            if len(more) > len(stream.sources):
                self._extend(physical, stream, tuple(more))

    def _read_before(self, physical: str, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the sources that belong to the stored position; others follow by `_extend`."""
        stored = self._positions.load(self.plan.name, physical)
        known = [name for name in names if stored is not None and name in stored.sources]
        return tuple(known) or names

    def _extend(self, physical: str, stream: ClientStream, names: tuple[str, ...]) -> None:
        """Read more sources, from their first change on.

        The sink has passed that place by now. So it goes back there, and leaves out what it has:
        the changes of the other sources up to where it was. Transactions stay whole.
        """
        feed = self._feeds[physical]
        since = self._oldest([name for name in names if name not in stream.sources])
        first = min(since.values(), default=None)
        if first is None or feed.state is not SinkState.RUNNING or not _is_behind(stream, first):
            return  # later: it has not come so far yet
        # One begin after the other: a place has all of several tables only if the newest has begun.
        new = [name for name, scn in since.items() if scn == first]
        self._replaced = feed
        if not self._has_ended(feed):
            return  # what it writes late would be in the way of the next
        stored = stream.load()
        assert stored is not None
        log.info("%s: reads %s from its first change on", self.plan.name, ", ".join(new))
        # The relay finds the place: since when all of these sources are captured.
        begin = with_known(Checkpoint.flexible(), self._written(feed, stored), stream.sources)
        read = tuple(sorted({*stream.sources, *new}))
        self._begin(physical, read, Position(physical, begin))

    def _has_ended(self, feed: Feed) -> bool:
        """End a feed; return whether nothing of it runs any more."""
        feed.stop()
        return feed.state in _OVER

    def _written(self, feed: Feed, stored: Position) -> int:
        """Return the SCN up to which the target has everything: what is stored may be behind it."""
        reached = feed.reached if self.plan.settings.lanes == 1 else None
        return stored.scn if reached is None else max(stored.scn, reached.scn)

    def _oldest(self, new: Sequence[str]) -> dict[str, int]:
        """Return the SCN of the oldest window with changes of each, if a relay has it."""
        asked = ((name, self._look.oldest_scn([name])) for name in new)
        return {name: scn for name, scn in asked if scn is not None}

    def _begin(self, physical: str, names: tuple[str, ...], begin: Position | None = None) -> None:
        stream = ClientStream(self._client, self._store, physical, names, physical)
        self._store.expect(physical, names)
        if begin is not None:
            stream.begin_at(begin)
        feed = Feed(self.plan, stream, time.monotonic, self._on_alert)
        with self._lock:
            self._streams[physical], self._feeds[physical] = stream, feed
            self._replaced = None
            if self.is_paused:
                feed.pause()
        feed.start()


class _SinkClient(DatabusClient):
    """A client whose relays are told how its sink is."""

    def __init__(self, told: Callable[[ClientReport], ClientReport], **settings: Any) -> None:
        super().__init__(**settings)
        self._told = told

    def report(self) -> ClientReport:
        """Return the report, with the state of the sink."""
        return self._told(super().report())


def _is_behind(stream: ClientStream, oldest: int) -> bool:
    """Whether nothing lies between a window and the stored position, which is on no way back."""
    stored = stream.load()
    if stored is None or stored.checkpoint.is_bootstrap:
        return False
    return stored.scn >= max(oldest - 1, known_scn(stored.checkpoint))
