from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from databus.conf.settings import PhysicalSourceSettings
from databus.registry.registry import SchemaRegistry
from databus.registry.store import MemoryStore
from databus.relay.capture.capture import Capture
from databus.relay.capture.heartbeat import Heartbeat
from databus.relay.capture.status import State
from databus.relay.capture.window_encoder import WindowEncoder
from databus.relay.clock import Clock
from databus.relay.ring.ring import EncodedWindow
from databus.relay.sources.epochs import EpochWaitError
from databus.relay.sources.source import Newest, RowChange
from databus.relay.sources.window_writer import BATCH_BYTES
from databus.schemas.errors import (
    RingError,
    SourceStoppedError,
    SourceUnavailableError,
    TransactionTooLargeError,
)
from databus.schemas.event.metadata import Op
from databus.schemas.event.v2 import Buffer
from databus.schemas.log_mark import LogMark
from databus.schemas.windows import MARK, NO_PLACE, WindowBatch, WindowEnd, WindowPiece
from tests import PATIENCE_S
from tests.relay.fakes import ORDERS, PERSON, FakeSource, insert, transaction, wait_until


class FakeRing:
    """Keeps windows in a list; raises what the test says, at the SCN it says."""

    def __init__(self, *scns: int) -> None:
        self.scns = list(scns)
        self.errors: dict[int, Exception] = {}
        self.unfinished = b""
        self.extended = self.lifted = 0
        self.finished: list[bytes] = []
        self.marks: list[LogMark] = []

    def note_mark(self, mark: LogMark) -> None:
        self.marks.append(mark)

    def log_marks(self) -> list[LogMark]:
        return self.marks[-2:]

    @property
    def max_scn(self) -> int:
        return self.scns[-1] if self.scns else -1

    @property
    def newest_timestamp_ns(self) -> int:
        return 7 * self.max_scn if self.scns else 0

    def restart_after(self, scn: int) -> None:
        self.scns = [scn]

    def append(self, windows: Sequence[EncodedWindow]) -> None:
        for window in windows:
            if window.scn in self.errors:
                raise self.errors[window.scn]
            assert window.scn > self.max_scn
            self.scns.append(window.scn)
        self.unfinished = b""

    def append_batch(self, batch: WindowBatch) -> None:
        self.append(list(batch.windows()))

    def reserve(self, size_bytes: int) -> tuple[int, memoryview] | None:
        return 0, memoryview(bytearray(size_bytes))

    def lift(self, batch: WindowBatch) -> WindowBatch:
        self.lifted += 1
        return batch._replace(data=bytes(batch.size_bytes), place=NO_PLACE)

    def extend(self, at: int, data: Buffer) -> None:
        assert at <= len(self.unfinished)
        self.extended += 1
        self.unfinished = self.unfinished[:at] + bytes(data)

    def finish(self, length: int, scn: int, timestamp_ns: int) -> None:
        assert length == len(self.unfinished)
        assert scn > self.max_scn
        self.finished.append(self.unfinished)
        self.unfinished = b""
        self.scns.append(scn)


class FakeMaxScn:
    def __init__(self, scn: int | None = None) -> None:
        self.scn = scn
        self.kept: LogMark | None = None
        self.saves = 0
        self.error: Exception | None = None

    def load(self) -> int | None:
        return self.scn

    def mark(self) -> LogMark | None:
        return self.kept

    def save(self, scn: int, timestamp_ns: int, mark: LogMark | None = None) -> None:
        if self.error is not None:
            raise self.error
        self.kept = mark
        self.scn = scn
        self.saves += 1


class FakeTime:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def clock(self) -> Clock:
        return Clock(lambda: self.now_s, lambda: int(self.now_s * 1e9))


class Bench:
    """A capture loop and all that it works with."""

    def __init__(self) -> None:
        self.settings = PhysicalSourceSettings(
            name="shop",
            uri="fake:",
            sources=(PERSON.source, ORDERS.source),
            reconnect_min_s=0.001,
            reconnect_max_s=0.002,
        )
        self.source = FakeSource(self.settings, [PERSON])
        self.ring = FakeRing()
        self.max_scn = FakeMaxScn()
        self.time = FakeTime()
        self.appends = 0
        self.problems: list[Exception] = []
        self.registry = SchemaRegistry(MemoryStore())
        self.registry.add_source(PERSON.source, 1)
        self.capture: Capture | None = None

    def start(self) -> Capture:
        encoder = WindowEncoder(self.registry, {PERSON.source: 1})
        self.capture = Capture(
            self.settings,
            lambda settings: self.source,
            self.ring,
            encoder,
            self.max_scn,
            self.count_append,
            flush_s=1.0,
            clock=self.time.clock(),
            on_problem=self.problems.append,
        )
        self.capture.start()
        return self.capture

    def count_append(self) -> None:
        self.appends += 1

    def wait_for(self, *scns: int) -> None:
        wait_until(lambda: self.ring.scns == list(scns))


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    if made.capture is not None:
        assert made.capture.stop(PATIENCE_S)


def test_what_is_committed_gets_into_the_ring_and_is_announced(bench: Bench) -> None:
    capture = bench.start()
    bench.source.put(transaction(1, insert(1)), transaction(2, insert(2), insert(3)))
    bench.wait_for(1, 2)
    assert capture.wait_for(State.RUNNING, PATIENCE_S)
    assert bench.appends > 0
    status = capture.status
    assert (status.state, status.scn, status.windows, status.events) == (State.RUNNING, 2, 2, 3)


def test_it_rests_after_a_few_rows_and_misses_none(bench: Bench) -> None:
    bench.settings = bench.settings.model_copy(update={"coalesce_ms": 1})
    bench.start()
    for scn in range(1, 20):
        bench.source.put(transaction(scn, insert(scn)))
    bench.wait_for(*range(1, 20))


def test_a_log_that_is_doubted_is_opened_again_and_has_no_lag_until_then(bench: Bench) -> None:
    capture = bench.start()
    bench.source.put(transaction(1, insert(1)), transaction(2))
    wait_until(lambda: capture.place.reading_at == 2)
    bench.source.answers.clear()
    capture.place.cast_doubt("it was reset")
    wait_until(lambda: len(bench.source.opened_after) == 2)
    assert (capture.status.known_delay_s, capture.place.reading_at) == (None, None)
    bench.source.answers.set()
    assert capture.wait_for(State.RUNNING, PATIENCE_S)
    wait_until(lambda: capture.place.reading_at == 2)
    assert bench.source.opened_after == [None, 1]
    assert "it was reset" in str(bench.problems[0])


def test_what_an_open_stream_has_passed_is_its_newest_though_the_ring_has_it_not(
    bench: Bench,
) -> None:
    capture = bench.start()
    bench.source.put(transaction(1, insert(1)), transaction(2))
    wait_until(lambda: capture.place.reading_at == 2)
    assert bench.ring.scns == [1]
    assert capture.place.newest == Newest(2, transaction(2).timestamp_ns)
    capture.pause()
    assert capture.wait_for(State.PAUSED, PATIENCE_S)
    assert capture.place.newest == Newest(1, 7)


def test_the_tables_are_published_before_the_first_row(bench: Bench) -> None:
    bench.start()
    wait_until(lambda: len(bench.registry.versions(PERSON.source)) == 1)
    assert bench.registry.latest(PERSON.source).version == 1


@pytest.mark.parametrize(
    ("ring", "saved", "begin"),
    [((), None, None), ((), 7, 7), ((9,), None, 9), ((9,), 7, 7), ((9,), 12, 9)],
)
def test_capture_begins_after_the_older_of_ring_and_max_scn(
    bench: Bench, ring: tuple[int, ...], saved: int | None, begin: int | None
) -> None:
    bench.ring, bench.max_scn = FakeRing(*ring), FakeMaxScn(saved)
    bench.start()
    wait_until(lambda: bool(bench.source.opened_after))
    assert bench.source.opened_after[0] == begin
    assert bench.source.told_newest == [Newest(9, 63) if ring else None]


def test_what_the_ring_has_already_is_dropped(bench: Bench) -> None:
    bench.ring, bench.max_scn = FakeRing(1, 2, 3), FakeMaxScn(1)
    bench.source.put(*(transaction(scn, insert(scn)) for scn in range(1, 6)))
    bench.start()
    bench.wait_for(1, 2, 3, 4, 5)
    assert bench.ring.scns == [1, 2, 3, 4, 5]


def test_a_source_that_goes_back_stops_with_an_error(bench: Bench) -> None:
    capture = bench.start()
    bench.source.put(transaction(5, insert(1)), transaction(3, insert(2)))
    wait_until(lambda: capture.status.reconnects == 1 and capture.status.is_connected)
    bench.source.put(transaction(3, insert(2)))  # and on another connection, too
    assert capture.wait_for(State.ERROR, PATIENCE_S)
    assert "went back to scn 3" in capture.status.problem
    assert bench.ring.scns == [5]


def test_a_source_out_of_reach_is_tried_again_for_ever(bench: Bench) -> None:
    bench.source.fail(*(SourceUnavailableError("no route") for _ in range(20)))
    capture = bench.start()
    bench.source.put(transaction(1, insert(1)))
    bench.wait_for(1)
    assert capture.wait_for(State.RUNNING, PATIENCE_S)
    assert capture.status.reconnects == 20
    assert capture.status.problem == ""


def test_a_reconnect_goes_on_after_the_last_window_appended(bench: Bench) -> None:
    bench.start()
    bench.source.put(transaction(1, insert(1)))
    bench.wait_for(1)
    bench.source.fail(SourceUnavailableError("gone"))
    bench.source.put(transaction(2, insert(2)))
    bench.wait_for(1, 2)
    assert bench.source.opened_after == [None, 1]


@pytest.mark.parametrize("chance", [0.0, 0.999])
def test_no_wait_for_the_next_try_is_longer_than_the_longest(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, chance: float
) -> None:
    monkeypatch.setattr(random, "random", lambda: chance)
    bench.settings = bench.settings.model_copy(
        update={"reconnect_min_s": 3600.0, "reconnect_max_s": 3600.0}
    )
    bench.source.fail(SourceUnavailableError("no route"))
    capture = bench.start()
    wait_until(lambda: capture.status.problem == "no route")
    next_try_at = capture.status.next_try_at
    assert next_try_at is not None
    assert 0.8 * 3600 <= next_try_at - bench.time.now_s <= 3600


def test_peers_that_are_waited_for_are_asked_again_soon(bench: Bench) -> None:
    bench.settings = bench.settings.model_copy(
        update={"reconnect_min_s": 3600.0, "reconnect_max_s": 3600.0}
    )
    bench.source.fail(EpochWaitError("waits for b:1"))
    capture = bench.start()
    wait_until(lambda: capture.status.problem == "waits for b:1")
    next_try_at = capture.status.next_try_at
    assert next_try_at is not None
    assert 0 < next_try_at - bench.time.now_s <= 2


def test_the_problem_is_told_while_the_source_is_out_of_reach(bench: Bench) -> None:
    bench.settings = bench.settings.model_copy(
        update={"reconnect_min_s": 3600.0, "reconnect_max_s": 3600.0}
    )
    bench.source.fail(SourceUnavailableError("no route"))
    capture = bench.start()
    wait_until(lambda: capture.status.problem == "no route")
    status = capture.status
    assert (status.state, status.is_connected) == (State.UNREACHABLE, False)
    assert status.since == bench.time.now_s
    assert status.next_try_at is not None
    assert status.next_try_at > status.since
    assert status.known_delay_s is None


@pytest.mark.parametrize(
    "error", [SourceStoppedError("shop", 1, "do this"), ValueError("a bug"), OSError("disk")]
)
def test_any_other_error_stops_the_source_until_it_is_started(
    bench: Bench, error: Exception
) -> None:
    bench.source.fail(error, error)
    capture = bench.start()
    assert capture.wait_for(State.ERROR, PATIENCE_S)
    assert str(error.args[0]) in capture.status.problem or "do this" in capture.status.problem
    assert not bench.source.is_open
    bench.source.put(transaction(1, insert(1)))
    capture.start()
    bench.wait_for(1)
    assert capture.wait_for(State.RUNNING, PATIENCE_S)
    assert capture.status.problem == ""


def test_a_row_that_does_not_fit_stops_the_source_after_the_windows_before_it(
    bench: Bench,
) -> None:
    capture = bench.start()
    bad = RowChange(PERSON, Op.INSERT, {"id": "no number", "name": "x"})
    bench.source.put(transaction(1, insert(1)), transaction(2, bad), transaction(3, insert(3)))
    assert capture.wait_for(State.ERROR, PATIENCE_S)
    problem = capture.status.problem
    assert "stopped after scn 1" in problem
    assert "row 0 of the transaction at scn 2" in problem
    assert "'id'" in problem
    assert "acknowledged_scns = [2]" in problem
    assert bench.ring.scns == [1]


def test_a_transaction_larger_than_the_ring_loses_nothing(bench: Bench) -> None:
    bench.ring.errors[2] = TransactionTooLargeError("shop", 2, 100, 10)
    capture = bench.start()
    bench.source.put(*(transaction(scn, insert(scn)) for scn in (1, 2, 3)))
    assert capture.wait_for(State.ERROR, PATIENCE_S)
    assert "ring_bytes" in capture.status.problem
    assert bench.ring.scns == [1]
    assert bench.appends == 1
    bench.ring.errors.clear()
    capture.start()
    bench.wait_for(1, 2, 3)


def test_only_what_the_ring_took_is_counted(bench: Bench) -> None:
    bench.ring.errors[3] = TransactionTooLargeError("shop", 3, 900, 100)
    bench.source.put(*(transaction(scn, insert(scn), insert(scn + 50)) for scn in range(1, 5)))
    capture = bench.start()
    assert capture.wait_for(State.ERROR, PATIENCE_S)
    assert (capture.status.windows, capture.status.events) == (2, 4)
    bench.ring.errors.clear()
    capture.start()
    bench.wait_for(1, 2, 3, 4)
    wait_until(lambda: capture.status.events == 8)


def test_a_large_transaction_that_does_not_fit_is_what_the_problem_names(bench: Bench) -> None:
    # More than is appended at once: it fails before the end of what was read.
    large = transaction(2, *(insert(key, "x" * 1000) for key in range(BATCH_BYTES // 1000)))
    bench.ring.errors[2] = TransactionTooLargeError("shop", 2, 100, 10)
    capture = bench.start()
    bench.source.put(transaction(1, insert(1)), large, transaction(3, insert(3)))
    assert capture.wait_for(State.ERROR, PATIENCE_S)
    assert "ring_bytes" in capture.status.problem
    assert bench.ring.scns == [1]
    assert bench.appends == 1


UNWRITABLE = [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EPERM]


def unwritable(number: int) -> RingError:
    error = RingError(os.strerror(number))
    error.__cause__ = OSError(number, os.strerror(number))
    return error


@pytest.mark.parametrize("number", UNWRITABLE)
def test_a_disk_that_cannot_be_written_under_the_ring_is_waited_for(
    bench: Bench, number: int
) -> None:
    bench.ring.errors[1] = unwritable(number)
    capture = bench.start()
    bench.source.put(transaction(1, insert(1)))
    wait_until(lambda: capture.status.reconnects >= 5)
    assert capture.status.state is not State.ERROR
    bench.ring.errors.clear()
    bench.wait_for(1)
    assert capture.wait_for(State.RUNNING, PATIENCE_S)
    assert capture.status.problem == ""


@pytest.mark.parametrize("number", UNWRITABLE)
def test_max_scn_that_cannot_be_saved_keeps_no_window_back_and_is_saved_later(
    bench: Bench, number: int
) -> None:
    bench.max_scn.error = unwritable(number)
    capture = bench.start()
    bench.source.put(transaction(1, insert(1)))
    bench.wait_for(1)
    assert capture.wait_for(State.RETRYING, PATIENCE_S)
    status = capture.status
    assert status.is_connected
    assert os.strerror(number) in status.problem
    assert ("make room" in status.problem) is (number == errno.ENOSPC)
    bench.source.put(transaction(2, insert(2)))
    bench.wait_for(1, 2)
    bench.max_scn.error = None
    bench.time.now_s += 1.0
    assert capture.wait_for(State.RUNNING, PATIENCE_S)
    assert (bench.max_scn.scn, capture.status.problem, capture.status.reconnects) == (2, "", 0)


class Told:
    """Every state that a capture loop took, with the time from which on it says that it is so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.states: list[State] = []
        note = Capture._note

        def told(capture: Capture, state: State, *more: Any) -> None:
            self.states.append(state)
            note(capture, state, *more)

        monkeypatch.setattr(Capture, "_note", told)


def _has_failed_since(capture: Capture, reconnects: int) -> bool:
    return capture.status.reconnects > reconnects


def test_a_source_that_opens_and_says_nothing_is_starting_and_then_away_and_never_well(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told(monkeypatch)
    bench.source.is_at_end = False
    capture = bench.start()
    wait_until(lambda: bench.source.reads > 2)
    status = capture.status
    assert (status.state, status.is_connected, status.was_opened) == (State.STARTING, False, False)
    first_at = bench.time.now_s
    for _ in range(3):
        before = capture.status.reconnects
        bench.source.fail_to_read(SourceUnavailableError("silent for 10 s"))
        wait_until(partial(_has_failed_since, capture, before))
        bench.time.now_s += 10
        wait_until(lambda: bench.source.is_open and bench.source.reads > 2)
        assert capture.status.problem == "silent for 10 s"
    assert set(told.states) == {State.STARTING, State.UNREACHABLE}
    assert capture.status.since == first_at
    bench.source.is_at_end = True
    assert capture.wait_for(State.RUNNING, PATIENCE_S)
    assert capture.status.was_opened


def test_what_could_not_be_taken_is_retried_without_looking_well_in_between(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.source.is_at_end, bench.source.empty_reads = False, 3
    told = Told(monkeypatch)
    bench.ring.errors[2] = unwritable(errno.ENOSPC)
    capture = bench.start()
    bench.source.put(transaction(1, insert(1)), transaction(2, insert(2)))
    wait_until(lambda: capture.status.reconnects >= 3)
    # What the ring has already is read again, as after a crash: that is no proof.
    bench.max_scn.scn = 0
    before = capture.status.reconnects
    wait_until(lambda: capture.status.reconnects >= before + 3)
    assert set(told.states) == {State.STARTING, State.RETRYING}
    bench.ring.errors.clear()
    assert capture.wait_for(State.RUNNING, PATIENCE_S)
    assert bench.ring.scns == [1, 2]


def test_a_window_in_pieces_proves_a_connection_once_it_is_further_than_where_it_failed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told(monkeypatch)
    bench.source.is_at_end = False
    capture = bench.start()
    bench.source.put(batch(1), WindowPiece(0, b"abc", 1))
    wait_until(lambda: bench.ring.unfinished == b"abc")
    assert capture.wait_for(State.RUNNING, PATIENCE_S)
    bench.source.fail(SourceUnavailableError("gone"))
    wait_until(lambda: capture.status.reconnects == 1)
    told.states.clear()
    bench.source.put(WindowPiece(0, b"abc", 1))
    wait_until(lambda: capture.place.piece_end == 3)
    wait_until(lambda: bench.source.reads > 5)
    assert told.states == []
    bench.source.put(WindowPiece(3, b"d", 1))
    assert capture.wait_for(State.RUNNING, PATIENCE_S)


def test_it_is_troubled_since_the_first_failure_whatever_fails_next(bench: Bench) -> None:
    bench.settings = bench.settings.model_copy(
        update={"reconnect_min_s": 3600.0, "reconnect_max_s": 3600.0}
    )
    bench.source.fail(SourceUnavailableError("no route"), damaged(b"a"))
    capture = bench.start()
    assert capture.wait_for(State.UNREACHABLE, PATIENCE_S)
    first_at = bench.time.now_s
    bench.time.now_s += 10
    capture.try_now()
    assert capture.wait_for(State.RETRYING, PATIENCE_S)
    assert capture.status.since == first_at


def test_max_scn_that_cannot_be_saved_is_told_across_connections(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.max_scn.error = unwritable(errno.ENOSPC)
    capture = bench.start()
    bench.source.put(transaction(1, insert(1)))
    assert capture.wait_for(State.RETRYING, PATIENCE_S)
    told = Told(monkeypatch)
    bench.source.fail(SourceUnavailableError("gone"))
    wait_until(lambda: capture.status.reconnects == 1 and capture.status.is_connected)
    assert set(told.states) == {State.UNREACHABLE, State.RETRYING}
    bench.max_scn.error = None
    bench.time.now_s += 1.0
    assert capture.wait_for(State.RUNNING, PATIENCE_S)


def damaged(evidence: bytes) -> SourceStoppedError:
    remedy = "to pass this place: acknowledged_scns = [9]"
    return SourceStoppedError("shop", 1, "damaged", "bin.1:9", evidence=evidence, remedy=remedy)


def test_what_is_read_otherwise_on_another_connection_stops_nothing(bench: Bench) -> None:
    bench.source.fail(damaged(b"a"), damaged(b"b"), damaged(b"a"))
    capture = bench.start()
    bench.source.put(transaction(1, insert(1)))
    bench.wait_for(1)
    assert capture.wait_for(State.RUNNING, PATIENCE_S)
    assert capture.status.reconnects == 3
    assert all("acknowledged_scns" not in str(error) for error in bench.problems)


def test_what_is_read_alike_on_two_connections_stops_capture_and_says_how_to_pass_it(
    bench: Bench,
) -> None:
    bench.source.fail(damaged(b"a"), SourceUnavailableError("away meanwhile"), damaged(b"a"))
    capture = bench.start()
    assert capture.wait_for(State.ERROR, PATIENCE_S)
    assert "acknowledged_scns = [9]" in capture.status.problem
    assert ["acknowledged_scns" in str(error) for error in bench.problems] == [False, False, True]


def test_a_source_that_is_silent_is_not_connected_before_it_is_given_up(bench: Bench) -> None:
    capture = bench.start()
    bench.source.put(transaction(1, insert(1)))
    wait_until(lambda: capture.status.is_connected)
    bench.source.silence_s = 1.0
    wait_until(lambda: capture.status.heard_at == bench.time.now_s - 1.0)
    assert capture.status.is_connected
    bench.source.silence_s = 5.0
    wait_until(lambda: not capture.status.is_connected)
    assert capture.status.state is State.RUNNING
    assert capture.status.known_delay_s is None


def test_pause_lets_go_of_the_source_and_start_goes_on(bench: Bench) -> None:
    capture = bench.start()
    bench.source.put(transaction(1, insert(1)))
    bench.wait_for(1)
    capture.pause()
    assert capture.wait_for(State.PAUSED, PATIENCE_S)
    assert not bench.source.is_open
    bench.source.put(transaction(2, insert(2)))
    assert bench.ring.scns == [1]
    capture.start()
    bench.wait_for(1, 2)


def test_stop_ends_a_wait_for_a_reconnect(bench: Bench) -> None:
    bench.settings = bench.settings.model_copy(
        update={"reconnect_min_s": 3600.0, "reconnect_max_s": 3600.0}
    )
    bench.source.fail(SourceUnavailableError("no route"))
    capture = bench.start()
    wait_until(lambda: capture.status.reconnects == 1)
    assert capture.stop(PATIENCE_S)
    assert capture.status.state is State.STOPPED


def test_a_stopped_capture_can_be_started_again(bench: Bench) -> None:
    capture = bench.start()
    bench.source.put(transaction(1, insert(1)))
    bench.wait_for(1)
    assert capture.stop(PATIENCE_S)
    bench.source.put(transaction(2, insert(2)))
    capture.start()
    bench.wait_for(1, 2)


def test_max_scn_is_saved_no_oftener_than_it_is_due_and_at_the_end(bench: Bench) -> None:
    capture = bench.start()
    bench.source.put(transaction(1, insert(1)))
    bench.wait_for(1)
    wait_until(lambda: bench.max_scn.scn == 1)
    bench.source.put(transaction(2, insert(2)))
    bench.wait_for(1, 2)
    assert bench.max_scn.saves == 1
    bench.time.now_s += 1.0
    wait_until(lambda: bench.max_scn.scn == 2)
    bench.source.put(transaction(3, insert(3)))
    bench.wait_for(1, 2, 3)
    assert capture.stop(PATIENCE_S)
    assert (bench.max_scn.scn, bench.max_scn.saves) == (3, 3)


def test_max_scn_can_be_saved_when_asked(bench: Bench) -> None:
    capture = bench.start()
    wait_until(lambda: bench.source.is_open)
    bench.source.put(transaction(1, insert(1)))
    wait_until(lambda: bench.max_scn.scn == 1)
    bench.source.put(transaction(2, insert(2)))
    bench.wait_for(1, 2)
    capture.save_soon()
    wait_until(lambda: bench.max_scn.scn == 2)


def test_empty_transactions_become_few_empty_windows(bench: Bench) -> None:
    bench.start()
    bench.source.put(*(transaction(scn) for scn in range(1, 100)))
    bench.wait_for(99)
    bench.source.put(*(transaction(scn) for scn in range(100, 200)))
    bench.time.now_s += 2.0
    bench.wait_for(99, 199)
    bench.source.put(transaction(200), transaction(201, insert(1)))
    bench.wait_for(99, 199, 201)


def batch(*scns: int) -> WindowBatch:
    """Return a batch of windows of one row event each."""
    marks = [
        MARK.pack(scn, 10 * number, scn * 1_000_000_000, 1) for number, scn in enumerate(scns, 1)
    ]
    return WindowBatch(bytes(10 * len(scns)), b"".join(marks))


def test_windows_that_the_source_wrote_are_appended_as_they_are(bench: Bench) -> None:
    capture = bench.start()
    bench.source.put(batch(1, 2), transaction(3, insert(1)), batch(4, 5, 6))
    bench.wait_for(1, 2, 3, 4, 5, 6)
    wait_until(lambda: capture.status.events == 6)
    assert (capture.status.windows, capture.status.size_bytes > 50) == (6, True)


def test_of_windows_that_the_ring_has_in_part_the_rest_is_appended(bench: Bench) -> None:
    bench.ring, bench.max_scn = FakeRing(1, 2, 3), FakeMaxScn(0)
    bench.source.put(batch(1), batch(2, 3, 4), batch(5))
    capture = bench.start()
    bench.wait_for(1, 2, 3, 4, 5)
    wait_until(lambda: capture.status.events == 2)


def test_windows_that_are_in_the_ring_s_room_are_lifted_only_where_it_has_some(
    bench: Bench,
) -> None:
    bench.ring, bench.max_scn = FakeRing(1, 2, 3), FakeMaxScn(0)
    placed = [each._replace(data=b"", place=100) for each in (batch(2, 3, 4), batch(5, 6))]
    bench.source.put(*placed)
    capture = bench.start()
    bench.wait_for(1, 2, 3, 4, 5, 6)
    wait_until(lambda: capture.status.events == 3)
    assert (bench.ring.lifted, capture.status.size_bytes) == (1, 30)


def test_written_windows_that_go_back_stop_with_an_error(bench: Bench) -> None:
    capture = bench.start()
    bench.source.put(batch(5), batch(3))
    wait_until(lambda: capture.status.reconnects == 1 and capture.status.is_connected)
    bench.source.put(batch(3))
    assert capture.wait_for(State.ERROR, PATIENCE_S)
    assert "went back to scn 3" in capture.status.problem


def test_a_window_in_pieces_is_one_window_and_nothing_comes_between_them(bench: Bench) -> None:
    bench.start()
    bench.source.put(batch(1), transaction(2))
    bench.wait_for(1)
    bench.source.put(WindowPiece(0, b"abc", 2), WindowPiece(3, b"def", 2), WindowPiece(4, b"x", 2))
    wait_until(lambda: bench.ring.unfinished == b"abcdx")
    bench.time.now_s += 100.0  # the empty window is due by now
    bench.source.put(WindowPiece(5, b"yz", 2), WindowEnd(7, 3, 3_000_000_000, 2))
    bench.wait_for(1, 3)
    assert bench.ring.finished == [b"abcdxyz"]


def test_a_window_in_pieces_that_the_ring_has_is_not_finished_again(bench: Bench) -> None:
    bench.ring, bench.max_scn = FakeRing(3), FakeMaxScn(1)
    bench.source.put(WindowPiece(0, b"abc", 2), WindowEnd(3, 3, 3_000_000_000, 2), batch(4))
    bench.start()
    bench.wait_for(3, 4)
    # Nor written: it would push what the ring has out of it.
    assert bench.ring.extended == 0


def test_a_window_in_pieces_that_never_ends_leaves_nothing(bench: Bench) -> None:
    capture = bench.start()
    bench.source.put(WindowPiece(0, b"abc", 2))
    bench.source.fail(SourceUnavailableError("gone"))
    wait_until(lambda: capture.status.reconnects == 1)
    bench.source.put(WindowPiece(0, b"d", 2), WindowEnd(1, 4, 4_000_000_000, 1))
    bench.wait_for(4)
    assert bench.ring.finished == [b"d"]


def test_an_empty_transaction_at_the_same_scn_is_nothing_new(bench: Bench) -> None:
    capture = bench.start()
    bench.source.put(transaction(1, insert(1)), transaction(1))
    bench.wait_for(1)
    bench.source.put(transaction(2, insert(2)))
    bench.wait_for(1, 2)
    assert capture.wait_for(State.RUNNING, PATIENCE_S)


def test_heartbeats_wait_longer_each_time_and_starts_over_after_data() -> None:
    idle, now_s, waits = Heartbeat(), 0.0, []
    for _ in range(9):
        started = now_s
        while not idle.is_due(now_s):
            now_s += 0.5
        waits.append(now_s - started)
        idle.empty_appended(now_s)
    assert waits == [0, 2, 4, 8, 16, 32, 60, 60, 60]
    idle.data_appended(now_s)
    assert not idle.is_due(now_s + 0.9)
    assert idle.is_due(now_s + 1)


def test_delay_is_from_commit_to_ring_until_all_is_captured(bench: Bench) -> None:
    capture = bench.start()
    bench.source.is_at_end = False
    late = replace(transaction(1, insert(1)), timestamp_ns=int(999.5e9))
    bench.source.put(late)
    bench.wait_for(1)
    assert capture.status.delay_s == pytest.approx(0.5)
    bench.source.is_at_end = True
    wait_until(lambda: capture.status.delay_s == 0)


def test_start_from_many_threads_makes_one_capture_thread(bench: Bench) -> None:
    capture = bench.start()
    callers = [threading.Thread(target=capture.start) for _ in range(10)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    named = [t for t in threading.enumerate() if t.name == "capture-shop"]
    assert len(named) == 1
