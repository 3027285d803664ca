"""A bootstrap pair in one process: producers, seeders and the readers of their stores.

Each part is optional: a process that only serves reads stores that another process writes, and so
does one that stands by. This module does no HTTP; `service` does.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from databus.bootstrap.admin.status import SeedRates, StatusWatch, StoreStatus
from databus.bootstrap.ownership.kill_timer import KillTimer
from databus.bootstrap.ownership.standby import StandbyWorkers
from databus.bootstrap.ownership.workers import (
    LockedWorkers,
    MakeWorker,
    Ownership,
    StoreWorkers,
    Worker,
    left_s,
)
from databus.bootstrap.ownership.write_guard import WriteGuard
from databus.bootstrap.producer.relay_monitor import RelayMonitor
from databus.bootstrap.seeder.job import store_path
from databus.bootstrap.server.pages_ahead import PagesAhead
from databus.bootstrap.server.reader_pool import StoreReaders
from databus.bootstrap.server.sessions import Sessions
from databus.bootstrap.server.source_lookup import Listed
from databus.bootstrap.store.file import WriteLease
from databus.bootstrap.store.values import SourceStatus
from databus.bootstrap.store.watch import StoreWatch
from databus.client.puller.transport import Transport
from databus.conf.settings import BootstrapSettings
from databus.daemon.credentials import ServerAccess
from databus.daemon.files import take_lock
from databus.leases.expiry import MARGIN
from databus.leases.places import open_leases
from databus.leases.store import LeaseStore
from databus.schemas.errors import InvalidParameterError, UnknownSourceError

RELAY_TIMEOUT_S = 2.0
_SERVED_OR_STOPPED = (SourceStatus.ACTIVE, SourceStatus.INACTIVE)


@dataclass(slots=True)
class Traffic:
    """Counters of the requests served. Written on the loop's thread only."""

    pages: int = 0
    rows: int = 0
    size_bytes: int = 0
    refusals: dict[str, int] = field(default_factory=dict)  # by the error's name on the wire


class Pair:
    """The parts of a pair that run in this process. Owns their threads and locks until `stop`.

    Raises SettingsError when another process has a producer on one of the stores, unless both
    stand by for each other.
    """

    def __init__(
        self,
        settings: BootstrapSettings,
        make_producer: MakeWorker | None = None,
        make_seeding: MakeWorker | None = None,
        make_packing: MakeWorker | None = None,
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
        kinds = {"producer": make_producer, "seeding": make_seeding, "packing": make_packing}
        self._makers = {name: make for name, make in kinds.items() if make is not None}
        with contextlib.ExitStack() as held:
            if make_producer is not None:
                for path in self.paths.values():
                    held.callback(_lock(path, is_shared=settings.fill_lease_s is not None))
            leases = self._open_leases(held) if self._makers and settings.fill_lease_s else None
            self._filling = {name: self._workers(name, leases) for name in self.paths}
            # Only now: an error before this line releases the locks.
            self._held = held.pop_all()

    def start(self) -> None:
        """Start the producers, the seeders and the readers."""
        self.start_workers()
        self.readers.start()
        self._watch.start()

    def start_workers(self) -> None:
        """Start the producers, the seeders and the check of the stores, without the readers."""
        self.store_watch.start()
        for workers in self._filling.values():
            workers.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Stop all parts. May be called twice."""
        end_s = time.monotonic() + timeout_s
        self.readers.stop(left_s(end_s))
        self._watch.stop(left_s(end_s))
        self.store_watch.stop(left_s(end_s))
        if self._stop_workers(left_s(end_s)):
            # A thread that has not stopped may still write: keep its lock until the process ends.
            self._held.close()

    @property
    def producers(self) -> Mapping[str, Worker]:
        """The producers that run in this process now, by physical source."""
        return self._running("producer")

    @property
    def seedings(self) -> Mapping[str, Worker]:
        """The seeders that run in this process now, by physical source."""
        return self._running("seeding")

    @property
    def packings(self) -> Mapping[str, Worker]:
        """The packers that run in this process now, by physical source."""
        return self._running("packing")

    def ownership(self, name: str) -> Ownership | None:
        """Return the lease of a store; None when it has none, or others fill it."""
        return self._filling[name].ownership()

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
        """Pause the workers of a physical source until `resume` or a restart.

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
        workers = list(self._filling[name].running.values())
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
        ownership = self.ownership(name)
        return store.to_json_value() | {
            "lease": None if ownership is None else ownership._asdict(),
            "producerProblem": _problem(self.producers.get(name)),
            "seedingProblem": _problem(self.seedings.get(name)),
            "packingProblem": _problem(self.packings.get(name)),
            "relayProblem": self.relays.troubles.get(name, ""),
        }

    def _problems(self, name: str, store: StoreStatus) -> Iterator[str]:
        running = self._filling[name].running
        for what in ("producer", "seeding", "packing"):
            if problem := _problem(running.get(what)):
                yield f"{what}: {problem}"
        ownership = self.ownership(name)
        if ownership is not None and ownership.problem:
            yield ownership.problem
        if damage := self.store_watch.problem(name):
            yield damage
        if trouble := self.relays.troubles.get(name):
            yield trouble
        yield from store.problems

    def _workers_of(self, name: str) -> list[Worker]:
        if name not in self.paths:
            raise UnknownSourceError(name, list(self.paths))
        workers = list(self._filling[name].running.values())
        if not workers:
            raise InvalidParameterError(
                "name", name, "this process only serves; ask the process that fills the store"
            )
        return workers

    def _running(self, kind: str) -> dict[str, Worker]:
        running = {name: workers.running for name, workers in self._filling.items()}
        return {name: of[kind] for name, of in running.items() if kind in of}

    def _make_transport(self) -> Transport:
        access = ServerAccess(self.settings.relay_access)
        return Transport(RELAY_TIMEOUT_S, access=access)

    def _open_leases(self, held: contextlib.ExitStack) -> LeaseStore:
        leases = open_leases(self.settings.coordinator or f"file:{self.settings.data_dir}")
        held.callback(leases.close)
        return leases

    def _workers(self, name: str, leases: LeaseStore | None) -> StoreWorkers:
        make = partial(self._make, name)
        ttl_s = self.settings.fill_lease_s
        if leases is None or ttl_s is None:
            return LockedWorkers(make())
        owner = f"{socket.gethostname()}:{os.getpid()}"
        # Then its lease is over, and another process may have it.
        guard = WriteGuard((1 + MARGIN) * ttl_s, KillTimer())
        return StandbyWorkers(self.paths[name], leases, owner, ttl_s, make, guard)

    def _make(self, name: str, lease: WriteLease | None = None) -> dict[str, Worker]:
        (physical,) = (one for one in self.settings.physical_sources if one.name == name)
        return {
            kind: make(self.settings, physical, lease=lease) for kind, make in self._makers.items()
        }

    def _stop_workers(self, timeout_s: float) -> bool:
        """Stop all workers in parallel; return whether all stopped in time."""
        workers = self._filling.values()
        with ThreadPoolExecutor(max(1, len(workers))) as threads:
            return all(list(threads.map(lambda one: one.stop(timeout_s), workers)))


def store_paths(settings: BootstrapSettings) -> dict[str, Path]:
    """Return the file of each physical source's store."""
    return {p.name: store_path(settings, p) for p in settings.physical_sources}


def listed_sources(settings: BootstrapSettings) -> Listed:
    """Return the names of each physical source's sources."""
    return {p.name: p.source_names for p in settings.physical_sources}


def _lock(path: Path, *, is_shared: bool) -> Callable[[], None]:
    """Keep out every process that does not stand by as this one does."""
    in_use = (
        f"store {path} has a producer already, and may have only one: stop that process, use "
        "another data_dir, or set `fill_lease_s` in the settings of both"
    )
    return take_lock(Path(f"{path}-producing"), in_use, is_shared=is_shared)


def _problem(worker: Worker | None) -> str:
    return "" if worker is None else worker.problem
