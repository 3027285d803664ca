"""Deliveries without a relay."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from databus.client import Consumer, DataEvent, Result
from databus.schemas.errors import ConsumerError
from databus.testing import change, deliver, make_window


class Noting(Consumer):
    """Notes what it is told; fails so many times."""

    def __init__(self, failures: int = 0, result: Result | None = None) -> None:
        self.calls: list[str] = []
        self._failures, self._result = failures, result

    def on_start_consumption(self) -> None:
        self.calls.append("start")

    def on_data_event(self, event: DataEvent) -> Result | None:
        if self._failures:
            self._failures -= 1
            raise ValueError("not now")
        self.calls.append(f"{event.op.value} {event.key}")
        return self._result

    def on_start_bootstrap(self) -> None:
        self.calls.append("bootstrap")

    def on_stop_bootstrap(self) -> None:
        self.calls.append("end of bootstrap")

    def on_rollback(self, scn: int) -> None:
        self.calls.append(f"rollback {scn}")

    def on_error(self, error: BaseException) -> None:
        self.calls.append(type(error).__name__)

    def on_stop_consumption(self) -> None:
        self.calls.append("stop")


ONE = make_window(change("shop.orders", {"id": 1}), scn=5)
TWO = make_window(change("shop.orders", {"id": 2}, "delete"), scn=6)


def test_all_callbacks_are_made_in_order() -> None:
    consumer = Noting()
    found = deliver(consumer, ONE, TWO)
    assert consumer.calls == ["start", "insert {'id': 1}", "delete {'id': 2}", "stop"]
    assert (found.checkpoints, found.rollbacks) == ([5, 6], [])


def test_a_failing_window_is_rolled_back_and_delivered_again() -> None:
    consumer = Noting(failures=2)
    found = deliver(consumer, ONE)
    assert consumer.calls[1:4] == ["rollback 4", "rollback 4", "insert {'id': 1}"]
    assert found.rollbacks == [4, 4]


def test_the_error_that_stops_the_client_is_raised() -> None:
    consumer = Noting(failures=9)
    with pytest.raises(ConsumerError, match="not now"):
        deliver(consumer, ONE, callback_retries=1)
    assert consumer.calls == ["start", "rollback 4", "ConsumerError"]


def test_a_window_whose_checkpoint_is_skipped_has_none() -> None:
    assert deliver(Noting(result=Result.SKIP_CHECKPOINT), ONE).checkpoints == []


def test_pages_of_a_snapshot_are_a_bootstrap() -> None:
    consumer = Noting()
    page = make_window(change("shop.orders", {"id": 1}, "snapshot"), scn=5, phase="snapshot")
    deliver(consumer, page, TWO)
    assert consumer.calls == [
        *("start", "bootstrap", "snapshot {'id': 1}", "end of bootstrap"),
        *("delete {'id': 2}", "stop"),
    ]


def test_a_function_gets_events_or_runs_of_them() -> None:
    keys: list[object] = []
    deliver(lambda event: keys.append(event.key["id"]), ONE, TWO)
    assert keys == [1, 2]

    def take(events: Sequence[DataEvent]) -> None:
        keys.append(len(events))

    deliver(take, ONE, batch_rows=100)
    assert keys == [1, 2, 1]


def test_a_coroutine_function_is_awaited_and_a_failing_event_kept() -> None:
    kept: list[object] = []

    async def take(event: DataEvent) -> None:
        await asyncio.sleep(0)
        raise ValueError("never")

    async def keep(event: DataEvent, error: ConsumerError) -> None:
        kept.append(event.key)

    deliver(take, ONE, TWO, callback_retries=0, on_failure=keep)
    assert kept == [{"id": 1}, {"id": 2}]
