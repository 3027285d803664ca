"""Callbacks that are coroutine functions."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence

import pytest

from databus.client.consumer import Consumer, DataEvent, Result
from databus.client.dispatcher.coroutines import Coroutines
from databus.schemas.errors import ConsumerError
from tests import PATIENCE_S
from tests.client.fake_relay import FakeRelay
from tests.client.shop import orders, wait_until
from tests.client.test_client import make_client

SOURCE = "shop.orders"


@pytest.fixture
def relay() -> Iterator[FakeRelay]:
    with FakeRelay(orders(range(1, 6))) as fake:
        yield fake


class Mixed(Consumer):
    """Has callbacks of both kinds."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    def on_start_data_event_sequence(self, scn: int) -> None:
        self.calls.append(("start", scn))

    async def on_data_event(self, event: DataEvent) -> Result | None:  # type: ignore[override]
        await asyncio.sleep(0)
        self.calls.append(event.wire_key)
        return Result.CHECKPOINT

    async def on_stop_consumption(self) -> None:  # type: ignore[override]
        self.calls.append("stop")


def test_a_coroutine_function_is_awaited_before_the_next_event_comes(relay: FakeRelay) -> None:
    client, steps = make_client(relay), []

    @client.on(SOURCE)
    async def take(event: DataEvent) -> None:
        steps.append(("begin", event.scn))
        await asyncio.sleep(0.001)
        steps.append(("end", event.scn))
        if event.scn == 5:
            client.stop()

    client.run()
    assert steps == [(step, scn) for scn in range(1, 6) for step in ("begin", "end")]


def test_a_consumer_may_have_callbacks_of_both_kinds(relay: FakeRelay) -> None:
    consumer = Mixed()
    with make_client(relay) as client:
        client.register(consumer, [SOURCE])
        wait_until(lambda: 500 in consumer.calls)
    assert consumer.calls == [
        *(call for scn in range(1, 6) for call in (("start", scn), scn * 100)),
        "stop",
    ]


def test_in_async_with_coroutines_run_in_the_applications_loop(relay: FakeRelay) -> None:
    async def main() -> tuple[set[threading.Thread], list[int]]:
        client, threads, scns = make_client(relay), set(), []
        done = asyncio.Event()

        @client.on(SOURCE)
        async def take(event: DataEvent) -> None:
            threads.add(threading.current_thread())
            await asyncio.sleep(0)
            scns.append(event.scn)
            if event.scn == 5:
                done.set()  # not thread-safe: it must be this loop

        async with client:
            await asyncio.wait_for(done.wait(), PATIENCE_S)
        return threads, scns

    threads, scns = asyncio.run(main())
    assert threads == {threading.main_thread()}
    assert scns == [1, 2, 3, 4, 5]


def test_run_async_ends_when_a_coroutine_stops_the_client(relay: FakeRelay) -> None:
    async def main() -> list[int]:
        client, scns = make_client(relay), []

        @client.on(SOURCE)
        async def take(event: DataEvent) -> None:
            await asyncio.sleep(0)
            scns.append(event.scn)
            if event.scn == 4:
                client.stop()

        began_s = time.monotonic()
        await client.run_async()
        assert time.monotonic() - began_s < 8, "it has not waited for itself"
        return scns

    assert asyncio.run(main()) == [1, 2, 3, 4]


def test_run_async_that_is_cancelled_stops_the_client(relay: FakeRelay) -> None:
    async def main() -> None:
        client, began = make_client(relay), asyncio.Event()

        @client.on(SOURCE)
        async def take(event: DataEvent) -> None:
            began.set()

        running = asyncio.create_task(client.run_async())
        await asyncio.wait_for(began.wait(), PATIENCE_S)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert client.state.value == "shut_down"

    asyncio.run(main())
    left = [one.name for one in threading.enumerate() if one.name.startswith("databus-")]
    assert left == []


def test_an_exception_of_a_coroutine_is_retried_and_then_stops_the_client(
    relay: FakeRelay,
) -> None:
    client, tries = make_client(relay, callback_retries=2), []

    @client.on(SOURCE, batch_rows=100)
    async def take(events: Sequence[DataEvent]) -> None:
        tries.append(len(events))
        raise ValueError("not now")

    with pytest.raises(ConsumerError, match=r"take\(\d+ events\) raised ValueError"):
        asyncio.run(client.run_async())
    assert len(tries) == 3


def test_on_failure_may_be_a_coroutine_function(relay: FakeRelay) -> None:
    client, kept, taken = make_client(relay, callback_retries=0), [], []

    async def keep(event: DataEvent, error: ConsumerError) -> None:
        await asyncio.sleep(0)
        kept.append((event.scn, type(error.__cause__)))

    @client.on(SOURCE, on_failure=keep)
    async def take(event: DataEvent) -> None:
        if event.scn == 3:
            raise ValueError("never")
        taken.append(event.scn)

    with client:
        wait_until(lambda: 5 in taken)
    assert (taken, kept) == ([1, 2, 4, 5], [(3, ValueError)])


def test_a_coroutine_that_does_not_return_is_noticed(relay: FakeRelay) -> None:
    client = make_client(relay, callback_budget_s=0.2)

    @client.on(SOURCE)
    async def take(event: DataEvent) -> None:
        await asyncio.sleep(60)

    with pytest.raises(ConsumerError, match="take has not returned"):
        client.run()


def test_a_plain_consumer_is_left_as_it_is() -> None:
    consumer = Consumer()
    assert Coroutines().plain(consumer) is consumer
