"""Seeding as a job: in the background of a producer, or once, for a command.

One process at a time seeds a store: the one that holds the lock file beside it. A
command that finds the lock held marks the tables as new and shows the progress. Processes that
seed under a lease share that lock, to keep such a command out: the lease lets one write.
A database that cannot be reached is tried again with back-off. A table that cannot
be read stops alone: the problem in the store says what to do, and the table is tried
again at the next start, or when it is marked as new.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random

from databus.bootstrap.background import PausableThread
from databus.bootstrap.seeder.rate_limiter import Progress, Report
from databus.bootstrap.seeder.read_ahead import ReadAheadScan
from databus.bootstrap.seeder.seeder import Seeder, has_log
from databus.bootstrap.store.file import WriteLease
from databus.bootstrap.store.store import Store
from databus.bootstrap.store.values import SourceState, SourceStatus
from databus.client.machines.backoff import BackOff
from databus.conf.settings import BootstrapSettings, PhysicalSourceSettings
from databus.daemon.faults import trace_of
from databus.daemon.files import take_lock
from databus.daemon.log_setup import about
from databus.leases.errors import LeaseError
from databus.relay.sources.kind import open_scan
from databus.relay.sources.table_scan import TableScan
from databus.schemas.errors import (
    BootstrapError,
    DatabusError,
    SettingsError,
    SourceUnavailableError,
)

log = logging.getLogger(__name__)

LOOK_S = 1.0
_LOOKS_BEFORE_REPORT = 5
_NOTHING_YET = (
    "it waits for the relay's first window and cannot be served before: check that the relay "
    "runs and can read its database"
)
_TO_SEED = (SourceStatus.NEW, SourceStatus.SEEDING)

OpenScan = Callable[[PhysicalSourceSettings], TableScan]


def store_path(settings: BootstrapSettings, physical: PhysicalSourceSettings) -> Path:
    """Return the file of a physical source's store."""
    return settings.data_dir / f"{physical.name}.db"


@contextmanager
def hold_seeding(path: Path, *, is_shared: bool = False) -> Iterator[bool]:
    """Take the seeding lock of the store at `path`; yield False when it is held already."""
    lock, in_use = Path(f"{path}-seeding"), f"store {path} is being seeded"
    try:
        let_go = take_lock(lock, in_use, is_shared=is_shared)
    except SettingsError:
        yield False
        return
    try:
        yield True
    finally:
        let_go()


class TableSeeding:
    """Seeds the tables of one store one after another, on one thread.

    `stop` ends it after the current chunk.
    """

    def __init__(
        self,
        settings: BootstrapSettings,
        physical: PhysicalSourceSettings,
        store: Store,
        report: Report,
        stop: threading.Event,
        open_scan: OpenScan,
    ) -> None:
        self._settings = settings
        self._physical = physical
        self._store = store
        self._report = report
        self._stop = stop
        self._open_scan = open_scan
        self._back_off = BackOff(settings.back_off, Random())
        self._given_up: dict[str, str] = {}  # source: its problem

    def seed_all(self, sources: Sequence[str]) -> None:
        """Seed the sources that need it; wait while the database cannot be reached."""
        while left := self._left(sources):
            try:
                for source in left:
                    self._seed_one(source)
                break
            except SourceUnavailableError as error:
                wait_s = self._back_off.next_s()
                name = self._physical.name
                text = "%s: seeding waits, next try in %.1f s: %s"
                log.warning(text, name, wait_s, error, extra=about(physical_source=name))
                self._stop.wait(wait_s)

    def _left(self, sources: Sequence[str]) -> list[str]:
        """Return the sources that can be seeded now. Marking a table as new clears its problem."""
        if self._stop.is_set():
            return []
        states = [self._store.source(name) for name in sources]
        return [
            state.name
            for state in states
            if state.status in _TO_SEED
            and (not state.problem or self._given_up.get(state.name) != state.problem)
        ]

    def _seed_one(self, source: str) -> None:
        # One scan for each source: one that cannot be opened must not stop the others.
        scan = self._open_scan(self._physical.only([source]))
        # With a limit, no row is read before its time.
        if not self._settings.most_rows_per_s:
            scan = ReadAheadScan(scan)
        try:
            scan.open()
            if self._store.source(source).problem:
                self._store.set_problem(source, "")
            self._seeder(scan).seed(source)
        except (SourceUnavailableError, BootstrapError, LeaseError):
            raise
        except DatabusError as error:
            self._give_up(source, error)
        finally:
            scan.close()

    def _seeder(self, scan: TableScan) -> Seeder:
        return Seeder(
            self._store,
            scan,
            self._settings.chunk_rows,
            self._settings.most_rows_per_s,
            self._on_progress,
            self._stop,
        )

    def _give_up(self, source: str, error: DatabusError) -> None:
        name = self._physical.name
        known = about(physical_source=name, source=source, error=error)
        log.error("seeding of %s stopped: %s", source, error, extra=known)
        self._given_up[source] = str(error)
        # The next seeding starts from the beginning: an abandoned one would keep
        # the log from being shortened for ever.
        self._store.reset_source(source)
        self._store.set_problem(source, str(error))

    def _on_progress(self, progress: Progress) -> None:
        self._back_off.reset()
        self._report(progress)


class SeedingThread(PausableThread):
    """Seeds the sources of one store that need it; the problem of a single table is in the store.

    A step is a chunk.
    """

    def __init__(
        self,
        settings: BootstrapSettings,
        physical: PhysicalSourceSettings,
        report: Report = lambda _: None,
        open_scan: OpenScan = open_scan,
        lease: WriteLease | None = None,
    ) -> None:
        """Write under a `lease`, if there is one."""
        super().__init__(f"seeding-{physical.name}")
        self._settings = settings
        self._lease = lease
        self._physical = physical
        self._report = report
        self._open_scan = open_scan

    def _after_chunk(self, progress: Progress) -> None:
        self._report(progress)
        self._resumed.wait()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._work()
            except Exception as error:
                # A thread has no caller to raise to: without this nobody would know.
                name, text = self._physical.name, "seeding of %s failed; it is tried again: %s"
                known = about(physical_source=name)
                log.error(text, name, error, exc_info=trace_of(error), extra=known)
                self._problem = str(error) or repr(error)
            self._stop.wait(LOOK_S)

    def _report_no_log(self) -> None:
        name, self._problem = self._physical.name, _NOTHING_YET
        log.warning("seeding of %s: %s", name, _NOTHING_YET, extra=about(physical_source=name))

    def _work(self) -> None:
        path = store_path(self._settings, self._physical)
        with hold_seeding(path, is_shared=self._lease is not None) as is_mine:
            if not is_mine:
                return
            with closing(Store.open(path, lease=self._lease)) as store:
                tables = TableSeeding(
                    self._settings,
                    self._physical,
                    store,
                    self._after_chunk,
                    self._stop,
                    self._open_scan,
                )
                # The lock is kept: a table may be marked for seeding at any time.
                for look in itertools.count(1):
                    self._resumed.wait()
                    begun = [state.name for state in _kept(store, self._physical)]
                    if look == _LOOKS_BEFORE_REPORT and not begun:
                        self._report_no_log()
                    tables.seed_all(begun)
                    store.activate_caught_up()
                    if begun or look < _LOOKS_BEFORE_REPORT:
                        self._problem = ""
                    if self._stop.wait(LOOK_S):
                        return


def seed(
    settings: BootstrapSettings,
    physical: PhysicalSourceSettings,
    sources: Sequence[str] | None,
    report: Report,
    stop: threading.Event,
    open_scan: OpenScan = open_scan,
) -> list[SourceState]:
    """Seed the named sources again, or, when none is named, those that are not seeded yet.

    Returns their states afterwards: seeded, or with a problem. When another process
    seeds this store, it does the work and this one reports its progress. Raises
    BootstrapError when the producer has not started, and UnknownSourceError.
    """
    path = store_path(settings, physical)
    if not path.exists():
        raise _not_begun(path)
    with closing(Store.open(path)) as store:
        if not _kept(store, physical):
            raise _not_begun(path)
        names = _mark(store, physical, sources)
        with hold_seeding(path) as is_mine:
            if is_mine:
                TableSeeding(settings, physical, store, report, stop, open_scan).seed_all(names)
            else:
                _watch(store, names, report, stop)
        return [store.source(name) for name in names]


def _not_begun(path: Path) -> BootstrapError:
    return BootstrapError(
        f"store {path}: the producer has not begun, so what changes during the seeding would "
        "be missed; start `databus bootstrap run` (it seeds by itself) and the relay first"
    )


def _kept(store: Store, physical: PhysicalSourceSettings) -> list[SourceState]:
    """Return the sources that the producer has in the store and the settings still list."""
    names = physical.source_names
    return [s for s in store.sources() if s.name in names and has_log(store, s)]


def _mark(
    store: Store, physical: PhysicalSourceSettings, sources: Sequence[str] | None
) -> list[str]:
    """Mark the named sources as new; return the sources to seed, none with a problem."""
    if sources is None:
        wanted = [state for state in _kept(store, physical) if state.status in _TO_SEED]
    else:
        wanted = [store.source(name) for name in sources]
    for state in wanted:
        if state.status not in _TO_SEED:
            store.reset_source(state.name)
        elif state.problem:
            store.set_problem(state.name, "")
    return [state.name for state in wanted]


def _watch(store: Store, sources: Sequence[str], report: Report, stop: threading.Event) -> None:
    """Report the progress of another process until it has finished or given up."""
    began_s = time.monotonic()
    first = {name: store.source(name).seed_rows for name in sources}
    while not stop.is_set():
        states = [store.source(name) for name in sources]
        for state in states:
            rate = (state.seed_rows - first[state.name]) / max(time.monotonic() - began_s, 1e-3)
            is_done = state.status not in _TO_SEED
            report(
                Progress(state.name, state.seed_rows, state.seed_estimate, max(rate, 0.0), is_done)
            )
        if all(state.status not in _TO_SEED or state.problem for state in states):
            return
        stop.wait(LOOK_S)
