"""Seeding as a job: in the background of a producer, or once, for a command.

One process seeds a store at a time, the one that holds the lock beside its
file; a command that finds it held marks the tables as new and watches.
A database that cannot be reached is tried again with back-off. A table that
cannot be read stops alone: the text in the store says what to do about it, and
it is tried again at the next start, or when it is marked as new.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random

from databus.bootstrap.pace import Progress, Report
from databus.bootstrap.seeder import Seeder, has_log
from databus.bootstrap.store import Store
from databus.bootstrap.stored import SourceState, SourceStatus
from databus.client.back_off import BackOff
from databus.conf.file_lock import take_lock
from databus.conf.settings import BootstrapSettings, PhysicalSourceSettings
from databus.relay.sources.table_scan import TableScan, open_scan
from databus.schemas.errors import (
    BootstrapError,
    DatabusError,
    SettingsError,
    SourceError,
    SourceUnavailableError,
)

log = logging.getLogger(__name__)

LOOK_S = 1.0
_TO_SEED = (SourceStatus.NEW, SourceStatus.SEEDING)

OpenScan = Callable[[PhysicalSourceSettings], TableScan]


def store_path(settings: BootstrapSettings, physical: PhysicalSourceSettings) -> Path:
    """Return the file of a physical source's store."""
    return settings.data_dir / f"{physical.name}.db"


@contextmanager
def hold_seeding(path: Path) -> Iterator[bool]:
    """Hold the right to seed the store at `path`; yields False when somebody else has it."""
    try:
        let_go = take_lock(Path(f"{path}-seeding"), f"store {path} is being seeded")
    except SettingsError:
        yield False
        return
    try:
        yield True
    finally:
        let_go()


class TableSeeding:
    """Seeds tables of one store, each as far as it can be, on one thread.

    `stop` ends it after the chunk at hand.
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
        """Seed those of the sources that are to be, over as many connections as it takes."""
        while left := self._left(sources):
            try:
                self._seed_left(left)
                break
            except SourceUnavailableError as error:
                wait_s = self._back_off.next_s()
                name = self._physical.name
                log.warning("%s: seeding waits, next try in %.1f s: %s", name, wait_s, error)
                self._stop.wait(wait_s)

    def _left(self, sources: Sequence[str]) -> list[str]:
        """Return what can be done now; a table marked as new has no problem any more."""
        if self._stop.is_set():
            return []
        states = [self._store.source(name) for name in sources]
        return [
            state.name
            for state in states
            if state.status in _TO_SEED
            and (not state.problem or self._given_up.get(state.name) != state.problem)
        ]

    def _seed_left(self, sources: Sequence[str]) -> None:
        scan = self._open_scan(self._physical)
        try:
            scan.open()
            seeder = Seeder(
                self._store,
                scan,
                self._settings.chunk_rows,
                self._settings.most_rows_per_s,
                self._on_progress,
                self._stop,
            )
            for source in sources:
                self._seed_one(seeder, source)
        except SourceUnavailableError:
            raise
        except SourceError as error:
            for source in sources:
                self._give_up(source, error)
        finally:
            scan.close()

    def _seed_one(self, seeder: Seeder, source: str) -> None:
        if self._store.source(source).problem:
            self._store.set_problem(source, "")
        try:
            seeder.seed(source)
        except (SourceUnavailableError, BootstrapError):
            raise
        except DatabusError as error:
            self._give_up(source, error)

    def _give_up(self, source: str, error: DatabusError) -> None:
        log.error("seeding of %s stopped: %s", source, error)
        self._given_up[source] = str(error)
        self._store.set_problem(source, str(error))

    def _on_progress(self, progress: Progress) -> None:
        self._back_off.reset()
        self._report(progress)


class SeedingThread:
    """Seeds whatever of one store is to be seeded, in the background, until it is stopped.

    The public methods may be called from any thread.
    """

    def __init__(
        self,
        settings: BootstrapSettings,
        physical: PhysicalSourceSettings,
        report: Report = lambda _: None,
        open_scan: OpenScan = open_scan,
    ) -> None:
        self._settings = settings
        self._physical = physical
        self._report = report
        self._open_scan = open_scan
        self._stop = threading.Event()
        self._problem = ""
        self._thread = threading.Thread(
            target=self._run, name=f"seeding-{physical.name}", daemon=True
        )

    @property
    def problem(self) -> str:
        """What keeps it from working at all; what is wrong with one table is in the store."""
        return self._problem

    def start(self) -> None:
        """Start the thread; once."""
        self._thread.start()

    def stop(self, timeout_s: float | None = None) -> bool:
        """End the thread, after the chunk at hand; returns whether it ended in time."""
        self._stop.set()
        if self._thread.ident is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._work()
            except Exception as error:
                # Nothing else would say so: a thread has nobody to raise to.
                log.exception("seeding of %s failed; it is tried again", self._physical.name)
                self._problem = str(error) or repr(error)
            self._stop.wait(LOOK_S)

    def _work(self) -> None:
        path = store_path(self._settings, self._physical)
        with hold_seeding(path) as is_mine:
            if not is_mine:
                return
            with closing(Store.open(path)) as store:
                tables = TableSeeding(
                    self._settings,
                    self._physical,
                    store,
                    self._report,
                    self._stop,
                    self._open_scan,
                )
                while not self._stop.is_set():
                    tables.seed_all([s.name for s in store.sources() if has_log(store, s)])
                    store.activate_caught_up()
                    self._problem = ""
                    self._stop.wait(LOOK_S)


def seed(
    settings: BootstrapSettings,
    physical: PhysicalSourceSettings,
    sources: Sequence[str] | None,
    report: Report,
    stop: threading.Event,
    open_scan: OpenScan = open_scan,
) -> list[SourceState]:
    """Seed sources again, or those that are not seeded yet when none is named.

    Returns how they are afterwards: seeded, or with a problem. When another
    process seeds this store it does the work, and this one watches. Raises
    BootstrapError when the producer has not begun, UnknownSourceError.
    """
    path = store_path(settings, physical)
    if not path.exists():
        raise _not_begun(path)
    with closing(Store.open(path)) as store:
        if not any(has_log(store, state) for state in store.sources()):
            raise _not_begun(path)
        names = _mark(store, sources)
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


def _mark(store: Store, sources: Sequence[str] | None) -> list[str]:
    """Return which sources to seed: those that were named as new ones, all with no problem yet."""
    states = store.sources() if sources is None else [store.source(name) for name in sources]
    wanted = [state for state in states if sources is not None or state.status in _TO_SEED]
    for state in wanted:
        if state.status not in _TO_SEED:
            store.reset_source(state.name)
        elif state.problem:
            store.set_problem(state.name, "")
    return [state.name for state in wanted]


def _watch(store: Store, sources: Sequence[str], report: Report, stop: threading.Event) -> None:
    """Tell how far another process is, until it is through or has given up."""
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
