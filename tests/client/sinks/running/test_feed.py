"""A sink over one physical source: positions, failures, and what an operator does."""

from __future__ import annotations

import errno
import json
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from databus.client.dispatcher.data_window import DataWindow
from databus.client.sinks.contract import Change, Position
from databus.client.sinks.errors import SinkError, SinkRefusedError, SinkUnavailableError
from databus.client.sinks.rules.alerts import Alert
from databus.client.sinks.running.feed import Feed, SinkState
from databus.client.sinks.running.lane import SLOW_CALL_S
from databus.client.sinks.running.plan import SinkPlan
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import CheckpointError, ScnNotFoundError
from databus.testing import change, make_window
from databus.testing.recorder import Recorder, RecorderSink
from tests import PATIENCE_S
from tests.client.shop import FakeClock, wait_until
from tests.client.sinks.changes import ListedStream, plan_of, window

REFUSING = {"refused": {"retries": 0, "then": "skip"}}


@contextmanager
def running(plan: SinkPlan, stream: ListedStream, **arguments: Any) -> Iterator[Feed]:
    feed = Feed(plan, stream, **arguments)
    feed.start()
    try:
        yield feed
    finally:
        feed.stop()


def keys(recorder: Recorder) -> list[int]:
    return [one.key["id"] for one in recorder.changes]


class Failing:
    """Fails while it is told to, or at one row."""

    def __init__(self, error: Callable[[], BaseException], row: int | None = None) -> None:
        self.is_on = True
        self.tries: list[list[int]] = []
        self._error, self._row = error, row

    def __call__(self, changes: Sequence[Change]) -> None:
        found = [one.key["id"] for one in changes]
        self.tries.append(found)
        if self.is_on and (self._row is None or self._row in found):
            raise self._error()


def test_positions_move_with_each_batch_and_when_nothing_comes_for_a_while() -> None:
    recorder = Recorder()
    stream = ListedStream(*(window(scn, ("t", scn)) for scn in range(1, 251)))
    plan = plan_of(recorder, flush={"rows": 100, "seconds": 3})
    with running(plan, stream):
        wait_until(lambda: stream.stored[-1:] == [250])
    assert stream.stored == [100, 200, 250]
    assert [len(one.changes) for one in recorder.writes] == [100, 100, 50]


def test_no_position_is_stored_before_the_target_has_the_rows() -> None:
    stream = ListedStream(*(window(scn, ("t", scn)) for scn in range(1, 51)))
    seen: list[tuple[list[int], int]] = []

    def look(changes: Sequence[Change]) -> None:
        seen.append((list(stream.stored), changes[0].scn))

    recorder = Recorder(fails=look)
    with running(plan_of(recorder, flush={"rows": 7}), stream):
        wait_until(lambda: stream.stored[-1:] == [50])
    assert all(stored == [] or stored[-1] < scn for stored, scn in seen)


def test_a_transaction_in_two_lanes_is_done_when_both_have_written() -> None:
    is_away = threading.Event()
    is_away.set()

    def one_table_is_away(changes: Sequence[Change]) -> None:
        if is_away.is_set() and any(one.source == "shop.b" for one in changes):
            raise SinkUnavailableError("away")

    for tables in (("a", "b"), ("b", "a")):
        is_away.set()
        recorder = Recorder(fails=one_table_is_away)
        stream = ListedStream(window(1, *((table, 1) for table in tables)), window(2, ("a", 2)))
        with running(plan_of(recorder, order="table", lanes=2), stream):
            wait_until(lambda recorder=recorder: keys(recorder) == [1, 2])  # type: ignore[misc]
            assert stream.stored == []
            is_away.clear()
            wait_until(lambda stream=stream: stream.stored[-1:] == [2])  # type: ignore[misc]


def test_windows_without_rows_for_the_sink_move_its_position_too() -> None:
    recorder, stream = Recorder(), ListedStream(window(1, ("t", 1)), window(2, ("t", 2)))
    with running(plan_of(recorder, tables=[{"sources": ["*"], "where": "id = 1"}]), stream):
        wait_until(lambda: stream.stored[-1:] == [2])
    assert keys(recorder) == [1]


def test_a_target_that_is_away_gets_everything_when_it_is_back() -> None:
    failing = Failing(lambda: SinkUnavailableError("away"))
    recorder = Recorder(fails=failing)
    stream = ListedStream(*(window(scn, ("t", scn)) for scn in range(1, 6)))
    with running(plan_of(recorder), stream) as feed:
        wait_until(lambda: len(failing.tries) > 3)
        assert feed.state is SinkState.FAILING
        trouble = feed.status.trouble
        assert trouble is not None
        assert trouble.change is not None
        assert (trouble.change.scn, trouble.is_final) == (1, False)
        failing.is_on = False
        wait_until(lambda: stream.stored[-1:] == [5])
        wait_until(lambda: feed.state is SinkState.RUNNING)
    assert keys(recorder) == [1, 2, 3, 4, 5]


def test_what_would_end_the_program_is_an_error_like_any_other() -> None:
    failing = Failing(lambda: SystemExit("cannot go on"))
    recorder = Recorder(fails=failing)
    stream = ListedStream(*(window(scn, ("t", scn)) for scn in range(1, 4)))
    with running(plan_of(recorder), stream) as feed:
        wait_until(lambda: feed.status.trouble is not None)
        trouble = feed.status.trouble
        assert trouble is not None
        assert "SystemExit: cannot go on" in trouble.problem
        failing.is_on = False
        feed.retry()
        wait_until(lambda: stream.stored[-1:] == [3])
    assert keys(recorder) == [1, 2, 3]


def test_a_row_that_is_refused_stops_the_sink_with_its_place_until_somebody_retries() -> None:
    failing = Failing(lambda: SinkRefusedError("too long"), row=2)
    recorder = Recorder(fails=failing)
    stream = ListedStream(*(window(scn, ("t", scn)) for scn in range(1, 5)))
    with running(plan_of(recorder), stream) as feed:
        wait_until(lambda: feed.state is SinkState.STOPPED)
        assert keys(recorder) == [1]
        assert stream.stored == [1]
        assert isinstance(feed.error, SinkRefusedError)
        failing.is_on = False
        feed.retry()
        wait_until(lambda: stream.stored[-1:] == [4])
    assert keys(recorder) == [1, 2, 3, 4]


def test_skip_drops_exactly_the_row_that_is_shown() -> None:
    failing = Failing(lambda: SinkRefusedError("too long"), row=2)
    recorder = Recorder(fails=failing)
    stream = ListedStream(*(window(scn, ("t", scn)) for scn in range(1, 5)))
    with running(plan_of(recorder), stream) as feed:
        wait_until(lambda: feed.state is SinkState.STOPPED)
        shown = feed.skip_row()
        assert shown is not None
        assert shown.key == {"id": 2}
        wait_until(lambda: stream.stored[-1:] == [4])
        assert feed.status.skipped == 1
        with pytest.raises(SinkError, match="no row fails"):
            feed.skip_row()
    assert keys(recorder) == [1, 3, 4]


def test_the_row_that_fails_in_a_batch_is_looked_for_before_it_is_skipped() -> None:
    failing = Failing(lambda: ValueError("one of many"), row=23)
    recorder = Recorder(fails=failing)
    stream = ListedStream(window(1, *(("t", key) for key in range(20, 26))), window(2, ("t", 9)))
    other = {"other": {"retries": 0, "then": "stop"}}
    with running(plan_of(recorder, failures=other), stream) as feed:
        wait_until(lambda: feed.state is SinkState.STOPPED)
        trouble = feed.status.trouble
        assert trouble is not None
        assert (trouble.change, trouble.rows) == (None, 6)
        assert feed.skip_row() is None  # it is looked for, row by row
        wait_until(lambda: getattr(feed.status.trouble, "change", None) is not None)
        shown = feed.skip_row()
        assert shown is not None
        assert shown.key == {"id": 23}
        wait_until(lambda: stream.stored[-1:] == [2])
    assert keys(recorder) == [20, 21, 22, 24, 25, 9]


def test_dead_letters_have_place_row_error_and_attempts(tmp_path: Path) -> None:
    failing = Failing(lambda: SinkRefusedError("too long"), row=23)
    recorder, file = Recorder(fails=failing), tmp_path / "letters.jsonl"
    stream = ListedStream(window(1, *(("t", key) for key in range(20, 26))), window(2, ("t", 9)))
    rule = {"refused": {"retries": 1, "then": "dead-letter"}, "dead_letters": file}
    with running(plan_of(recorder, failures=rule), stream) as feed:
        wait_until(lambda: stream.stored[-1:] == [2])
        assert feed.status.dead_letters == 1
        assert feed.state is SinkState.RUNNING
    assert sorted(keys(recorder)) == [9, 20, 21, 22, 24, 25]
    (letter,) = [json.loads(line) for line in file.read_text().splitlines()]
    assert {
        "sink": "test",
        "source": "shop.t",
        "scn": 1,
        "index": 3,
        "row": {"id": 23},
        "attempts": 2,
    }.items() <= letter.items()
    assert "too long" in letter["error"]
    assert file.stat().st_mode & 0o077 == 0


def test_an_alert_is_raised_after_a_while_and_one_when_all_is_well() -> None:
    failing = Failing(lambda: SinkUnavailableError("away"))
    told: list[Alert] = []
    stream, clock = ListedStream(window(1, ("t", 1))), FakeClock()
    plan = plan_of(Recorder(fails=failing), flush={"rows": 1, "seconds": 0})
    with running(plan, stream, clock=clock, on_alert=lambda _name, one: told.append(one)) as feed:
        wait_until(lambda: feed.state is SinkState.FAILING)
        clock.now_s += 29
        feed.raise_alert()
        assert told == []
        clock.now_s += 1
        wait_until(lambda: len(told) == 1)
        clock.now_s += 3600
        wait_until(lambda: len(told) == 2)
        failing.is_on = False
        wait_until(lambda: len(told) == 3)
    assert [one.is_well for one in told] == [False, False, True]
    assert {one.source for one in told} == {"shop"}


def test_the_log_says_in_which_physical_source_a_sink_is_well_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failing = Failing(lambda: SinkUnavailableError("away"))
    alerts = {"alert_after_s": 0}
    ill = plan_of(Recorder(fails=failing), flush={"rows": 1, "seconds": 0}, failures=alerts)
    hanging = plan_of(
        Recorder(fails=Failing(lambda: SinkUnavailableError("hangs"))),
        flush={"rows": 1, "seconds": 0},
        failures=alerts,
    )
    other = ListedStream(window(1, ("t", 1)))
    other.source = "stock"

    def said(text: str) -> list[str]:
        found = (one.getMessage() for one in caplog.records)
        return [one for one in found if text in one]

    with running(ill, ListedStream(window(1, ("t", 1)))), running(hanging, other):
        wait_until(lambda: len(said("ALERT")) == 2)
        failing.is_on = False
        wait_until(lambda: said("well again"))
    assert all(one.startswith("sink test in shop is well again") for one in said("well again"))
    assert {one.split(" has failed")[0] for one in said("ALERT")} == {
        "ALERT: sink test in shop",
        "ALERT: sink test in stock",
    }


def test_a_paused_sink_writes_nothing_until_it_goes_on() -> None:
    recorder, stream = Recorder(), ListedStream(window(1, ("t", 1)))
    with running(plan_of(recorder), stream) as feed:
        wait_until(lambda: keys(recorder) == [1])
        feed.pause()
        assert feed.state is SinkState.PAUSED
        stream.put(window(2, ("t", 2)))
        threading.Event().wait(0.2)
        assert keys(recorder) == [1]
        feed.resume()
        wait_until(lambda: keys(recorder) == [1, 2])


def test_a_full_ring_stops_reading_and_memory_stays_bounded() -> None:
    failing = Failing(lambda: SinkUnavailableError("away"))
    stream = ListedStream(*(window(scn, ("t", scn)) for scn in range(1, 201)))
    recorder = Recorder(fails=failing)
    with running(plan_of(recorder, capacity=10), stream) as feed:
        wait_until(lambda: feed.status.held_rows == 10)
        threading.Event().wait(0.1)
        assert feed.status.held_rows == 10
        assert stream.scn <= 11
        failing.is_on = False
        wait_until(lambda: stream.stored[-1:] == [200])
    assert keys(recorder) == list(range(1, 201))


def test_wide_rows_fill_the_ring_by_their_bytes() -> None:
    failing = Failing(lambda: SinkUnavailableError("away"))
    stream = ListedStream(*(window(scn, ("t", scn), text="x" * 10_000) for scn in range(1, 51)))
    recorder = Recorder(fails=failing)
    with running(plan_of(recorder, capacity_bytes=45_000), stream) as feed:
        wait_until(lambda: feed.status.held_rows == 4)
        threading.Event().wait(0.1)
        assert feed.status.held_rows == 4
        failing.is_on = False
        wait_until(lambda: stream.stored[-1:] == [50])
    assert keys(recorder) == list(range(1, 51))


@pytest.mark.parametrize("until", [3, "time:1970-01-01T00:00:00.000004Z"])
def test_until_ends_the_sink_with_exactly_the_transactions_before_it(until: int | str) -> None:
    windows = [window(scn, ("t", scn)) for scn in range(1, 6)]
    stream = ListedStream(*(dated(one) for one in windows))
    recorder = Recorder()
    stream.position = Position("shop", Checkpoint.at(1))
    with running(plan_of(recorder, until=until), stream) as feed:
        assert feed.wait(PATIENCE_S)
        assert feed.state is SinkState.DONE
    assert keys(recorder) == [2, 3]
    assert stream.stored[-1:] == [3]


def dated(one: DataWindow) -> DataWindow:
    """Return a window that was committed at as many microseconds as its SCN says."""
    changes = [change(event.source, event.row) for event in one.events]
    return make_window(*changes, scn=one.scn, committed_s=one.scn / 1e6)


def test_a_flush_of_more_rows_than_there_is_room_for_is_not_waited_for() -> None:
    recorder = Recorder()
    stream = ListedStream(*(window(scn, ("t", scn)) for scn in range(1, 101)))
    plan = plan_of(recorder, capacity=10, flush={"rows": 1000, "seconds": 60}, until=100)
    with running(plan, stream) as feed:
        assert feed.wait(PATIENCE_S)
    assert keys(recorder) == list(range(1, 101))


def test_windows_that_are_filtered_out_take_room_while_the_target_is_away() -> None:
    failing = Failing(lambda: SinkUnavailableError("away"))
    stream = ListedStream(*(window(scn, ("t", scn)) for scn in range(1, 201)))
    first = [{"sources": ["*"], "where": "id = 1"}]
    with running(plan_of(Recorder(fails=failing), capacity=10, tables=first), stream) as feed:
        wait_until(lambda: feed.status.held_rows == 10)
        threading.Event().wait(0.1)
        assert stream.scn <= 11


def test_until_ends_the_sink_where_the_last_windows_have_no_rows() -> None:
    stream, recorder = ListedStream(window(1, ("t", 1))), Recorder()
    with running(plan_of(recorder, until=5), stream) as feed:
        wait_until(lambda: keys(recorder) == [1])
        assert not feed.wait(0.2)
        stream.scn = 5  # windows of other sources
        assert feed.wait(PATIENCE_S)
        assert feed.state is SinkState.DONE


def test_a_position_that_cannot_be_stored_is_shown_and_stored_later() -> None:
    stream, recorder = ListedStream(window(1, ("t", 1))), Recorder()
    stream.fail_to_store(3)
    with running(plan_of(recorder), stream):
        wait_until(lambda: keys(recorder) == [1])
        wait_until(lambda: stream.stored == [1])


# Targets that keep their position


def test_the_position_in_the_target_wins() -> None:
    recorder = Recorder(keeps_position=True)
    recorder.position = Position("shop", Checkpoint.at(3))
    stream = ListedStream(*(window(scn, ("t", scn)) for scn in range(1, 6)))
    stream.position = Position("shop", Checkpoint.at(1))
    with running(plan_of(recorder), stream):
        wait_until(lambda: stream.stored[-1:] == [5])
    assert stream.begun_at == [3]
    assert keys(recorder) == [4, 5]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("then", ["dead-letter", "skip"])
def test_whichever_rows_are_refused_all_others_are_written_once_and_the_sink_goes_on(
    seed: int, then: str, tmp_path: Path
) -> None:
    draw = random.Random(seed)
    bad = {scn * 10 + at for scn in range(1, 30) for at in range(3) if draw.random() < 0.3}

    def refuse(changes: Sequence[Change]) -> None:
        found = next((one for one in changes if one.key["id"] in bad), None)
        if found is not None:  # some targets name the row
            raise SinkRefusedError("no", found if draw.random() < 0.5 else None)

    recorder = Recorder(keeps_position=True, fails=refuse)
    rows = [[("t", scn * 10 + at) for at in range(draw.randint(1, 3))] for scn in range(1, 30)]
    stream = ListedStream(*(window(scn, *listed) for scn, listed in enumerate(rows, 1)))
    rule = {"refused": {"retries": 0, "then": then}, "dead_letters": tmp_path / "letters.jsonl"}
    flush = {"rows": draw.randint(1, 12), "seconds": 0.01}
    with running(plan_of(recorder, failures=rule, flush=flush), stream) as feed:
        wait_until(lambda: stream.stored[-1:] == [29])
        assert feed.state is SinkState.RUNNING
    given = [key for listed in rows for _, key in listed]
    assert keys(recorder) == [key for key in given if key not in bad]
    aside = feed.status.dead_letters + feed.status.skipped
    assert aside == sum(key in bad for key in given)


def test_a_call_that_does_not_return_is_shown() -> None:
    asleep, clock = threading.Event(), FakeClock()

    def hang(_changes: Sequence[Change]) -> None:
        asleep.wait(PATIENCE_S)

    recorder = Recorder(fails=hang)
    stream = ListedStream(window(1, ("t", 1)))
    plan = plan_of(recorder, flush={"rows": 1, "seconds": 0})
    with running(plan, stream, clock=clock) as feed:
        wait_until(lambda: feed.status.held_rows == 1)
        threading.Event().wait(0.2)
        assert feed.state is SinkState.RUNNING
        clock.now_s += SLOW_CALL_S
        wait_until(lambda: feed.state is SinkState.FAILING)
        assert "has not answered for 30 s" in feed.status.problem
        asleep.set()
        wait_until(lambda: feed.state is SinkState.RUNNING)
        wait_until(lambda: stream.stored == [1])


class LostAnswer:
    """The target takes the rows, and the answer is lost on its way."""

    def __init__(self, recorder: Recorder) -> None:
        self._take = recorder.take
        recorder.take = self.take  # type: ignore[method-assign]
        self._left = 1

    def take(self, changes: Sequence[Change], position: Position | None) -> None:
        self._take(changes, position)
        if self._left:
            self._left -= 1
            raise ConnectionResetError("the connection broke behind the commit")


def test_what_a_target_has_taken_is_not_written_again_when_its_answer_was_lost() -> None:
    recorder = Recorder(keeps_position=True)
    LostAnswer(recorder)
    stream = ListedStream(*(window(scn, ("t", scn)) for scn in range(1, 6)))
    with running(plan_of(recorder, flush={"rows": 2}), stream):
        wait_until(lambda: stream.stored[-1:] == [5])
    assert keys(recorder) == [1, 2, 3, 4, 5]
    assert stream.begun_at == [-1]  # nothing was read again either


def test_a_target_that_was_put_back_gets_what_it_has_lost() -> None:
    failing = Failing(lambda: ConnectionResetError("gone"))
    failing.is_on = False
    recorder = Recorder(keeps_position=True, fails=failing)
    stream = ListedStream(*(window(scn, ("t", scn)) for scn in range(1, 6)))
    with running(plan_of(recorder), stream):
        wait_until(lambda: stream.stored[-1:] == [5])
        # A replica that had only the first two is the target now.
        recorder.position = recorder.writes[1].changes[-1].position
        failing.is_on = True
        stream.put(window(6, ("t", 6)))
        wait_until(lambda: len(failing.tries) > 5)
        failing.is_on = False
        wait_until(lambda: stream.stored[-1:] == [6])
    assert keys(recorder) == [1, 2, 3, 4, 5, 3, 4, 5, 6]


class Forgetful(RecorderSink):
    def flush(self) -> Position | None:
        super().flush()
        return Position("shop", Checkpoint.at(1))


def test_a_sink_that_says_that_less_is_durable_than_was_written_is_not_believed() -> None:
    recorder = Recorder()
    recorder.sink = lambda: Forgetful(recorder)  # type: ignore[method-assign]
    stream = ListedStream(window(7, ("t", 1)))
    other = {"other": {"retries": 0, "then": "stop"}}
    with running(plan_of(recorder, failures=other), stream) as feed:
        wait_until(lambda: feed.state is SinkState.STOPPED)
        assert "flush returned the position with SCN 1" in str(feed.error)
        assert stream.stored == []


def test_what_is_held_at_the_end_is_written_and_its_position_stored() -> None:
    recorder, stream = Recorder(), ListedStream(window(1, ("t", 1)), window(2, ("t", 2)))
    with running(plan_of(recorder, flush={"rows": 100, "seconds": 60}), stream) as feed:
        wait_until(lambda: feed.status.held_rows == 2)
        assert keys(recorder) == []
    assert keys(recorder) == [1, 2]
    assert stream.stored == [2]
    assert feed.status.state.value == "ended"


def test_the_last_position_is_stored_although_a_window_comes_while_the_sink_ends() -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def slow(_changes: Sequence[Change]) -> None:
        begun.set()
        goes_on.wait(PATIENCE_S)

    recorder, stream = Recorder(fails=slow), ListedStream(window(1, ("t", 1)))
    feed = Feed(plan_of(recorder), stream)
    feed.start()
    assert begun.wait(PATIENCE_S)
    stopping = threading.Thread(target=feed.stop)
    stopping.start()
    wait_until(lambda: feed._session is not None and feed._session._is_over)
    stream.put(window(2, ("t", 2)))  # it ends the reading, and nothing else
    threading.Event().wait(0.1)
    goes_on.set()
    stopping.join(PATIENCE_S)
    assert stream.stored == [1]
    assert keys(recorder) == [1]


def test_a_sink_that_does_not_return_is_abandoned_when_its_client_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hangs, goes_on = threading.Event(), threading.Event()

    def hang(_changes: Sequence[Change]) -> None:
        hangs.set()
        goes_on.wait(PATIENCE_S)

    feed = Feed(plan_of(Recorder(fails=hang)), ListedStream(window(1, ("t", 1))))
    feed.start()
    assert hangs.wait(PATIENCE_S)
    feed.stop(timeout_s=0.4)
    assert "the sink has not returned; it is abandoned" in caplog.text
    goes_on.set()
    wait_until(lambda: feed.status.state.value == "ended")
    feed.stop()


def test_who_stops_a_sink_on_a_thread_that_is_named_like_its_own_waits_for_it() -> None:
    writes, goes_on = threading.Event(), threading.Event()

    def hang(_changes: Sequence[Change]) -> None:
        writes.set()
        goes_on.wait(20)

    recorder = Recorder(fails=hang)
    with running(plan_of(recorder), ListedStream(window(1, ("t", 1)))) as feed:
        assert writes.wait(10)
        (own,) = {t.name for t in threading.enumerate() if t.name.endswith("-tick")}
        name = own.removesuffix("-tick") + "-sources"
        stopping = threading.Thread(target=feed.stop, name=name)
        stopping.start()
        stopping.join(0.2)
        assert stopping.is_alive()
        goes_on.set()
        stopping.join(10)
        assert (keys(recorder), feed.status.state.value) == ([1], "ended")


class FullDisk(ListedStream):
    """A stream whose position cannot be read at first."""

    tries = 0

    def load(self) -> Position | None:
        self.tries += 1
        if self.tries == 1:
            raise CheckpointError("cannot be read") from OSError(errno.EIO, "a bad disk")
        return super().load()


def test_a_position_that_cannot_be_read_now_is_read_later() -> None:
    recorder, stream = Recorder(), FullDisk(window(1, ("t", 1)))
    with running(plan_of(recorder), stream) as feed:
        wait_until(lambda: feed.state is SinkState.FAILING)
        wait_until(lambda: keys(recorder) == [1])
        assert feed.error is None


class Broken(ListedStream):
    """A stream whose reading ends with an error, once."""

    is_whole = False

    def windows(self) -> Iterator[DataWindow]:
        if not self.is_whole:
            raise ScnNotFoundError(1, 5)
        yield from super().windows()


def test_an_error_that_ends_reading_stops_the_sink_until_somebody_retries() -> None:
    recorder, stream = Recorder(), Broken(window(1, ("t", 1)))
    with running(plan_of(recorder), stream) as feed:
        wait_until(lambda: feed.state is SinkState.STOPPED)
        assert "scn 1 is gone" in feed.status.problem
        stream.is_whole = True
        feed.retry()
        wait_until(lambda: keys(recorder) == [1])
        assert feed.state is SinkState.RUNNING


def test_who_stops_a_sink_waits_for_its_last_write_whatever_the_name_of_the_thread() -> None:
    recorder = Recorder(sleep_s=0.5)
    stream = ListedStream(*(window(scn, ("t", scn)) for scn in (1, 2, 3)))
    feed = Feed(plan_of(recorder), stream)
    feed.start()
    wait_until(lambda: stream.scn >= 0)
    stopping = threading.Thread(target=feed.stop, name="databus-sink-test-sources")
    stopping.start()
    stopping.join()
    assert feed.state is SinkState.ENDED
    written = keys(recorder)
    assert stream.stored[-1:] == written[-1:]
