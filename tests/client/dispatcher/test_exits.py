"""What would end a program stops a client when a callback raises it: no thread ends silently."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from databus.client.consumer import DataEvent
from databus.client.monitoring.http import health_of
from databus.schemas.errors import ConsumerError
from tests.client.fake_relay import FakeRelay
from tests.client.shop import customer, order, wait_until
from tests.client.test_client import make_client

SOURCE = "shop.orders"
EXITS = [SystemExit("cannot go on"), KeyboardInterrupt(), GeneratorExit()]


@pytest.fixture
def relay() -> Iterator[FakeRelay]:
    with FakeRelay([[order(scn), customer(scn)] for scn in range(1, 6)]) as fake:
        yield fake


@pytest.mark.parametrize("left", EXITS, ids=repr)
def test_it_is_not_tried_again_and_run_raises_it(relay: FakeRelay, left: BaseException) -> None:
    client, seen = make_client(relay, callback_retries=5), []

    @client.on(SOURCE)
    def take(event: DataEvent) -> None:
        seen.append(event.scn)
        raise left

    with pytest.raises(ConsumerError, match=f"take.* raised {type(left).__name__}") as caught:
        client.run()
    assert (seen, caught.value.__cause__) == ([1], left)


def test_health_says_so(relay: FakeRelay) -> None:
    client = make_client(relay)
    client.on(SOURCE)(_leaving(SystemExit("cannot go on")))
    with client:
        wait_until(lambda: client.error is not None)
        health = health_of(client)
    assert (health.is_ok, health.details["state"]) == (False, "suspended")
    assert "cannot go on" in health.details["problem"]


@pytest.mark.parametrize("left", EXITS[:2], ids=repr)
def test_so_it_is_with_a_coroutine_whose_event_loop_goes_on(
    relay: FakeRelay, left: BaseException
) -> None:
    client, seen = make_client(relay), []

    @client.on("shop.customers")
    async def follow(event: DataEvent) -> None:
        seen.append(event.scn)

    @client.on(SOURCE)
    async def take(event: DataEvent) -> None:
        raise left

    with client:
        wait_until(lambda: client.error is not None and 5 in seen)
        assert client.error is not None
        assert client.error.__cause__ is left
        relay.append([order(6), customer(6)])
        wait_until(lambda: 6 in seen)


@pytest.mark.parametrize("left", EXITS, ids=repr)
def test_so_it_is_with_on_failure(relay: FakeRelay, left: BaseException) -> None:
    client = make_client(relay, callback_retries=0)

    def keep(event: DataEvent, error: ConsumerError) -> None:
        raise left

    client.on(SOURCE, on_failure=keep)(_leaving(ValueError("broken")))
    with pytest.raises(ConsumerError, match=f"on_failure.* {type(left).__name__}"):
        client.run()


def _leaving(error: BaseException) -> Callable[[DataEvent], None]:
    def take(_event: DataEvent) -> None:
        raise error

    return take
