"""Opens the parts of one physical source, and puts them together."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from databus.conf.settings import MaxScnSettings, PhysicalSourceSettings, RelaySettings
from databus.conf.source_names import SourceNames
from databus.daemon.files import narrow
from databus.registry.former_schemas import ids_of_now
from databus.registry.registry import SchemaRegistry
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
from databus.relay.capture.standby.role import Role
from databus.relay.capture.window_encoder import WindowEncoder
from databus.relay.captured_spans import SPANS_SUFFIX, CapturedSpans
from databus.relay.catalog import Catalog
from databus.relay.catch_up.catch_up import MainHistory, Reread
from databus.relay.catch_up.catch_ups import FOLDER_SUFFIX, CatchUps
from databus.relay.catch_up.server_read import ServerRead
from databus.relay.clock import Clock
from databus.relay.log.archive.archiver import Archiver, Sources
from databus.relay.log.directory import log_folder
from databus.relay.log.history import HistoryReader
from databus.relay.log.recorder import LogRecorder
from databus.relay.monitoring.large_rows import LargeRows
from databus.relay.physical_source import PhysicalSource
from databus.relay.ring.reader import RingReader
from databus.relay.ring.ring import UNKNOWN_SCN, Ring
from databus.relay.ring.shared_copies import SharedCopies
from databus.relay.schema_check import check_schemas
from databus.relay.sources.column_rules import ColumnRules
from databus.relay.sources.kind import kind_of, open_source as open_kept_source
from databus.relay.sources.log_status import LogProbe
from databus.relay.sources.source import Source
from databus.schemas.errors import RingError

MAX_SCN_DATABASE = "max_scn.db"

OpenSource = Callable[[PhysicalSourceSettings], Source]
OpenLogProbe = Callable[[PhysicalSourceSettings], LogProbe | None]
RereadOf = Callable[[PhysicalSourceSettings], Reread | None]
NoteProblem = Callable[[str, Exception], None]


class SourceOpener:
    """Opens the physical sources of one relay.

    `note_problem` is told the name of a physical source, and an error.
    """

    def __init__(
        self,
        settings: RelaySettings,
        catalog: Catalog,
        registry: SchemaRegistry,
        clock: Clock,
        note_problem: NoteProblem,
        open_source: OpenSource,
        open_log_probe: OpenLogProbe,
        reread_of: RereadOf,
    ) -> None:
        self._settings, self._catalog, self._registry = settings, catalog, registry
        self._clock, self._note_problem = clock, note_problem
        self._open_source, self._open_log_probe = open_source, open_log_probe
        self._reread_of = reread_of
        self._copies = SharedCopies()
        self._names: dict[str, SourceNames] = {}

    def open(
        self,
        settings: PhysicalSourceSettings,
        role: Role | None,
        opened: contextlib.ExitStack,
    ) -> PhysicalSource:
        """Return a physical source, whose files `opened` closes; raise RingError, SettingsError."""
        self._check_settings(settings)
        folder, name = self._settings.data_dir, settings.name
        max_scn = role.max_scn if role else max_scn_store(self._settings.max_scn, folder, name)
        path = folder / f"{name}.ring"
        ring, spans = self._open_ring(path, settings, max_scn.load(), opened)
        reader = RingReader.open(path, follows=True, copies=self._copies)
        opened.callback(reader.close)
        check_schemas(reader, path, self._registry)
        encoder = self.make_encoder(settings)
        notifier = Notifier(AppendedSources(reader))
        recorder = self._make_recorder(path, settings, lambda: capture.is_to_rest, spans, opened)
        if recorder is not None:
            ring.gate, ring.large = recorder.gate, recorder.large
        history = _make_history(reader, recorder, opened)
        on_append = notifier.notify if recorder is None else partial(_notify, notifier, recorder)
        servers = self._make_servers(settings, path, spans, role)
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
            encoder,
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
        reread, folder, name = self._reread_of(settings), self._settings.data_dir, settings.name
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
            partial(self.make_encoder, settings),
            spans,
            partial(self._note_problem, name),
            self._clock,
        )
        return CatchUps(main, history, folder / f"{name}{FOLDER_SUFFIX}")

    def names_of(self, settings: PhysicalSourceSettings) -> SourceNames:
        """Return the names of a physical source's sources, which may change while it runs."""
        return self._names.setdefault(settings.name, settings.names)

    def forget(self, name: str) -> None:
        """Forget the names of a physical source that was removed."""
        self._names.pop(name, None)

    def make_encoder(self, settings: PhysicalSourceSettings) -> WindowEncoder:
        """Return a new encoder of a physical source's windows."""
        return WindowEncoder(
            self._registry,
            self._catalog.src_ids_of(settings.name),
            settings.before_images,
            settings.acknowledged_scns,
            self.names_of(settings),
            ColumnRules.of(settings),
        )

    def _check_settings(self, settings: PhysicalSourceSettings) -> None:
        """Raise errors in the settings now, not later in a capture thread."""
        for uri in settings.uris:
            self._open_source(settings.at(uri)).close()

    def _make_servers(
        self,
        settings: PhysicalSourceSettings,
        ring_path: Path,
        spans: CapturedSpans,
        role: Role | None,
    ) -> Servers:
        name, folder, reread = settings.name, self._settings.data_dir, self._reread_of(settings)
        table = role.table if role else EpochTable(folder / f"{name}{EPOCHS_SUFFIX}")
        overlap = None
        if reread is not None:
            encoder, ids = partial(self.make_encoder, settings), self._ids_of(name)
            work = folder / f"{name}{OVERLAP_SUFFIX}"
            overlap = OverlapSearch(ring_path, reread.open_source, encoder, spans, ids, work)
        gtids = partial(gtids_in, ring_path)
        return Servers(settings, table, gtids, self._clock, overlap, role)

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
            self._settings.max_scn.flush_s,
            self._clock,
            partial(self._note_problem, settings.name),
            LargeRows(self._settings.http.max_response_bytes, self._catalog.name_of),
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
        name, folder = settings.name, log_folder(self._settings.data_dir, settings)
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
        sources = self._catalog.src_ids_of(name)
        return [version for source in sources for version in self._registry.versions(source)]

    def _make_log_monitor(self, settings: PhysicalSourceSettings, capture: Capture) -> LogMonitor:
        return LogMonitor(
            settings.name,
            current_probe(
                self._open_log_probe,
                lambda: capture.servers.current,
                None if capture.servers.role is None else lambda: capture.servers.database,
            ),
            lambda: capture.place.newest,
            wall_ns=self._clock.wall_ns,
            reading_at=lambda: capture.place.reading_at,
            on_doubt=capture.place.cast_doubt,
        )

    def _open_ring(
        self,
        path: Path,
        settings: PhysicalSourceSettings,
        saved_scn: int | None,
        opened: contextlib.ExitStack,
    ) -> tuple[Ring, CapturedSpans]:
        """Return a physical source's ring, and since when its sources are in it."""
        name, folder = settings.name, self._settings.data_dir
        spans_path = folder / f"{name}{SPANS_SUFFIX}"
        if not path.exists():
            spans_path.unlink(missing_ok=True)  # of a ring that was removed, perhaps of another log
        ring = Ring.open(
            path,
            name,
            settings.ring_bytes,
            # A new ring begins after MaxSCN. Without one the SCN before the first window is
            # unknown, even with `start = "earliest"`: the database may have purged its log.
            start_scn=UNKNOWN_SCN if saved_scn is None else saved_scn,
            former_ids=lambda: ids_of_now(self._schema_texts()),
        )
        if ring.dropped:
            self._note_problem(name, RingError(ring.dropped))
        opened.callback(ring.close)
        ids = self._catalog.src_ids_of(name)
        spans = CapturedSpans(spans_path, name, ids, ring, self._catalog.new)
        spans.update()
        return ring, spans

    def _ids_of(self, name: str) -> Callable[[], Mapping[str, int]]:
        return lambda: self._catalog.src_ids_of(name)

    def _schema_texts(self) -> Iterator[str]:
        for source in self._registry.sources():
            yield from (version.text for version in self._registry.versions(source))


def _make_history(
    reader: RingReader, recorder: LogRecorder | None, opened: contextlib.ExitStack
) -> HistoryReader | RingReader:
    """Return the reader of a ring and of its log, if it has one."""
    if recorder is None:
        return reader
    history = HistoryReader(reader, recorder)
    opened.callback(history.close)
    return history


def reread_of_kind(settings: PhysicalSourceSettings) -> Reread | None:
    """Return how a kind of source reads its log a second time; None if it does not."""
    prepare = kind_of(settings.uri).prepare_reread
    if prepare is None:
        return None
    return Reread(lambda given, wanted: prepare(given.by_table(), wanted), open_kept_source)


def no_reread(_settings: PhysicalSourceSettings) -> Reread | None:
    """Return None: no log is read a second time."""
    return None


def _notify(notifier: Notifier, recorder: LogRecorder) -> None:
    notifier.notify()
    recorder.notify()


def max_scn_store(settings: MaxScnSettings, folder: Path, name: str) -> MaxScnStore:
    """Return the store of a physical source's MaxSCN in the data folder."""
    if settings.store == "sqlite":
        return SqliteMaxScn(folder / MAX_SCN_DATABASE, name)
    path = folder / f"{name}.scn"
    narrow(path)
    return FileMaxScn(path)
