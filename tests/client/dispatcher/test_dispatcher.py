"""The thread of the callbacks: what it does about what goes wrong on it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from databus.client.checkpoints.store import CheckpointStore, MemoryCheckpoints
from databus.client.consumer import Consumer, DataEvent, Result
from databus.client.dispatcher.callbacks import CheckpointRule, Dispatch
from databus.client.dispatcher.dispatcher import Dispatcher
from databus.client.machines.position import Position
from databus.client.puller.buffer import Buffer
from databus.client.puller.buffer_items import (
    BootstrapBegun,
    BootstrapEnded,
    BufferItem,
    empty_page,
)
from databus.client.subscription import Subscription
from databus.conf.settings import ClientSettings
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import DatabusError
from tests import PATIENCE_S
from tests.client.dispatcher.test_bootstrap_callbacks import page
from tests.client.dispatcher.test_callbacks import Recorder
from tests.client.puller.test_page_decoder import CATCH_UP, SNAPSHOT
from tests.client.shop import FakeClock, order, read, wait_until


class Running:
    """A dispatcher on its thread, and what it told."""

    def __init__(
        self,
        *consumers: Consumer,
        store: CheckpointStore | None = None,
        every_s: float = 0,
        batch_rows: int = 0,
    ) -> None:
        clock = FakeClock()
        self.errors: list[DatabusError] = []
        self.ended = threading.Event()
        self.buffer: Buffer[BufferItem] = Buffer(1 << 20)
        self.store = store or MemoryCheckpoints()
        self.dispatcher = Dispatcher(
            Subscription(("shop.orders",), batch_rows=batch_rows),
            Dispatch(consumers, 1.0, 2, clock),
            CheckpointRule(every_s, clock),
            self.store,
            self.buffer,
            ClientSettings(relays=("http://a",), back_off={"first_s": 0}),
            Position(Checkpoint.at(4)),
            Random(1),
            self.errors.append,
            self.ended.set,
        )
        self.dispatcher.start()

    @property
    def kept(self) -> Checkpoint | None:
        return self.store.load("default", ("shop.orders",))

    def stop(self) -> None:
        self.dispatcher.stop()
        assert self.dispatcher.join(PATIENCE_S)
        assert self.ended.is_set()


@pytest.fixture
def running() -> Iterator[list[Running]]:
    started: list[Running] = []
    yield started
    for one in started:
        one.stop()


def test_after_a_defect_and_resume_it_goes_on_with_the_window_in_hand(
    running: list[Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    after_window, breaks = CheckpointRule.after_window, [True]

    def break_once(rule: CheckpointRule, checkpoint: Any, result: Result) -> Any:
        if breaks:
            breaks.clear()
            raise RuntimeError("a defect")
        return after_window(rule, checkpoint, result)

    monkeypatch.setattr(CheckpointRule, "after_window", break_once)
    consumer = Recorder()
    one = Running(consumer)
    running.append(one)
    one.buffer.put([read(5, order(5)), read(6, order(6))])
    wait_until(lambda: one.errors)
    assert "a defect" in str(one.errors[0])
    assert one.buffer.held_bytes > 0
    one.dispatcher.release()
    wait_until(lambda: one.dispatcher.scn == 6)
    wait_until(lambda: one.buffer.held_bytes == 0)
    told = [c for c in consumer.calls if c[0] in ("on_checkpoint", "on_rollback", "on_error")]
    assert [name for name, _ in told] == [
        "on_checkpoint",
        "on_error",
        "on_rollback",
        "on_checkpoint",
        "on_checkpoint",
    ]
    assert [c for c in consumer.calls if c[0] == "on_start_consumption"] == [
        ("on_start_consumption",)
    ]


def explode(*_arguments: object) -> Result:
    raise OSError("disk full")


def test_an_error_that_comes_while_it_is_stopped_does_not_keep_it() -> None:
    made: list[Running] = []

    def stop_and_fail(*_arguments: object) -> Result:
        made[0].dispatcher.stop()
        return Result.ERROR_FATAL

    made.append(Running(Recorder(on_data_event=stop_and_fail)))
    made[0].buffer.put([read(5, order(5))])
    assert made[0].dispatcher.join(PATIENCE_S)
    assert made[0].errors


def test_a_failing_on_stop_consumption_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    one = Running(Recorder(on_stop_consumption=explode))
    with caplog.at_level(logging.ERROR):
        one.stop()
    assert "disk full" in caplog.text
    assert not one.errors


def test_a_failing_on_error_is_logged_and_the_error_told_all_the_same(
    running: list[Running], caplog: pytest.LogCaptureFixture
) -> None:
    one = Running(Recorder(on_error=explode, on_data_event=Result.ERROR_FATAL))
    running.append(one)
    with caplog.at_level(logging.ERROR):
        one.buffer.put([read(5, order(5))])
        wait_until(lambda: one.errors)
    assert "ERROR_FATAL" in str(one.errors[0])
    assert "disk full" in caplog.text


def test_a_bootstrap_is_told_of_once_and_its_phases_are_kept_at_once(
    running: list[Running],
) -> None:
    consumer = Recorder()
    one = Running(consumer, every_s=1000)
    running.append(one)
    begun = Checkpoint.at(4).start_bootstrap()

    def after(items: Sequence[BufferItem]) -> Checkpoint | None:
        one.buffer.put(items)
        wait_until(lambda: one.buffer.held_bytes == 0)
        return None if one.kept is None else replace(one.kept, extra={})

    assert after([BootstrapBegun(begun)]) == begun
    assert after([empty_page(SNAPSHOT, 10)]) == SNAPSHOT
    assert after([page(order(7))]) == SNAPSHOT, "not due"
    assert after([empty_page(CATCH_UP, 10)]) == CATCH_UP
    assert one.dispatcher.scn == 4
    assert after([BootstrapEnded(Checkpoint.at(20))]) == Checkpoint.at(20)
    assert one.dispatcher.scn == 20
    names = [name for name, *_ in consumer.calls]
    assert (names.count("on_start_bootstrap"), names.count("on_stop_bootstrap")) == (1, 1)
    assert "on_bootstrap_rollback" not in names


def test_a_bootstrap_that_begins_anew_is_a_rollback_and_one_that_goes_on_is_not(
    running: list[Running],
) -> None:
    consumer = Recorder()
    one = Running(consumer)
    running.append(one)
    begun = BootstrapBegun(Checkpoint.at(4).start_bootstrap())
    from_nothing = BootstrapBegun(Checkpoint.at(0).start_bootstrap())
    one.buffer.put([begun, page(order(7)), BootstrapBegun(SNAPSHOT), begun, from_nothing])
    wait_until(lambda: one.buffer.held_bytes == 0)
    rollbacks = [call for call in consumer.calls if call[0] == "on_bootstrap_rollback"]
    assert rollbacks == [("on_bootstrap_rollback", 4), ("on_bootstrap_rollback", -1)]


def test_a_page_that_fails_comes_again_from_where_it_began(running: list[Running]) -> None:
    class Failing(Consumer):
        def __init__(self) -> None:
            self.calls: list[Any] = []

        def on_bootstrap_event(self, event: DataEvent) -> Result | None:
            self.calls.append(event.wire_key)
            return Result.ERROR if self.calls == [1] else None

        def on_bootstrap_rollback(self, scn: int) -> None:
            self.calls.append(("rollback", scn))

    consumer = Failing()
    one = Running(consumer)
    running.append(one)
    one.buffer.put([BootstrapBegun(SNAPSHOT), page(order(7, 1), order(8, 2))])
    wait_until(lambda: one.buffer.held_bytes == 0)
    assert consumer.calls == [1, ("rollback", 10), 1, 2]
