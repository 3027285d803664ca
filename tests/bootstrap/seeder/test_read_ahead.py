"""A scan on its own thread reads one chunk ahead, and is used by that thread alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from databus.bootstrap.seeder.read_ahead import ReadAheadScan
from databus.relay.sources.table_scan import Chunk, KeyRange
from databus.schemas.errors import SourceUnavailableError
from databus.schemas.table import Column, Table
from tests import PATIENCE_S

TABLE = Table("shop.t", (Column("id", "int", 0, False, 0),))


class Numbers:
    """A scan of chunks of one row each, which notes the threads that use it."""

    name = "shop"

    def __init__(self, chunks: int, fails_at: int | None = None) -> None:
        self.threads: set[threading.Thread] = set()
        self.read = threading.Semaphore(0)
        self.begun = 0
        self.is_ended = False
        self._chunks = chunks
        self._fails_at = fails_at

    def _note(self) -> None:
        self.threads.add(threading.current_thread())

    open = close = _note

    def table(self, _source: str) -> Table:
        self._note()
        return TABLE

    def is_chunked(self, _source: str) -> bool:
        self._note()
        return True

    def estimate_rows(self, _source: str) -> int:
        self._note()
        return self._chunks

    visible_scn = newest_scn = lambda self: 7

    def key_range(self, _source: str) -> KeyRange | None:
        self._note()
        return KeyRange(0, self._chunks - 1)

    def chunks(self, source: str, rows: int, resume: str | None = None) -> Iterator[Chunk]:
        assert (source, rows) == ("shop.t", 1)
        begin = 0 if resume is None else int(resume) + 1
        return self.chunks_within(source, rows, KeyRange(begin, self._chunks - 1))

    def chunks_within(self, _source: str, _rows: int, within: KeyRange) -> Iterator[Chunk]:
        try:
            for number in range(within.first, within.last + 1):
                self._note()
                self.begun += 1
                if number == self._fails_at:
                    raise SourceUnavailableError("gone")
                self.read.release()
                last = number == within.last
                yield Chunk(TABLE, [{"id": number}], None if last else str(number))
        finally:
            self._note()
            self.is_ended = True


def opened(numbers: Numbers) -> ReadAheadScan:
    scan = ReadAheadScan(numbers)
    scan.open()
    return scan


def ids(chunks: Iterator[Chunk]) -> list[int]:
    return [row["id"] for chunk in chunks for row in chunk.rows]


def test_every_chunk_comes_once_and_in_order() -> None:
    scan = opened(numbers := Numbers(5))
    try:
        assert ids(scan.chunks("shop.t", 1)) == [0, 1, 2, 3, 4]
        assert ids(scan.chunks("shop.t", 1, "2")) == [3, 4]
        assert ids(scan.chunks_within("shop.t", 1, KeyRange(1, 3))) == [1, 2, 3]
    finally:
        scan.close()
    assert numbers.is_ended


def test_one_chunk_is_read_while_one_is_used_and_no_more() -> None:
    scan = opened(numbers := Numbers(5))
    try:
        chunks = scan.chunks("shop.t", 1)
        next(chunks)
        for _ in range(2):
            assert numbers.read.acquire(timeout=PATIENCE_S)
        # All calls before this one are done.
        scan.table("shop.t")
        assert numbers.begun == 2
        chunks.close()
    finally:
        scan.close()


def test_one_other_thread_uses_the_scan_and_is_gone_afterwards() -> None:
    scan = opened(numbers := Numbers(3))
    ids(scan.chunks("shop.t", 1))
    calls = (scan.table, scan.is_chunked, scan.estimate_rows, scan.key_range)
    assert [call("shop.t") for call in calls] == [TABLE, True, 3, KeyRange(0, 2)]
    assert scan.visible_scn() == scan.newest_scn() == 7
    scan.close()
    scan.close()
    (thread,) = numbers.threads
    assert thread is not threading.current_thread()
    assert not thread.is_alive()


def test_a_read_that_is_given_up_ends_on_the_thread_that_reads() -> None:
    scan = opened(numbers := Numbers(5))
    chunks = scan.chunks("shop.t", 1)
    next(chunks)
    chunks.close()
    scan.close()
    assert numbers.is_ended
    assert len(numbers.threads) == 1


def test_an_error_comes_after_the_chunks_before_it() -> None:
    scan = opened(Numbers(5, fails_at=2))
    try:
        chunks = scan.chunks("shop.t", 1)
        assert [next(chunks).resume, next(chunks).resume] == ["0", "1"]
        with pytest.raises(SourceUnavailableError, match="gone"):
            next(chunks)
    finally:
        scan.close()


def test_closing_ends_a_read_that_somebody_still_holds() -> None:
    scan = opened(numbers := Numbers(5))
    chunks = scan.chunks("shop.t", 1)
    next(chunks)
    scan.close()
    assert numbers.is_ended
    assert len(numbers.threads) == 1
    chunks.close()
