"""A bootstrap pair in one process: producers, seeders and the readers of their stores.

Each part is optional: a process that only serves reads stores that another process
writes. This module does no HTTP; `service` does.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from databus.bootstrap.admin.status import SeedRates, StatusWatch, StoreStatus
from databus.bootstrap.producer.relay_monitor import RelayMonitor
from databus.bootstrap.seeder.job import store_path
from databus.bootstrap.server.pages_ahead import PagesAhead
from databus.bootstrap.server.reader_pool import StoreReaders
from databus.bootstrap.server.sessions import Sessions
from databus.bootstrap.server.source_lookup import Listed
from databus.bootstrap.store.values import SourceStatus
from databus.bootstrap.store.watch import StoreWatch
from databus.client.puller.transport import Transport
from databus.conf.settings import BootstrapSettings, PhysicalSourceSettings
from databus.daemon.credentials import ServerAccess
from databus.daemon.files import take_lock
from databus.schemas.errors import InvalidParameterError, UnknownSourceError

RELAY_TIMEOUT_S = 2.0
_SERVED_OR_STOPPED = (SourceStatus.ACTIVE, SourceStatus.INACTIVE)


class Worker(Protocol):
    """The producer or the seeder of one store; works in the background until it is stopped."""

    @property
    def problem(self) -> str:
        """Why it does not work; empty when it does."""
        ...

    @property
    def is_paused(self) -> bool:
        """Whether it is paused."""
        ...

    def pause(self) -> None:
        """Pause until `resume`; returns at once."""

    def resume(self) -> None:
        """Continue after `pause`."""

    def start(self) -> None:
        """Start its thread. Call it once."""

    def stop(self, timeout_s: float | None = None) -> bool:
        """Stop its thread; return whether it stopped in time."""
        ...


MakeWorker = Callable[[BootstrapSettings, PhysicalSourceSettings], Worker]


@dataclass(slots=True)
class Traffic:
    """Counters of the requests served. Written on the loop's thread only."""

    pages: int = 0
    rows: int = 0
    size_bytes: int = 0
    refusals: dict[str, int] = field(default_factory=dict)  # by the error's name on the wire


class Pair:
    """The parts of a pair that run in this process. Owns their threads and locks until `stop`.

    Raises SettingsError when another process has a producer on one of the stores.
    """

    def __init__(
        self,
        settings: BootstrapSettings,
        make_producer: MakeWorker | None = None,
        make_seeding: MakeWorker | None = None,
    ) -> None:
        self.settings = settings
        self.traffic = Traffic()
        self.paths = store_paths(settings)
        self.listed = listed_sources(settings)
        self.store_watch = StoreWatch(self.paths)
        self.readers = StoreReaders(self.paths, watch=self.store_watch)
        self.pages = PagesAhead(self.readers, self.listed)
        self.sessions = Sessions(time.time)
        self.relays = RelayMonitor(settings.relays, list(self.paths), self._make_transport)
        self.started_at_s = time.time()
        self._watch = StatusWatch(self.paths)
        with contextlib.ExitStack() as locks:
            if make_producer is not None:
                for path in self.paths.values():
                    locks.callback(_lock(path))
            self.producers = _make_workers(settings, make_producer)
            self.seedings = _make_workers(settings, make_seeding)
            # Only now: an error before this line releases the locks.
            self._locks = locks.pop_all()

    def start(self) -> None:
        """Start the producers, the seeders and the readers."""
        self.start_workers()
        self.readers.start()
        self._watch.start()

    def start_workers(self) -> None:
        """Start the producers, the seeders and the check of the stores, without the readers."""
        self.store_watch.start()
        for worker in self._workers():
            worker.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Stop all parts. May be called twice."""
        end_s = time.monotonic() + timeout_s
        self.readers.stop(_left(end_s))
        self._watch.stop(_left(end_s))
        self.store_watch.stop(_left(end_s))
        if self._stop_workers(_left(end_s)):
            # A thread that has not stopped may still write: keep its lock until the process ends.
            self._locks.close()

    @property
    def stores(self) -> Mapping[str, StoreStatus]:
        """The newest status of each store, by physical source."""
        return self._watch.stores

    @property
    def seed_rates(self) -> SeedRates:
        """The rates at which tables are seeded."""
        return self._watch.seed_rates

    @property
    def is_ready(self) -> bool:
        """Whether every source in the settings is served, but for those that the relay stopped."""
        active = {
            (name, source.name)
            for name, store in self.stores.items()
            for source in store.sources
            if source.status in _SERVED_OR_STOPPED and not store.problem
        }
        return all((name, source) in active for name, of in self.listed.items() for source in of)

    def pause(self, name: str) -> None:
        """Pause the producer and the seeder of a physical source until `resume` or a restart.

        Raises UnknownSourceError, and InvalidParameterError when they run in another process.
        """
        for worker in self._workers_of(name):
            worker.pause()

    def resume(self, name: str) -> None:
        """Continue after `pause`; raises the same errors."""
        for worker in self._workers_of(name):
            worker.resume()

    def is_paused(self, name: str) -> bool | None:
        """Return whether a physical source's workers are paused; None when it has none here."""
        workers = self._find_workers(name)
        return any(worker.is_paused for worker in workers) if workers else None

    def source_names(self, texts: Iterable[str]) -> list[str]:
        """Return the names of sources that are given by name or by id."""
        names = {
            str(source.src_id): source.name
            for store in self.stores.values()
            for source in store.sources
        }
        return [names.get(text, text) for text in texts]

    def status(self) -> dict[str, dict[str, Any]]:
        """Return the status of each physical source, by name, as plain values."""
        return {name: self._status(name, store) for name, store in self.stores.items()}

    def problems(self) -> dict[str, list[str]]:
        """Return the problems of each physical source that has any."""
        found = {name: list(self._problems(name, store)) for name, store in self.stores.items()}
        return {name: problems for name, problems in found.items() if problems}

    def _status(self, name: str, store: StoreStatus) -> dict[str, Any]:
        return store.to_json_value() | {
            "producerProblem": _problem(self.producers.get(name)),
            "seedingProblem": _problem(self.seedings.get(name)),
            "relayProblem": self.relays.troubles.get(name, ""),
        }

    def _problems(self, name: str, store: StoreStatus) -> Iterator[str]:
        workers = (("producer", self.producers), ("seeding", self.seedings))
        for what, by_name in workers:
            if problem := _problem(by_name.get(name)):
                yield f"{what}: {problem}"
        if damage := self.store_watch.problem(name):
            yield damage
        if trouble := self.relays.troubles.get(name):
            yield trouble
        yield from store.problems

    def _workers_of(self, name: str) -> list[Worker]:
        if name not in self.paths:
            raise UnknownSourceError(name, list(self.paths))
        workers = self._find_workers(name)
        if not workers:
            raise InvalidParameterError(
                "name", name, "this process only serves; ask the process that fills the store"
            )
        return workers

    def _find_workers(self, name: str) -> list[Worker]:
        return [of[name] for of in (self.producers, self.seedings) if name in of]

    def _make_transport(self) -> Transport:
        access = ServerAccess(self.settings.relay_access)
        return Transport(RELAY_TIMEOUT_S, access=access)

    def _stop_workers(self, timeout_s: float) -> bool:
        """Stop all workers in parallel; return whether all stopped in time."""
        workers = self._workers()
        with ThreadPoolExecutor(max(1, len(workers))) as threads:
            return all(list(threads.map(lambda worker: worker.stop(timeout_s), workers)))

    def _workers(self) -> Sequence[Worker]:
        return [*self.producers.values(), *self.seedings.values()]


def store_paths(settings: BootstrapSettings) -> dict[str, Path]:
    """Return the file of each physical source's store."""
    return {p.name: store_path(settings, p) for p in settings.physical_sources}


def listed_sources(settings: BootstrapSettings) -> Listed:
    """Return the names of each physical source's sources."""
    return {p.name: p.source_names for p in settings.physical_sources}


def _make_workers(settings: BootstrapSettings, make: MakeWorker | None) -> dict[str, Worker]:
    if make is None:
        return {}
    return {physical.name: make(settings, physical) for physical in settings.physical_sources}


def _lock(path: Path) -> Callable[[], None]:
    in_use = (
        f"store {path} has a producer already, and may have only one: "
        "stop that process, or use another data_dir"
    )
    return take_lock(Path(f"{path}-producing"), in_use)


def _problem(worker: Worker | None) -> str:
    return "" if worker is None else worker.problem


def _left(end_s: float) -> float:
    return max(0.0, end_s - time.monotonic())
