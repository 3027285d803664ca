"""A relay as a serving process has it: rings mapped read-only, and what it is told of the rest.

It answers only what it is certain of. A place that the ring does not have, a state that has changed
and was not told yet, every error: all of that raises PassOnError, and the capturing process, which
knows everything, answers the request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from databus.conf.settings import PhysicalSourceSettings, RelaySettings
from databus.registry.registry import SchemaRegistry
from databus.registry.store import MemoryStore
from databus.relay.capture.appended_sources import AppendedSources
from databus.relay.capture.notifier import Notifier
from databus.relay.catalog import Catalog
from databus.relay.clock import SYSTEM_CLOCK
from databus.relay.epoch_spans import unread_in
from databus.relay.monitoring.monitor import Monitor
from databus.relay.monitoring.traffic import Traffic
from databus.relay.ring.reader import RingReader
from databus.relay.ring.selection import Selection
from databus.relay.ring.shared_copies import SharedCopies
from databus.relay.serving_processes.messages import SourceState, State
from databus.relay.serving_processes.shared_page import SharedPage
from databus.relay.span import Span
from databus.schemas.errors import DamagedWindowsError, DatabusError
from databus.schemas.scn import MAX_SCN


class PassOnError(DatabusError):
    """The capturing process is to answer this request."""

    status = 503


class ServedSource:
    """A physical source of a serving process. On the loop's thread."""

    def __init__(
        self,
        settings: PhysicalSourceSettings,
        number: int,
        reader: RingReader,
        page: SharedPage,
        ids: dict[str, int],
    ) -> None:
        self.settings, self.reader, self.history = settings, reader, reader
        self.notifier = Notifier(AppendedSources(reader))
        self._number, self._page, self._ids = number, page, ids
        self._state: SourceState | None = None
        self._seen = (-1, -1)

    @property
    def spans(self) -> ServedSource:
        """The spans of its sources."""
        return self

    def reader_for(self, selection: Selection) -> RingReader:
        """Return the reader of the ring; raise PassOnError if it may not be the one to read."""
        asked, state = selection.checkpoint, self._current()
        if not state.is_served:
            raise PassOnError("it is not served")
        if self.settings.log is not None and not selection.from_latest:
            # The log has older windows than the ring: the oldest one, and those of the marks.
            marks = [one[0] for one in (asked.mark, asked.log_window) if one is not None]
            if asked.is_flexible or min(marks, default=MAX_SCN) < self.reader.min_scn:
                raise PassOnError("the relay log may have it")
        return self.reader

    def spans_of(self, _reader: object) -> ServedSource:
        """Return the spans of its sources, as they are for a reader."""
        return self

    def note_damage(self, error: DamagedWindowsError, selection: Selection) -> None:  # noqa: ARG002
        """Let the capturing process find it, too."""
        raise PassOnError(str(error))

    @property
    def revision(self) -> int:
        """Changes before a window that depends on the change can be read."""
        return self._page.revision(self._number)

    def of(self, src_ids: Collection[int] | None) -> Span:
        """Return the span of some sources; raise PassOnError if it has changed since it was told.

        What was told with a revision is of that revision, or of a later one.
        """
        state = self._current()
        span = state.spans.span(self._ids, src_ids)
        unread = unread_in(state.epochs, self.reader)
        return span._replace(unread=tuple(unread), passed=state.passed) if unread else span

    def take(self, state: SourceState) -> None:
        """Take over what the capturing process tells."""
        before, self._state = self._state, state
        if before is not None and state.doubted_until > before.doubted_until:
            self.reader.check.distrust(0, state.doubted_until)
        self.notifier.notify_all()

    def look(self) -> None:
        """Wake those who wait, if there is news."""
        if self.reader.is_replaced:
            self.notifier.notify_all()
            return
        seen = self.reader.tail, self.revision
        if seen != self._seen:
            is_changed, self._seen = seen[1] != self._seen[1], seen
            if is_changed:
                self.notifier.notify_all()
            else:
                self.notifier.notify()

    def _current(self) -> SourceState:
        state = self._state
        if state is None or state.revision != self.revision:
            raise PassOnError("its state has changed, and is not known here yet")
        return state


class ServedRelay:
    """What a serving process has in place of a `Relay`; closes its rings with `close`."""

    def __init__(self, settings: RelaySettings, catalog: Catalog, page: SharedPage) -> None:
        self.settings, self.catalog, self.page = settings, catalog, page
        self.clock = SYSTEM_CLOCK
        self.traffic = Traffic()
        self.monitor = Monitor.of(p.name for p in settings.physical_sources)
        self.is_closing = False
        self.registry = SchemaRegistry(MemoryStore())
        self.passed_on: Counter[str] = Counter()  # requests, by the id of the client
        self._copies = SharedCopies()
        self._sources: dict[str, ServedSource] = {}

    def take(self, state: State) -> None:
        """Take over what the capturing process tells."""
        if state.versions is not None:
            store = MemoryStore(state.versions)
            store.save_sources(self.catalog.ids)
            self.registry = SchemaRegistry(store)
        for name, one in state.sources.items():
            if name not in self._sources:
                self._sources[name] = self._open(name)
            self._sources[name].take(one)

    def _open(self, name: str) -> ServedSource:
        names = [one.name for one in self.settings.physical_sources]
        number = names.index(name)
        path = self.settings.data_dir / f"{name}.ring"
        reader = RingReader.open(path, follows=True, copies=self._copies)
        settings = self.settings.physical_sources[number]
        ids = self.catalog.src_ids_of(name)
        return ServedSource(settings, number, reader, self.page, ids)

    def physical_source(self, name: str) -> ServedSource:
        """Return a physical source by name; raise PassOnError."""
        if name not in self._sources:
            raise PassOnError("it is not known here")
        return self._sources[name]

    @property
    def waiting(self) -> dict[str, int]:
        """The numbers of held requests, by physical source."""
        return {name: source.notifier.waiting for name, source in self._sources.items()}

    def look(self) -> None:
        """Wake the requests for which there is news."""
        for source in self._sources.values():
            source.look()

    def let_go(self) -> None:
        """Answer all held requests now, and hold none from now on."""
        self.is_closing = True
        for source in self._sources.values():
            source.notifier.notify_all()

    def close(self) -> None:
        """Unmap the rings."""
        for source in self._sources.values():
            source.reader.close()
