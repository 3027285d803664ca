"""Threads that read from stores, so that the event loop does not wait for a disk.

A store connection belongs to the thread that opened it. Each thread has one for every
physical source, opened on first use and closed when the thread ends.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from databus.bootstrap.server.source_lookup import Stores
from databus.bootstrap.store.store import Store
from databus.bootstrap.store.watch import StoreWatch, file_at
from databus.daemon.log_setup import about
from databus.schemas.errors import (
    BootstrapError,
    BootstrapTooOldError,
    DatabusError,
    RowsUnknownError,
)

log = logging.getLogger(__name__)

THREADS = 4

Result = TypeVar("Result")


class Work(Future[Result]):
    """The future result of a function. A cancelled one ends at its next read from a store."""

    is_given_up = False

    def cancel(self) -> bool:
        """Cancel, even while it runs; return whether it had not started."""
        self.is_given_up = True
        return super().cancel()


Job = tuple[Work[Any], Callable[[Stores], Any]]


class OpenStores:
    """The stores of one thread. A store whose file was replaced is opened again."""

    def __init__(self, paths: Mapping[str, Path], watch: StoreWatch | None = None) -> None:
        self._paths = paths
        self._watch = watch  # knows which stores are damaged
        self._open: dict[str, tuple[Store, tuple[int, int]]] = {}
        self.work: Work[Any] | None = None  # the function that runs now

    def look(self) -> Stores:
        """Return the stores that can be read now."""
        problems: dict[str, DatabusError] = {}
        for name, path in self._paths.items():
            try:
                self._keep_up(name, path)
            except (BootstrapError, BootstrapTooOldError) as error:
                problems[name] = error
        opened = {name: store for name, (store, _) in self._open.items() if name not in problems}
        return Stores(opened, problems)

    def note(self, error: BootstrapError) -> None:
        """Report an error that a read from one of them raised."""
        if self._watch is not None:
            for name in self._paths:
                self._watch.note(name, error)

    def look_soon(self) -> None:
        """Have all of them checked soon."""
        if self._watch is not None:
            for name in self._open:
                self._watch.look_soon(name)

    def read_again(self, error: RowsUnknownError) -> None:
        """Mark a source to be seeded again; raises BootstrapError.

        Uses a connection of its own: this thread's connections are read-only.
        """
        for store, _ in self._open.values():
            if error.source not in [state.name for state in store.sources()]:
                continue
            with closing(Store.open(store.path)) as writing:
                if writing.read_again(error.source, error.scn, error.problem):
                    about_it = about(source=error.source, scn=error.scn)
                    log.warning("%s: %s", error.source, error.problem, extra=about_it)

    def close(self) -> None:
        """Close every store."""
        while self._open:
            _, (store, _) = self._open.popitem()
            store.close()

    def _keep_up(self, name: str, path: Path) -> None:
        found = file_at(path)
        file = None if found is None else found[0]
        if found is not None and self._watch is not None:
            # Before the file is opened: a damaged store must not be read.
            self._watch.admit(name, *found)
        if name in self._open and self._open[name][1] != file:
            store, _ = self._open.pop(name)
            store.close()
        if name not in self._open and file is not None:
            store = Store.open(path, is_read_only=True)
            store.end_reads_when(self._is_given_up)
            self._open[name] = (store, file)

    def _is_given_up(self) -> bool:
        return self.work is not None and self.work.is_given_up


class StoreReaders:
    """A thread pool that runs functions of the stores. `run` may be called from any thread."""

    def __init__(
        self, paths: Mapping[str, Path], threads: int = THREADS, watch: StoreWatch | None = None
    ) -> None:
        self._paths = paths
        self._watch = watch
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"bootstrap-reader-{number}", daemon=True)
            for number in range(threads)
        ]

    def start(self) -> None:
        """Start the threads. Call it once."""
        for thread in self._threads:
            thread.start()

    def run(self, function: Callable[[Stores], Result]) -> Work[Result]:
        """Run a function of the existing stores; return a future of its result."""
        future: Work[Result] = Work()
        self._jobs.put((future, function))
        return future

    def stop(self, timeout_s: float | None = None) -> None:
        """Stop the threads after their current work; each closes its stores."""
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(None if end_s is None else max(0.0, end_s - time.monotonic()))

    def _work(self) -> None:
        stores = OpenStores(self._paths, self._watch)
        try:
            while (job := self._jobs.get()) is not None:
                _do(job, stores)
        finally:
            stores.close()


def _do(job: Job, stores: OpenStores) -> None:
    future, function = job
    # The caller gave up while it waited.
    if not future.set_running_or_notify_cancel():
        return
    stores.work = future
    try:
        result = _run(function, stores)
    except Exception as error:
        if isinstance(error, BootstrapError):
            stores.note(error)
        elif not isinstance(error, DatabusError):
            stores.look_soon()  # a damaged file may be the cause of an unexpected error
        future.set_exception(error)
    else:
        future.set_result(result)
    finally:
        stores.work = None


def _run(function: Callable[[Stores], Result], stores: OpenStores) -> Result:
    try:
        return function(stores.look())
    except RowsUnknownError as error:
        stores.read_again(error)
        raise
