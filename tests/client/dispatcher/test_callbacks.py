"""The rules of callbacks: their order, their results, failures, budgets, checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from databus.client.consumer import Consumer, DataEvent, DdlEvent, Result, StatementEvent
from databus.client.dispatcher.callbacks import CheckpointRule, Dispatch
from databus.client.dispatcher.data_window import DataWindow
from databus.client.puller.buffer_items import Phase
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import ConsumerError
from databus.schemas.event.control import ddl_event, dml_event
from databus.schemas.event.event import Event
from tests.client.shop import FakeClock, customer, order, read


class Recorder(Consumer):
    """Writes down what it is told, and answers what it is told to."""

    def __init__(self, calls: list[tuple[Any, ...]] | None = None, **answers: Any) -> None:
        self.calls: list[tuple[Any, ...]] = [] if calls is None else calls
        self._answers = answers

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("on_"):
            return super().__getattribute__(name)
        # Events come one by one, unless a test answers to several.
        if name.endswith("_events") and name not in self._answers:
            return super().__getattribute__(name)
        answer = self._answers.get(name)

        def callback(*arguments: Any) -> Any:
            shown = [(a.source, a.wire_key) if isinstance(a, DataEvent) else a for a in arguments]
            self.calls.append((name, *shown))
            return answer(*arguments) if callable(answer) else answer

        return callback


def make_dispatch(
    *consumers: Consumer, clock: FakeClock | None = None, retries: int = 2
) -> Dispatch:
    return Dispatch(consumers, 1.0, retries, clock or FakeClock())


class Batches(Consumer):
    """Takes the events of a run together."""

    def __init__(self) -> None:
        self.runs: list[tuple[str, list[object]]] = []
        self.result: Result | None = None

    def on_data_event(self, event: DataEvent) -> Result | None:
        raise AssertionError(f"{event} came alone")

    def on_data_events(self, events: Sequence[DataEvent]) -> Result | None:
        self.runs.append((events[0].source, [event.wire_key for event in events]))
        return self.result


def test_a_consumer_may_take_the_events_of_a_run_together() -> None:
    consumer, other = Batches(), Recorder()
    dispatch = make_dispatch(consumer, other)
    dispatch.deliver(read(7, order(7, 1), order(7, 2), customer(7, 5), order(7, 3)))
    runs = [("shop.orders", [1, 2]), ("shop.customers", [5]), ("shop.orders", [3])]
    assert consumer.runs == runs
    assert len([call for call in other.calls if call[0] == "on_data_event"]) == 4
    consumer.result = Result.CHECKPOINT
    assert dispatch.deliver(read(8, order(8, 1))).result is Result.CHECKPOINT


def test_a_run_that_fails_is_shown_by_its_size() -> None:
    consumer = Batches()
    consumer.result = Result.ERROR
    failure = make_dispatch(consumer).deliver(read(7, order(7, 1), order(7, 2))).failure
    assert failure is not None
    assert failure.problem == "Batches.on_data_events(2 events) returned ERROR"


def test_a_ddl_statement_cuts_a_run_that_is_taken_together() -> None:
    consumer = Recorder(on_data_events=None)
    dispatch = make_dispatch(consumer)
    statement = ddl_event(7, 1007, 0, ("shop.orders",), "shop", "ALTER TABLE orders")
    dispatch.deliver(read(7, order(7, 1), statement, order(7, 2)))
    names = [name for name, *_ in consumer.calls if name in ("on_data_events", "on_ddl")]
    assert names == ["on_data_events", "on_ddl", "on_data_events"]


def test_callbacks_of_a_window_come_in_the_protocols_order() -> None:
    consumer = Recorder()
    outcome = make_dispatch(consumer).deliver(
        read(7, order(7, 1), order(7, 2), customer(7, 5), order(7, 3))
    )
    assert outcome == (Result.SUCCESS, None)
    assert consumer.calls == [
        ("on_start_data_event_sequence", 7),
        ("on_start_source", "shop.orders"),
        ("on_data_event", ("shop.orders", 1)),
        ("on_data_event", ("shop.orders", 2)),
        ("on_end_source", "shop.orders"),
        ("on_start_source", "shop.customers"),
        ("on_data_event", ("shop.customers", 5)),
        ("on_end_source", "shop.customers"),
        ("on_start_source", "shop.orders"),
        ("on_data_event", ("shop.orders", 3)),
        ("on_end_source", "shop.orders"),
        ("on_end_data_event_sequence", 7),
        ("on_checkpoint", 7),
    ]


def test_an_empty_window_is_a_checkpoint_alone() -> None:
    consumer = Recorder()
    make_dispatch(consumer).deliver(read(7))
    assert consumer.calls == [("on_checkpoint", 7)]


def test_each_of_several_consumers_gets_each_event() -> None:
    one, other = Recorder(), Recorder()
    make_dispatch(one, other).deliver(read(7, order(7, 1), customer(7, 2)))
    assert one.calls == other.calls
    assert len(one.calls) == 9


def test_a_window_fails_when_one_of_several_consumers_does() -> None:
    one, other = Recorder(), Recorder(on_data_event=Result.ERROR)
    outcome = make_dispatch(one, other).deliver(read(7, order(7, 1)))
    assert outcome.result is Result.ERROR
    assert outcome.failure is not None
    assert "returned ERROR" in outcome.failure.problem


@pytest.mark.parametrize(
    "name",
    [
        "on_start_data_event_sequence",
        "on_start_source",
        "on_data_event",
        "on_end_source",
        "on_end_data_event_sequence",
        "on_checkpoint",
    ],
)
def test_an_exception_in_any_callback_fails_the_window_there(name: str) -> None:
    def explode(*_arguments: Any) -> None:
        raise OSError("disk full")

    consumer = Recorder(None, **{name: explode})
    _, failure = make_dispatch(consumer).deliver(read(7, order(7, 1)))
    assert failure is not None
    assert "disk full" in failure.problem
    assert isinstance(failure.cause, OSError)
    assert consumer.calls[-1][0] == name


def test_a_failure_says_which_event_it_was() -> None:
    def explode(event: DataEvent) -> None:
        if event.wire_key == 2:
            raise ValueError("odd")

    dispatch = make_dispatch(Recorder(on_data_event=explode), retries=0)
    failure = dispatch.deliver(read(7, order(7, 1), order(7, 2))).failure
    assert failure is not None
    error = dispatch.judge(failure)
    assert error is not None
    assert error.scn == 7
    for part in ("window 7", "shop.orders", "key=2", "#1", "odd"):
        assert part in str(error)
    assert isinstance(error.__cause__, ValueError), "where it was raised, for the log"


def test_what_is_neither_a_result_nor_none_is_fatal() -> None:
    dispatch = make_dispatch(Recorder(on_data_event=True), retries=5)
    failure = dispatch.deliver(read(7, order(7))).failure
    assert failure is not None
    assert failure.is_fatal
    assert "neither a Result nor None" in failure.problem


def test_a_window_is_replayed_as_often_as_the_setting_says() -> None:
    dispatch = make_dispatch(Recorder(on_data_event=Result.ERROR), retries=2)
    judged = []
    for _ in range(6):
        failure = dispatch.deliver(read(7, order(7))).failure
        assert failure is not None
        judged.append(dispatch.judge(failure))
    assert judged[:2] == [None, None]
    assert judged[2] is not None
    assert "3 tries" in str(judged[2])
    assert judged[3:5] == [None, None], "after the stop it counts from the start"
    assert judged[5] is not None


def test_a_success_in_between_starts_the_count_again() -> None:
    answers = iter([Result.ERROR, Result.SUCCESS, Result.ERROR, Result.ERROR])
    dispatch = make_dispatch(Recorder(on_data_event=lambda _: next(answers)), retries=1)
    judged = []
    for scn in (7, 7, 8, 8):
        failure = dispatch.deliver(read(scn, order(scn))).failure
        judged.append(failure and dispatch.judge(failure))
    assert judged[:3] == [None, None, None]
    assert judged[3] is not None


def test_error_fatal_is_not_replayed() -> None:
    dispatch = make_dispatch(Recorder(on_data_event=Result.ERROR_FATAL), retries=5)
    failure = dispatch.deliver(read(7, order(7))).failure
    assert failure is not None
    assert dispatch.judge(failure) is not None


def test_a_callback_that_comes_back_late_counts_as_error() -> None:
    clock = FakeClock()

    def dawdle(event: DataEvent) -> None:
        clock.now_s += 2.0 if event.wire_key == 2 else 0.9

    consumer = Recorder(on_data_event=dawdle)
    failure = (
        make_dispatch(consumer, clock=clock)
        .deliver(read(7, order(7, 1), order(7, 2), order(7, 3)))
        .failure
    )
    assert failure is not None
    assert "took 2.000 s; callback_budget_s = 1" in failure.problem
    assert consumer.calls[-1] == ("on_data_event", ("shop.orders", 2))


def test_a_callback_that_is_not_an_event_has_the_same_budget() -> None:
    clock = FakeClock()

    def dawdle(_scn: int) -> None:
        clock.now_s += 1.1

    failure = make_dispatch(Recorder(on_checkpoint=dawdle), clock=clock).deliver(read(7)).failure
    assert failure is not None
    assert "callback_budget_s" in failure.problem


def test_a_callback_that_does_not_come_back_is_overdue() -> None:
    clock = FakeClock()
    seen: list[ConsumerError | None] = []

    def hang(_event: DataEvent) -> None:
        clock.now_s += 1.2
        seen.append(dispatch.overdue())
        clock.now_s += 1.0
        seen.append(dispatch.overdue())

    dispatch = make_dispatch(Recorder(on_data_event=hang), clock=clock)
    dispatch.deliver(read(7, order(7)))
    early, late = seen
    assert early is None
    assert late is not None
    assert late.scn == 7
    assert ".callback has not returned for 2.2 s" in str(late)
    assert dispatch.overdue() is None, "nobody is called now"


def test_the_callback_that_does_not_come_back_is_named_whichever_came_before_it() -> None:
    clock = FakeClock()
    seen: list[ConsumerError | None] = []

    class Slow(Consumer):
        def on_start_data_event_sequence(self, scn: int) -> None:
            self._hang()

        def on_data_event(self, event: DataEvent) -> None:
            self._hang()

        def on_end_data_event_sequence(self, scn: int) -> None:
            self._hang()

        def _hang(self) -> None:
            clock.now_s += 3
            seen.append(dispatch.overdue())
            clock.now_s -= 3

    dispatch = make_dispatch(Slow(), clock=clock)
    assert dispatch.deliver(read(7, order(7))).failure is None
    names = ["on_start_data_event_sequence", "on_data_event", "on_end_data_event_sequence"]
    for name, late in zip(names, seen, strict=True):
        assert f"{name} has not returned" in str(late)


CALLS: list[Callable[[Dispatch], object]] = [
    lambda dispatch: dispatch.deliver(read(7, order(7), ddl(7, "ALTER"))),
    lambda dispatch: dispatch.deliver(read(7)),
    lambda dispatch: dispatch.roll_back(6),
    lambda dispatch: dispatch.roll_back_bootstrap(6),
    lambda dispatch: dispatch.start_bootstrap(),
    lambda dispatch: dispatch.stop_bootstrap(),
    lambda dispatch: dispatch.start(),
    lambda dispatch: dispatch.stop(),
    lambda dispatch: dispatch.report(OSError("down")),
]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("does_fail", [False, True])
def test_each_callback_is_watched_from_its_own_beginning_until_it_is_back(
    call: Callable[[Dispatch], object], does_fail: bool
) -> None:
    clock = FakeClock()
    within: list[ConsumerError | None] = []

    class Slow(Recorder):
        def __getattribute__(self, name: str) -> Any:
            if not name.startswith("on_"):
                return super().__getattribute__(name)

            def callback(*_arguments: Any) -> None:
                clock.now_s += 0.9  # twice of it would be more than 1.5 budgets
                within.append(dispatch.overdue())
                if does_fail:
                    raise OSError("disk full")

            return callback

    dispatch = make_dispatch(Slow(), Slow(), clock=clock)
    call(dispatch)
    assert within
    assert not any(within)
    clock.now_s += 1000
    assert dispatch.overdue() is None, "nobody is called now"


@pytest.mark.parametrize("name", ["on_data_event", "on_checkpoint", "on_ddl"])
@pytest.mark.parametrize(
    ("took_s", "is_late", "is_overdue"), [(1, False, False), (1.5, True, False), (1.6, True, True)]
)
def test_a_callback_is_late_behind_its_budget_alone_and_overdue_behind_the_grace_alone(
    name: str, took_s: float, is_late: bool, is_overdue: bool
) -> None:
    clock = FakeClock()
    seen: list[bool] = []

    def hang(_argument: object) -> None:
        clock.now_s += took_s
        seen.append(dispatch.overdue() is not None)

    dispatch = make_dispatch(Recorder(None, **{name: hang}), clock=clock)
    assert dispatch.overdue() is None, "nobody was called yet"
    outcome = dispatch.deliver(read(7, order(7), ddl(7, "ALTER")))
    assert (outcome.failure is not None) == is_late
    assert seen == [is_overdue]


def test_the_begin_and_the_end_are_told_to_every_consumer() -> None:
    one, other = Recorder(on_start_consumption=Result.ERROR), Recorder()
    dispatch = make_dispatch(one, other)
    begun = dispatch.start()
    assert begun.failure is not None
    error = dispatch.judge(begun.failure._replace(is_fatal=True))
    assert error is not None
    assert error.scn == -1, "no window yet"
    assert dispatch.stop().result is Result.SUCCESS
    for consumer in (one, other):
        names = [name for name, *_ in consumer.calls]
        assert names == ["on_start_consumption", "on_stop_consumption"]


def test_a_failure_says_how_often_it_was_tried_when_it_was_more_than_once() -> None:
    for retries, text in ((0, ""), (1, " (2 tries)")):
        dispatch = make_dispatch(Recorder(on_data_event=Result.ERROR), retries=retries)
        for _ in range(retries + 1):
            failure = dispatch.deliver(read(7, order(7))).failure
            assert failure is not None
            error = dispatch.judge(failure)
        assert failure is not None
        assert str(error).endswith(failure.problem + text)


def test_a_rollback_is_told_to_every_consumer() -> None:
    one, other = Recorder(on_rollback=Result.ERROR), Recorder()
    outcome = make_dispatch(one, other).roll_back(6)
    assert other.calls == [("on_rollback", 6)]
    assert outcome.failure is not None


@pytest.mark.parametrize(
    ("answers", "result"),
    [
        ((Result.SUCCESS, None), Result.SUCCESS),
        ((Result.CHECKPOINT, None), Result.CHECKPOINT),
        ((Result.CHECKPOINT, Result.SKIP_CHECKPOINT), Result.SKIP_CHECKPOINT),
        ((Result.SKIP_CHECKPOINT, Result.SUCCESS), Result.SKIP_CHECKPOINT),
    ],
)
def test_the_strongest_result_is_the_windows(
    answers: tuple[Result | None, ...], result: Result
) -> None:
    consumers = [Recorder(on_data_event=answer) for answer in answers]
    assert make_dispatch(*consumers).deliver(read(7, order(7))).result is result


def test_checkpoints_are_written_no_more_often_than_the_setting_says() -> None:
    clock = FakeClock()
    rule = CheckpointRule(10.0, clock)
    assert CheckpointRule(10.0, clock).due_in_s is None
    assert rule.after_window(lambda: Checkpoint.at(1), Result.SUCCESS) is None
    clock.now_s += 4
    assert rule.due_in_s == 6.0
    assert rule.after_window(lambda: Checkpoint.at(2), Result.SUCCESS) is None
    clock.now_s += 6
    assert rule.take() == Checkpoint.at(2)
    assert rule.take(is_forced=True) is None


def test_writing_checkpoints_takes_a_tenth_of_the_time_at_most() -> None:
    clock = FakeClock()
    rule = CheckpointRule(0.5, clock)
    clock.now_s += 1
    assert rule.after_window(lambda: Checkpoint.at(1), Result.SUCCESS) is not None
    clock.now_s += 2  # it took so long
    rule.wrote(2.0)
    assert rule.after_window(lambda: Checkpoint.at(2), Result.SUCCESS) is None
    assert rule.due_in_s == 18.0
    assert rule.after_window(lambda: Checkpoint.at(3), Result.CHECKPOINT) is not None


def test_each_window_has_a_checkpoint_where_that_is_wanted_however_long_it_takes() -> None:
    rule = CheckpointRule(0.0, FakeClock())
    rule.wrote(2.0)
    assert rule.after_window(lambda: Checkpoint.at(1), Result.SUCCESS) is not None


def test_a_wish_for_a_checkpoint_is_granted_at_once() -> None:
    rule = CheckpointRule(10.0, FakeClock())
    assert rule.after_window(lambda: Checkpoint.at(1), Result.CHECKPOINT) == Checkpoint.at(1)


def test_a_skipped_window_is_never_the_checkpoint() -> None:
    rule = CheckpointRule(10.0, FakeClock())
    rule.after_window(lambda: Checkpoint.at(1), Result.SUCCESS)
    assert rule.after_window(lambda: Checkpoint.at(2), Result.SKIP_CHECKPOINT) is None
    assert rule.take(is_forced=True) == Checkpoint.at(1)


def test_a_checkpoint_waits_from_its_window_on_and_the_next_from_when_it_was_written() -> None:
    clock = FakeClock()
    rule = CheckpointRule(10.0, clock)
    clock.now_s += 9
    assert rule.take() is None, "none waits"
    rule.after_window(lambda: Checkpoint.at(1), Result.SUCCESS)
    assert (rule.due_in_s, rule.take()) == (1.0, None)
    clock.now_s += 5
    assert rule.due_in_s == 0.0, "never less"
    assert rule.take() == Checkpoint.at(1)
    assert rule.take(is_forced=True) is None, "none waits any more"
    clock.now_s += 4
    assert rule.after_window(lambda: Checkpoint.at(2), Result.CHECKPOINT) == Checkpoint.at(2)
    clock.now_s += 4
    assert rule.after_window(lambda: Checkpoint.at(3), Result.SUCCESS) is None
    assert rule.due_in_s == 6.0
    assert rule.take(is_forced=True) == Checkpoint.at(3)
    clock.now_s += 10
    # The first window that ends when one is due is written with its end.
    assert rule.after_window(lambda: Checkpoint.at(4), Result.SUCCESS) == Checkpoint.at(4)


def test_a_checkpoint_that_is_not_written_is_not_made() -> None:
    made: list[int] = []

    def checkpoint(scn: int) -> Callable[[], Checkpoint]:
        def make() -> Checkpoint:
            made.append(scn)
            return Checkpoint.at(scn)

        return make

    rule = CheckpointRule(10.0, FakeClock())
    rule.after_window(checkpoint(1), Result.SUCCESS)
    rule.after_window(checkpoint(2), Result.SKIP_CHECKPOINT)
    rule.after_window(checkpoint(3), Result.SUCCESS)
    assert rule.take(is_forced=True) == Checkpoint.at(3)
    assert made == [3]


def test_a_window_of_which_no_more_is_said_is_one_of_the_stream() -> None:
    shown = DataWindow(read(7, order(7)))
    assert (shown.scn, shown.timestamp_ns, shown.phase) == (7, 1007, Phase.LIVE)
    assert (shown.transactions, shown.begins_bootstrap) == (1, False)
    assert shown.events is shown.events
    assert repr(shown) == "<DataWindow scn=7 live events=1>"


def ddl(scn: int, statement: str, *sources: str) -> Event:
    return ddl_event(scn, 1000 + scn, 0, sources or ("shop.orders",), "shop", statement)


def dml(scn: int, statement: str) -> Event:
    return dml_event(scn, 1000 + scn, 0, ("shop.orders",), "shop", statement)


class ReportAnswer(Consumer):
    """Writes down rows' keys and DDL statements."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def on_data_event(self, event: DataEvent) -> None:
        self.told.append(event.wire_key)

    def on_end_source(self, source: str) -> None:
        self.told.append(f"end of {source}")


class ToldOfDdl(ReportAnswer):
    """Wants DDL, too."""

    def on_ddl(self, event: DdlEvent) -> None:
        self.told.append(event.statement)


def test_ddl_stands_where_it_was_among_the_rows() -> None:
    item = read(
        7,
        ddl(7, "first"),
        order(7, 1),
        ddl(7, "second"),
        ddl(7, "third"),
        order(7, 2),
        ddl(7, "between", "shop.customers", "shop.other"),
        customer(7, 3),
        ddl(7, "of another", "shop.other"),
        customer(7, 4),
        ddl(7, "last"),
    )
    plain, wanting = ReportAnswer(), ToldOfDdl()
    assert make_dispatch(plain, wanting).deliver(item) == (Result.SUCCESS, None)
    assert wanting.told == [
        "first",
        1,
        "end of shop.orders",
        "second",
        "third",
        2,
        "end of shop.orders",
        "between",
        3,
        4,
        "end of shop.customers",
        "last",
    ]
    assert plain.told == [1, 2, "end of shop.orders", 3, 4, "end of shop.customers"]
    assert [event.index for event in DataWindow(item).events] == [0, 1, 2, 3]


class ToldOfStatements(ToldOfDdl):
    """Wants DML that was logged without its rows, too."""

    def on_statement(self, event: StatementEvent) -> None:
        self.told.append(("rows unknown", event.statement, event.scn))


def test_dml_without_its_rows_is_marked_and_stands_where_it_was() -> None:
    item = read(7, order(7, 1), ddl(7, "ALTER"), dml(7, "DELETE"), order(7, 2), dml(7, "UPDATE"))
    plain, with_ddl, wanting = ReportAnswer(), ToldOfDdl(), ToldOfStatements()
    assert make_dispatch(plain, with_ddl, wanting).deliver(item) == (Result.SUCCESS, None)
    end = "end of shop.orders"
    assert plain.told == [1, 2, end]
    assert with_ddl.told == [1, end, "ALTER", 2, end]
    delete, update = (("rows unknown", text, 7) for text in ("DELETE", "UPDATE"))
    assert wanting.told == [1, end, "ALTER", delete, 2, end, update]
    window = DataWindow(item)
    assert [told.statement for told in window.statements] == ["ALTER", "DELETE", "UPDATE"]
    kinds = [DataEvent, DdlEvent, StatementEvent, DataEvent, StatementEvent]
    assert [type(change) for change in window.changes] == kinds


def test_a_window_of_ddl_alone_is_empty_to_who_does_not_want_it() -> None:
    plain, wanting = Recorder(), Recorder()
    dispatch = make_dispatch(wanting)
    dispatch.deliver(read(7, ddl(7, "ALTER TABLE orders")))
    assert wanting.calls == [
        ("on_start_data_event_sequence", 7),
        ("on_ddl", DdlEvent(("shop.orders",), "shop", "ALTER TABLE orders", 7, 1007)),
        ("on_end_data_event_sequence", 7),
        ("on_checkpoint", 7),
    ]
    make_dispatch(plain).deliver(read(7, ddl(7, "DROP TABLE other", "shop.other")))
    assert plain.calls == [("on_checkpoint", 7)]


def test_a_failing_ddl_callback_fails_the_window() -> None:
    consumer = Recorder(on_ddl=Result.ERROR)
    failure = make_dispatch(consumer).deliver(read(7, order(7, 1), ddl(7, "ALTER"))).failure
    assert failure is not None
    assert "on_ddl" in failure.problem or "callback" in failure.problem
    assert "ALTER" in failure.problem
