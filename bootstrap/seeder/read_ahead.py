"""A scan on a thread of its own, which reads the next chunk while the one before is stored.

The database and the store then work at the same time. What is read is the same: a chunk's
place follows from the chunk before, and the store decides about each row by its SCN.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import ParamSpec, TypeVar

from databus.relay.sources.table_scan import Chunk, KeyRange, TableScan
from databus.schemas.table import Table

P = ParamSpec("P")
T = TypeVar("T")


class _Worker:
    """Runs calls one after another on one thread. A daemon: no call keeps the process alive."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a call after those before it."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(call(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)

        self._calls.put(run)
        return future

    def stop(self) -> None:
        """Wait for the calls, and end the thread."""
        self._calls.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (run := self._calls.get()) is not None:
            run()


class ReadAheadScan:
    """A `TableScan` that uses another one on its own thread, from `open` to `close`."""

    def __init__(self, scan: TableScan) -> None:
        self.name = scan.name
        self._scan = scan
        self._worker: _Worker | None = None
        self._reads: set[Generator[Chunk, None, None]] = set()

    def open(self) -> None:
        """See `TableScan`."""
        if self._worker is None:
            self._worker = _Worker(f"scan-{self.name}")
        self._call(self._scan.open)

    def close(self) -> None:
        """See `TableScan`; waits for a read that was begun."""
        worker, self._worker = self._worker, None
        if worker is not None:
            # What is left over of a read that failed may have a connection of its own.
            for reading in self._reads:
                worker.submit(reading.close)
            self._reads.clear()
            try:
                worker.submit(self._scan.close).result()
            finally:
                worker.stop()

    def table(self, source: str) -> Table:
        """See `TableScan`."""
        return self._call(self._scan.table, source)

    def is_chunked(self, source: str) -> bool:
        """See `TableScan`."""
        return self._call(self._scan.is_chunked, source)

    def estimate_rows(self, source: str) -> int:
        """See `TableScan`."""
        return self._call(self._scan.estimate_rows, source)

    def visible_scn(self) -> int:
        """See `TableScan`."""
        return self._call(self._scan.visible_scn)

    def newest_scn(self) -> int:
        """See `TableScan`."""
        return self._call(self._scan.newest_scn)

    def key_range(self, source: str) -> KeyRange | None:
        """See `TableScan`."""
        return self._call(self._scan.key_range, source)

    def chunks(
        self, source: str, rows: int, resume: str | None = None
    ) -> Generator[Chunk, None, None]:
        """See `TableScan`; the next chunk is being read while one is used."""
        return self._ahead(self._scan.chunks(source, rows, resume))

    def chunks_within(
        self, source: str, rows: int, within: KeyRange
    ) -> Generator[Chunk, None, None]:
        """See `TableScan`; the next chunk is being read while one is used."""
        return self._ahead(self._scan.chunks_within(source, rows, within))

    def _ahead(self, chunks: Iterator[Chunk]) -> Generator[Chunk, None, None]:
        worker = self._opened()
        # A generator, whose end is also the end of `chunks`.
        reading = _each(chunks)
        self._reads.add(reading)
        following = worker.submit(next, reading, None)
        try:
            while (chunk := following.result()) is not None:
                following = worker.submit(next, reading, None)
                yield chunk
        finally:
            self._reads.discard(reading)
            # After the chunk that is being read, and on the thread that reads.
            worker.submit(reading.close)

    def _call(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return self._opened().submit(call, *args, **kwargs).result()

    def _opened(self) -> _Worker:
        assert self._worker is not None, "a scan that is not open"
        return self._worker


def _each(chunks: Iterator[Chunk]) -> Generator[Chunk, None, None]:
    yield from chunks
