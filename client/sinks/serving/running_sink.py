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
from databus.client.sinks.contract import Change, Position, as_beginning
from databus.client.sinks.errors import UnknownSinkError
from databus.client.sinks.reloading.requests import ReloadFile
from databus.client.sinks.reloading.sink_reloads import SinkReloads
from databus.client.sinks.rules.beginnings import known_scn, with_known
from databus.client.sinks.running.feed import STOP_S, Feed, FeedStatus, OnAlert, SinkState
from databus.client.sinks.running.plan import SinkPlan
from databus.client.sinks.running.session import Session
from databus.client.sinks.running.stream import ClientStream
from databus.client.sinks.serving.discovery import RelayLook, chosen
from databus.client.sinks.serving.letter_count import LetterCount
from databus.client.sinks.serving.positions import PositionFile, SinkCheckpoints
from databus.client.sinks.serving.reading import Reading, reading_of
from databus.client.sinks.serving.reporting import with_sink
from databus.client.sinks.serving.sink_settings import client_settings
from databus.conf.named_places import Word, parse_place
from databus.conf.sink_settings import SinksSettings
from databus.daemon.client_report import ClientReport, SinkReport
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import DatabusError, NoAnswerError

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


class RunningSink:
    """Starts and ends feeds. Thread-safe."""

    def __init__(
        self,
        plan: SinkPlan,
        settings: SinksSettings,
        positions: PositionFile,
        reloads: ReloadFile,
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
        self._start = parse_place(own.start)
        self._wants_all = self._start is Word.BEGINNING
        self._waits_since_s: float | None = None  # for the first relay that answers
        self._positions = positions
        self._store = SinkCheckpoints(positions, plan.name, self._own)
        self._client = _SinkClient(self._told, settings=own, checkpoints=self._store)
        self._look = RelayLook(own)
        self.reloads = SinkReloads(plan.name, reloads, own, plan.rule_of, self._target_of)
        self._on_alert, self._look_every_s = on_alert, look_every_s
        self._lock = threading.Lock()
        self._feeds: dict[str, Feed] = {}
        self._streams: dict[str, ClientStream] = {}
        self._replaced: Feed | None = None  # it ends, and another goes on in its place
        self._ending = threading.Event()
        self._is_refused = False
        self._lacks: dict[str, str] = {}  # physical source → why it does not read a table of it
        self._watcher = threading.Thread(
            target=self._watch, name=f"databus-sink-{plan.name}-sources", daemon=True
        )

    def start(self) -> None:
        """Begin to look for its sources, and to read them."""
        self._client.start()
        self._look.start()
        self._watcher.start()
        self.reloads.start()

    def stop(self, timeout_s: float = STOP_S) -> None:
        """End, after a last attempt to write what is held."""
        self._ending.set()
        if self._watcher.is_alive():
            self._watcher.join()
        self.reloads.end()
        for feed in self.feeds:
            feed.stop(timeout_s)
        self.reloads.join()
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
        if self._lacks and not self.is_paused:
            states.add(SinkState.FAILING)
        return next(one for one in _WORST_FIRST if one in states)

    def _state_of(self, feed: Feed) -> SinkState:
        is_replaced = feed is self._replaced and feed.state.is_over
        return SinkState.STARTING if is_replaced else feed.state

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
        return self._feed(physical).skip_row(id)

    def find_row(self, physical: str) -> None:
        """Look for the row that fails; as `Feed.find_row` does it.

        Raises UnknownSinkError, and SinkError if no row is to blame.
        """
        self._feed(physical).find_row()

    def _feed(self, physical: str) -> Feed:
        with self._lock:
            feed = self._feeds.get(physical)
        if feed is None:
            raise UnknownSinkError(f"{self.plan.name} reads no physical source {physical}")
        return feed

    def _target_of(self, source: str) -> Session | None:
        return next((one.session for one in self.feeds if source in one.sources), None)

    def _told(self, report: ClientReport) -> ClientReport:
        statuses = self.status
        sink = SinkReport(
            kind=self.plan.settings.kind[:200],
            state=self.state,
            skipped=sum(one.skipped for one in statuses),
            dead_letters=self.dead_letters.now(),
        )
        return with_sink(report, sink, statuses, self.problem)

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
                self._tell(conflict or "; ".join(self._lacks.values()))
            except DatabusError as error:
                if isinstance(error, NoAnswerError) and not self._streams:
                    self._waits_since_s = self._waits_since_s or time.time()
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
            elif not self.feeds or self._lacks:
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
            read = () if stream is None else stream.sources
            if stream is None and (first := self._first(physical, names)):
                self._begin(physical, first, self._since_start(physical, first))
            elif stream is not None and self._feeds[physical] is self._replaced:
                if self._has_ended(self._feeds[physical]):  # the next could not begin
                    self._begin(physical, stream.sources)
            elif more := [name for name in names if name not in read]:
                self._extend(physical, stream, more)
            else:
                self._lacks.pop(physical, None)

    def _first(self, physical: str, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the sources to begin with; others follow by `_extend`.

        Those that belong to the stored position, or those whose rows a bootstrap server has.
        """
        stored = self._positions.load(self.plan.name, physical)
        if stored is not None:
            return tuple(name for name in names if name in stored.sources) or names
        kept = self._look.kept() if self._wants_all else None
        if kept is None:
            return names
        others = [name for name in names if name not in kept]
        if len(self._held(physical, others)) < len(others):
            return ()  # nothing, until it can have all
        return tuple(name for name in names if name in kept)

    def _since_start(self, physical: str, names: tuple[str, ...]) -> Position | None:
        """Return where a new sink begins at the latest that was, not is: no relay answered then."""
        is_new = self._positions.load(self.plan.name, physical) is None
        if self._start is not Word.LATEST or self._waits_since_s is None or not is_new:
            return None
        place = self._look.place_at(names[0], names[1:], self._waits_since_s)
        if place is None:
            raise NoAnswerError("the relays", "none says where this sink begins")
        log.info("%s: begins where %s was when it was started", self.plan.name, physical)
        return Position(physical, place)

    def _extend(self, physical: str, stream: ClientStream | None, more: Sequence[str]) -> None:
        """Read more sources, from their first change on.

        The sink has passed that place by now. So it goes back there, and leaves out what it has:
        the changes of the other sources up to where it was. Transactions stay whole.
        """
        since = self._held(physical, more)
        self._note_lack(physical, [name for name in more if name not in since], stream)
        first = min(since.values(), default=None)
        if first is None or (stream is None and physical in self._lacks):
            return
        if stream is not None and not self._has_passed(physical, stream, first):
            return  # later: it has not come so far yet
        # One begin after the other: a place has all of several tables only if the newest has begun.
        new = [name for name, scn in since.items() if scn == first]
        begin, read = Checkpoint.flexible(), new  # the relay finds it: since all are captured
        if stream is not None:
            feed = self._replaced = self._feeds[physical]
            if not self._has_ended(feed):
                return  # what it writes late would be in the way of the next
            stored = stream.load()
            assert stored is not None
            begin = with_known(begin, self._written(feed, stored), stream.sources)
            read = [*stream.sources, *new]
        log.info("%s: reads %s from its first change on", self.plan.name, ", ".join(new))
        self._begin(physical, tuple(sorted(read)), Position(physical, begin))

    def _has_passed(self, physical: str, stream: ClientStream, scn: int) -> bool:
        return self._feeds[physical].state is SinkState.RUNNING and _is_behind(stream, scn)

    def _held(self, physical: str, names: Sequence[str]) -> dict[str, int]:
        """Return the SCN of the oldest window with changes of each source, if a relay has it.

        Where all rows are wanted, only of those of which the relay has all changes.
        """
        asked = ((name, self._look.oldest_scn([name])) for name in names)
        return {
            name: scn
            for name, scn in asked
            if scn is not None
            and (not self._wants_all or self._look.has_beginning(physical, name, scn))
        }

    def _note_lack(self, physical: str, names: Sequence[str], stream: ClientStream | None) -> None:
        """Show that tables are not read, and why."""
        self._lacks.pop(physical, None)
        if not names:
            return
        why = "no relay is known to have all their changes"
        what = f"{', '.join(names)} cannot be read whole: {why}"
        if stream is None:
            self._lacks[physical] = (
                f"{what}, and the bootstrap server does not keep them. What came after its start "
                "it keeps after a restart (of `databus run`, or of the pair with these tables in "
                "its settings), and this sink begins then; or leave them out of `sources`"
            )
        else:
            self._lacks[physical] = (
                f"{what}. The other tables are read. A new sink, of another name, gets all rows of "
                "what a bootstrap server keeps; or leave them out of `sources`"
            )

    def _has_ended(self, feed: Feed) -> bool:
        """End a feed; return whether nothing of it runs any more."""
        feed.stop()
        return feed.state.is_over

    def _written(self, feed: Feed, stored: Position) -> int:
        """Return the SCN up to which the target has everything: what is stored may be behind it."""
        reached = feed.reached if self.plan.settings.lanes == 1 else None
        return stored.scn if reached is None else max(stored.scn, reached.scn)

    def _begin(self, physical: str, names: tuple[str, ...], begin: Position | None = None) -> None:
        stream = ClientStream(self._client, self._store, physical, names, physical)
        self._store.expect(physical, names)
        if begin is not None:
            if stream.load() is None:
                begin = Position(physical, as_beginning(begin.checkpoint))
            stream.begin_at(begin)
        feed = Feed(self.plan, stream, time.monotonic, self._on_alert)
        feed.on_window = self.reloads.passes
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
