"""A relay: for each physical source a ring, its capture loop and its readers.

Builds all of it from the settings, starts and stops it, and reports its status. It serves
no requests itself; `service` does.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from databus.conf.settings import MaxScnSettings, PhysicalSourceSettings, RelaySettings
from databus.daemon.files import narrow, take_lock
from databus.daemon.log_setup import about
from databus.registry.former_schemas import ids_of_now
from databus.registry.registry import SchemaRegistry
from databus.registry.store import open_store
from databus.registry.version import SchemaVersion
from databus.relay.capture.appended_sources import AppendedSources
from databus.relay.capture.capture import Capture
from databus.relay.capture.current_probe import current_probe
from databus.relay.capture.delivered import gtids_in
from databus.relay.capture.epoch_table import EPOCHS_SUFFIX, EpochTable
from databus.relay.capture.log_monitor import LogMonitor
from databus.relay.capture.max_scn import FileMaxScn, MaxScnStore, SqliteMaxScn
from databus.relay.capture.notifier import Notifier
from databus.relay.capture.overlap.overlap_search import OVERLAP_SUFFIX, OverlapSearch
from databus.relay.capture.peers.watch import PeerWatch
from databus.relay.capture.servers import Servers
from databus.relay.capture.status import State
from databus.relay.capture.window_encoder import WindowEncoder
from databus.relay.captured_spans import SPANS_SUFFIX, CapturedSpans
from databus.relay.catalog import Catalog, check_tables, make_catalog
from databus.relay.catch_up.catch_up import MainHistory, Reread
from databus.relay.catch_up.catch_ups import FOLDER_SUFFIX, CatchUps
from databus.relay.catch_up.server_read import ServerRead
from databus.relay.clock import Clock
from databus.relay.control import Control
from databus.relay.log.archive.archiver import Archiver, Sources
from databus.relay.log.directory import log_folder
from databus.relay.log.history import HistoryReader
from databus.relay.log.recorder import LogRecorder
from databus.relay.monitoring.large_rows import LargeRows
from databus.relay.monitoring.monitor import Monitor
from databus.relay.monitoring.traffic import Traffic
from databus.relay.physical_source import PhysicalSource
from databus.relay.ring.reader import RingReader
from databus.relay.ring.ring import UNKNOWN_SCN, Ring
from databus.relay.ring.shared_copies import SharedCopies
from databus.relay.ring.watch import RingWatch
from databus.relay.schema_check import check_schemas
from databus.relay.source_status import SourceStatus, Trouble, status_json
from databus.relay.sources.kind import (
    kind_of,
    open_log_probe,
    open_source as open_kept_source,
    source_ids,
)
from databus.relay.sources.log_status import LogProbe
from databus.relay.sources.source import Source
from databus.schemas.errors import (
    DatabusError,
    RingError,
    UnknownSourceError,
    UnusableSourceError,
)

log = logging.getLogger(__name__)

LOCK_FILE = "relay.lock"
_MOST_NAMED = 3  # damaged ranges in one text
MAX_SCN_DATABASE = "max_scn.db"

OpenSource = Callable[[PhysicalSourceSettings], Source]
OpenLogProbe = Callable[[PhysicalSourceSettings], LogProbe | None]
RereadOf = Callable[[PhysicalSourceSettings], Reread | None]
CLOCK = Clock()


class Relay:
    """The parts of a relay; owns its threads and files until `stop`.

    A physical source whose ring or MaxSCN cannot be used is `unusable`; the others are
    served. Raises SettingsError if another relay uses the data folder or the settings
    contradict its content, SchemaError if the registry is unusable, RingError if all
    physical sources are.
    """

    def __init__(
        self,
        settings: RelaySettings,
        open_source: OpenSource | None = None,
        clock: Clock = CLOCK,
        open_log_probe: OpenLogProbe = open_log_probe,
        reread_of: RereadOf | None = None,
    ) -> None:
        self.settings = settings
        self.traffic = Traffic()
        self.monitor = Monitor.of(p.name for p in settings.physical_sources)
        self.is_closing = False
        if reread_of is None:
            reread_of = _no_reread if open_source else _reread_of_kind
        self._reread_of = reread_of
        self._open_source = open_source or partial(open_kept_source, data_dir=settings.data_dir)
        self._open_log_probe = open_log_probe
        self._clock = clock
        # Closes everything opened so far if a later step fails.
        with contextlib.ExitStack() as opened:
            # First: nothing in the folder may be read while another relay writes it.
            opened.callback(_lock(settings.data_dir))
            self.registry = SchemaRegistry(open_store(settings.data_dir, settings.schema_dir))
            self.catalog = self._make_catalog()
            self.unusable: dict[str, UnusableSourceError] = {}
            self._copies = SharedCopies()
            self.physical_sources: Mapping[str, PhysicalSource] = self._open_all(opened)
            self.ring_watch = self._make_ring_watch()
            self.control = Control(self.open_source, self.ring_watch.forget, settings.data_dir)
            self._opened = opened.pop_all()

    @property
    def clock(self) -> Clock:
        """The clock of all parts of the relay."""
        return self._clock

    def physical_source(self, name: str) -> PhysicalSource:
        """Return a physical source by name; raise UnknownSourceError, UnusableSourceError."""
        if name in self.unusable:
            raise self.unusable[name]
        if name not in self.physical_sources:
            raise UnknownSourceError(name, [p.name for p in self.settings.physical_sources])
        return self.physical_sources[name]

    def open_source(self, settings: PhysicalSourceSettings) -> Source:
        """Return a new source of the same database, not connected yet."""
        return self._open_source(settings)

    def start(self) -> None:
        """Start capturing every physical source."""
        for source in self.physical_sources.values():
            source.start()
        self.ring_watch.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Stop capturing, save MaxSCN and close all files. Idempotent."""
        end = time.monotonic() + timeout_s
        captures = [source.capture for source in self.physical_sources.values()]
        for capture in captures:
            # Signal all of them first, so that they end in parallel.
            capture.stop(0)
        # A list, because `all` over a generator would stop at the first False.
        ended = [capture.stop(max(0.0, end - time.monotonic())) for capture in captures]
        recorders = [source.recorder for source in self.physical_sources.values()]
        ended += [one.stop(max(0.0, end - time.monotonic())) for one in recorders if one]
        for source in self.physical_sources.values():
            source.log_monitor.stop(max(0.0, end - time.monotonic()))
            if source.peers is not None:
                ended.append(source.peers.stop(max(0.0, end - time.monotonic())))
            if source.catch_ups is not None:
                ended.append(source.catch_ups.close(max(0.0, end - time.monotonic())))
        self.ring_watch.stop(max(0.0, end - time.monotonic()))
        if all(ended):
            # Otherwise a thread may still write to them; the process's end closes them.
            self._opened.close()

    def let_go(self) -> None:
        """Answer all held requests now, and hold none from now on."""
        self.is_closing = True
        for source in self.physical_sources.values():
            source.notifier.notify_all()

    def status_of(self, name: str) -> SourceStatus:
        """Return the current status of a usable physical source."""
        return self.physical_sources[name].status(
            self._damage_of(name),
            lambda: self.monitor.clients.readers_of(name, self._clock.monotonic_s()),
            is_draining=self.control.is_draining(name),
        )

    def statuses(self) -> list[SourceStatus]:
        """Return the status of every usable physical source."""
        return [self.status_of(name) for name in self.physical_sources]

    def status(self) -> dict[str, dict[str, Any]]:
        """Return the status of each physical source, by name, as JSON values."""
        unusable = {
            name: {"state": State.ERROR.value, "problem": str(error)}
            for name, error in self.unusable.items()
        }
        return unusable | {status.name: status_json(status) for status in self.statuses()}

    def _damage_of(self, name: str) -> str:
        """Describe the damage to windows in a physical source's ring; "" without any."""
        reader, watched = self.physical_sources[name].reader, self.ring_watch.watched[name]
        head = reader.head
        # A dict, to drop duplicates but keep the order.
        found = {str(reader.check.error(damage)): None for damage in reader.check.damages()}
        found |= {str(error): None for damage, error in watched.damages if damage.end > head}
        more = [f"{len(found) - _MOST_NAMED} more such"] if len(found) > _MOST_NAMED else []
        return "; ".join(filter(None, [*list(found)[:_MOST_NAMED], *more, watched.problem]))

    @property
    def troubles(self) -> list[Trouble]:
        """Current troubles of all physical sources, the worst first."""
        started_at = self.traffic.started_at_s
        found = [
            Trouble(name, State.ERROR, str(error), started_at)
            for name, error in self.unusable.items()
        ]
        for status in self.statuses():
            found += status.troubles()
        return sorted(found, key=lambda one: one.badness)

    @property
    def is_healthy(self) -> bool:
        """Whether every source is known to be well."""
        return not self.troubles

    @property
    def is_ready(self) -> bool:
        """Whether clients can be served: each usable source was reached or has windows."""
        return not self.is_closing and all(
            source.capture.status.was_opened or source.reader.head < source.reader.tail
            for source in self.physical_sources.values()
        )

    def _make_ring_watch(self) -> RingWatch:
        paths = {name: self.settings.data_dir / f"{name}.ring" for name in self.physical_sources}
        return RingWatch(paths, self._note_damage, self._clock)

    def _note_damage(self, name: str, error: DatabusError, until: int) -> None:
        self._note_problem(name, error)
        self.physical_sources[name].reader.check.distrust(0, until)

    def _note_problem(self, physical_source: str, error: Exception) -> None:
        self.monitor.problems.note(self._clock.wall_ns() / 1e9, physical_source, error)

    def _make_catalog(self) -> Catalog:
        catalog = make_catalog(self.settings.physical_sources, self.registry.sources(), source_ids)
        check_tables(self.settings.physical_sources, self.registry)
        self.registry.add_sources(catalog.ids)
        return catalog

    def _open_all(self, opened: contextlib.ExitStack) -> dict[str, PhysicalSource]:
        found: dict[str, PhysicalSource] = {}
        problems: dict[str, RingError] = {}
        for settings in self.settings.physical_sources:
            with contextlib.ExitStack() as files:
                try:
                    found[settings.name] = self._open(settings, files)
                except RingError as error:
                    problems[settings.name] = error
                else:
                    opened.push(files.pop_all())
        # A relay that can serve none of its sources must not start.
        if not found:
            raise RingError("; ".join(map(str, problems.values())))
        for name, problem in problems.items():
            self.unusable[name] = UnusableSourceError(name, problem)
            self._note_problem(name, problem)
            log.error("%s", self.unusable[name], extra=about(physical_source=name))
        return found

    def _open(
        self, settings: PhysicalSourceSettings, opened: contextlib.ExitStack
    ) -> PhysicalSource:
        self._check_settings(settings)
        folder, name = self.settings.data_dir, settings.name
        max_scn = _max_scn_store(self.settings.max_scn, folder, name)
        path = folder / f"{name}.ring"
        spans_path = folder / f"{name}{SPANS_SUFFIX}"
        if not path.exists():
            spans_path.unlink(missing_ok=True)  # of a ring that was removed, perhaps of another log
        ring = self._open_ring(path, settings, max_scn.load())
        opened.callback(ring.close)
        ids = self.catalog.src_ids_of(name)
        spans = CapturedSpans(spans_path, name, ids, ring, self.catalog.new)
        spans.update()
        reader = RingReader.open(path, follows=True, copies=self._copies)
        opened.callback(reader.close)
        check_schemas(reader, path, self.registry)
        encoder = self._make_encoder(settings)
        notifier = Notifier(AppendedSources(reader))
        recorder = self._make_recorder(path, settings, lambda: capture.is_to_rest, spans, opened)
        if recorder is not None:
            ring.gate, ring.large = recorder.gate, recorder.large
        history = _make_history(reader, recorder, opened)
        on_append = notifier.notify if recorder is None else partial(_notify, notifier, recorder)
        servers = self._make_servers(settings, path, spans)
        capture = self._make_capture(
            settings, ring, encoder, max_scn, on_append, spans, notifier, servers
        )
        log_monitor = self._make_log_monitor(settings, capture)
        catch_ups = self._make_catch_ups(
            settings, ring, max_scn, recorder, spans, history, ServerRead(capture)
        )
        return PhysicalSource(
            settings,
            ring,
            reader,
            max_scn,
            capture,
            log_monitor,
            notifier,
            spans,
            recorder,
            history,
            catch_ups,
            PeerWatch(servers, capture.place.cast_doubt),
        )

    def _make_catch_ups(
        self,
        settings: PhysicalSourceSettings,
        ring: Ring,
        max_scn: MaxScnStore,
        recorder: LogRecorder | None,
        spans: CapturedSpans,
        history: HistoryReader | RingReader,
        server: ServerRead,
    ) -> CatchUps | None:
        """Return the catch-ups of a source; None if its log cannot be read a second time."""
        reread, folder, name = self._reread_of(settings), self.settings.data_dir, settings.name
        if reread is None:
            return None
        main = MainHistory(
            settings,
            folder,
            folder / f"{name}.ring",
            ring,
            max_scn,
            recorder,
            reread,
            server,
            partial(self._make_encoder, settings),
            spans,
            partial(self._note_problem, name),
            self._clock,
        )
        return CatchUps(main, history, folder / f"{name}{FOLDER_SUFFIX}")

    def _make_encoder(self, settings: PhysicalSourceSettings) -> WindowEncoder:
        return WindowEncoder(
            self.registry,
            self.catalog.src_ids_of(settings.name),
            settings.before_images,
            settings.acknowledged_scns,
            settings.names,
        )

    def _check_settings(self, settings: PhysicalSourceSettings) -> None:
        """Raise errors in the settings now, not later in a capture thread."""
        for uri in settings.uris:
            self._open_source(settings.at(uri)).close()

    def _make_servers(
        self, settings: PhysicalSourceSettings, ring_path: Path, spans: CapturedSpans
    ) -> Servers:
        name, folder, reread = settings.name, self.settings.data_dir, self._reread_of(settings)
        table = EpochTable(folder / f"{name}{EPOCHS_SUFFIX}")
        overlap = None
        if reread is not None:
            encoder, ids = partial(self._make_encoder, settings), self.catalog.src_ids_of(name)
            work = folder / f"{name}{OVERLAP_SUFFIX}"
            overlap = OverlapSearch(ring_path, reread.open_source, encoder, spans, ids, work)
        return Servers(settings, table, partial(gtids_in, ring_path), self._clock, overlap)

    def _make_capture(
        self,
        settings: PhysicalSourceSettings,
        ring: Ring,
        encoder: WindowEncoder,
        max_scn: MaxScnStore,
        on_append: Callable[[], None],
        spans: CapturedSpans,
        notifier: Notifier,
        servers: Servers,
    ) -> Capture:
        return Capture(
            settings,
            self._open_source,
            ring,
            encoder,
            max_scn,
            on_append,
            self.settings.max_scn.flush_s,
            self._clock,
            partial(self._note_problem, settings.name),
            LargeRows(self.settings.http.max_response_bytes, self.catalog.name_of),
            spans,
            notifier.notify_all,  # requests for a stopped table are held for nothing
            servers,
        )

    def _make_recorder(
        self,
        ring_path: Path,
        settings: PhysicalSourceSettings,
        is_ended: Callable[[], bool],
        spans: CapturedSpans,
        opened: contextlib.ExitStack,
    ) -> LogRecorder | None:
        """Open the relay log of a physical source; None if it has none."""
        if settings.log is None:
            return None
        name, folder = settings.name, log_folder(self.settings.data_dir, settings)
        on_problem = partial(self._note_problem, name)
        archiver = None
        if settings.log.archive is not None:
            sources = Sources(partial(self._versions_of, name), spans.complete_after)
            archiver = Archiver(folder, name, settings.log, sources, on_problem, self._clock)
        recorder = LogRecorder(
            ring_path, folder, name, settings.log, is_ended, on_problem, self._clock, archiver
        )
        opened.callback(recorder.close)
        recorder.open()
        return recorder

    def _versions_of(self, name: str) -> list[SchemaVersion]:
        """Return all schema versions of a physical source's sources."""
        sources = self.catalog.src_ids_of(name)
        return [version for source in sources for version in self.registry.versions(source)]

    def _make_log_monitor(self, settings: PhysicalSourceSettings, capture: Capture) -> LogMonitor:
        return LogMonitor(
            settings.name,
            current_probe(self._open_log_probe, lambda: capture.servers.current),
            lambda: capture.place.newest,
            wall_ns=self._clock.wall_ns,
            reading_at=lambda: capture.place.reading_at,
            on_doubt=capture.place.cast_doubt,
        )

    def _open_ring(
        self, path: Path, settings: PhysicalSourceSettings, saved_scn: int | None
    ) -> Ring:
        ring = Ring.open(
            path,
            settings.name,
            settings.ring_bytes,
            # A new ring begins after MaxSCN. Without one the SCN before the first window is
            # unknown, even with `start = "earliest"`: the database may have purged its log.
            start_scn=UNKNOWN_SCN if saved_scn is None else saved_scn,
            former_ids=lambda: ids_of_now(self._schema_texts()),
        )
        if ring.dropped:
            self._note_problem(settings.name, RingError(ring.dropped))
        return ring

    def _schema_texts(self) -> Iterator[str]:
        for source in self.registry.sources():
            yield from (version.text for version in self.registry.versions(source))


def _make_history(
    reader: RingReader, recorder: LogRecorder | None, opened: contextlib.ExitStack
) -> HistoryReader | RingReader:
    """Return the reader of a ring and of its log, if it has one."""
    if recorder is None:
        return reader
    history = HistoryReader(reader, recorder)
    opened.callback(history.close)
    return history


def _reread_of_kind(settings: PhysicalSourceSettings) -> Reread | None:
    """Return how a kind of source reads its log a second time; None if it does not."""
    prepare = kind_of(settings.uri).prepare_reread
    if prepare is None:
        return None
    return Reread(lambda given, wanted: prepare(given.by_table(), wanted), open_kept_source)


def _no_reread(_settings: PhysicalSourceSettings) -> Reread | None:
    return None


def _notify(notifier: Notifier, recorder: LogRecorder) -> None:
    notifier.notify()
    recorder.notify()


def _max_scn_store(settings: MaxScnSettings, folder: Path, name: str) -> MaxScnStore:
    if settings.store == "sqlite":
        return SqliteMaxScn(folder / MAX_SCN_DATABASE, name)
    path = folder / f"{name}.scn"
    narrow(path)
    return FileMaxScn(path)


def _lock(folder: Path) -> Callable[[], None]:
    """Lock the data folder for this process; return a function that releases it."""
    in_use = f"data_dir {folder} is in use by another relay: stop that one, or use another data_dir"
    return take_lock(folder / LOCK_FILE, in_use)
