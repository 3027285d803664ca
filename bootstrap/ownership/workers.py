"""What fills one store, and where it may run: in the one process that has the store locked."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, NamedTuple, Protocol

from databus.bootstrap.store.file import WriteLease
from databus.conf.settings import BootstrapSettings, PhysicalSourceSettings


class Worker(Protocol):
    """A producer, seeder or packer of one store; works in the background until it is stopped."""

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


class MakeWorker(Protocol):
    """Makes a worker of a physical source; with a `lease`, it writes under that."""

    def __call__(
        self,
        settings: BootstrapSettings,
        physical: PhysicalSourceSettings,
        *,
        lease: WriteLease | None = None,
    ) -> Worker:
        """Return a new worker, which was not started."""
        ...


class Ownership(NamedTuple):
    """The lease of a store, as one of the processes sees it."""

    role: Literal["active", "taking over", "standby"]
    owner: str
    """The process that has the lease, or had it last; "" = unknown."""
    term: int
    problem: str


class StoreWorkers(Protocol):
    """The workers of one store in this process."""

    running: Mapping[str, Worker]
    """The workers that may write now, "producer", "seeding" and "packing"; replaced as a whole."""

    def ownership(self) -> Ownership | None:
        """Return the state of the store's lease; None without one."""
        ...

    def start(self) -> None:
        """Start to work, or to wait for it."""

    def stop(self, timeout_s: float) -> bool:
        """Stop all; return whether everything stopped in time."""
        ...


class LockedWorkers:
    """Workers of a store that this process has locked for its whole life."""

    def __init__(self, workers: Mapping[str, Worker]) -> None:
        self.running = workers

    def ownership(self) -> None:
        """There is no lease."""
        return

    def start(self) -> None:
        """Start the workers."""
        for worker in self.running.values():
            worker.start()

    def stop(self, timeout_s: float) -> bool:
        """Stop the workers; return whether they stopped in time."""
        return stop_all(list(self.running.values()), timeout_s)


def stop_all(workers: Sequence[Worker], timeout_s: float) -> bool:
    """Stop workers in parallel; return whether all stopped in time."""
    with ThreadPoolExecutor(max(1, len(workers))) as threads:
        return all(list(threads.map(lambda worker: worker.stop(timeout_s), workers)))


def left_s(end_s: float) -> float:
    """Return the seconds until a moment of `time.monotonic`, at least 0."""
    return max(0.0, end_s - time.monotonic())
