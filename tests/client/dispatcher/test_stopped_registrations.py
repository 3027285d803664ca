"""An error stops one registration, and the others go on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from databus.client.client import DatabusClient
from databus.client.consumer import DataEvent
from databus.client.machines.states import Lifecycle
from databus.client.monitoring.http import health_of
from databus.schemas.errors import ConsumerError, IncompatibleSchemaError
from tests.client.fake_relay import FakeRelay
from tests.client.shop import CUSTOMERS, SCHEMAS, customer, order, wait_until
from tests.client.test_client import Keeper, make_client


class Refusing(Keeper):
    """Fails while it is told to."""

    fails = True

    def on_data_event(self, event: DataEvent) -> None:
        if self.fails:
            raise ValueError("broken")
        super().on_data_event(event)


@pytest.fixture
def relay() -> Iterator[FakeRelay]:
    with FakeRelay([[order(scn), customer(scn)] for scn in range(1, 6)]) as fake:
        yield fake


def started(relay: FakeRelay, good: Keeper, bad: Keeper) -> DatabusClient:
    client = make_client(relay, callback_retries=0)
    client.register(good, ["shop.orders"], name="good")
    client.register(bad, ["shop.customers"], name="bad")
    return client


def test_an_error_of_one_leaves_the_others_running(relay: FakeRelay) -> None:
    good, bad = Keeper(), Refusing()
    with started(relay, good, bad) as client:
        wait_until(lambda: client.error is not None)
        relay.append([order(6), customer(6)])
        wait_until(lambda: 6 in good.scns)
        assert client.state is Lifecycle.RUNNING
        assert isinstance(client.error, ConsumerError)
        assert bad.calls == ["start", "error ConsumerError"]


def test_a_client_with_a_stopped_registration_is_not_healthy(relay: FakeRelay) -> None:
    with started(relay, Keeper(), Refusing()) as client:
        wait_until(lambda: client.error is not None)
        assert not client.is_healthy
        health = health_of(client)
        assert (health.is_ok, health.details["state"]) == (False, "suspended")
        assert client.report().state == "suspended", "its relay shows it in red"
        assert "broken" in health.details["problem"]
        problems = {one["name"]: one["problem"] for one in health.details["registrations"]}
        assert problems["good"] == ""
        assert "broken" in problems["bad"]


def test_resume_continues_the_stopped_one_with_the_failed_window(relay: FakeRelay) -> None:
    good, bad = Keeper(), Refusing()
    with started(relay, good, bad) as client:
        wait_until(lambda: client.error is not None and 5 in good.scns)
        bad.fails = False
        client.resume()
        wait_until(lambda: 5 in bad.scns)
        assert client.is_healthy
    assert bad.scns == good.scns == [1, 2, 3, 4, 5]


def test_one_that_was_stopped_by_what_it_read_continues_too(relay: FakeRelay) -> None:
    good = Keeper()
    client = make_client(relay)
    client.register(good, ["shop.orders"], name="good")
    reader = {"shop.customers": SCHEMAS[CUSTOMERS].replace('"name":"name"', '"name":"thing"')}
    client.register(Keeper(), ["shop.customers"], name="bad", reader_schemas=reader)
    with client:
        wait_until(lambda: client.error is not None and 5 in good.scns)
        assert isinstance(client.error, IncompatibleSchemaError)
        asked = len(relay.requests)
        client.resume()
        # It asks again, and is refused again.
        wait_until(lambda: len(relay.requests) > asked and client.error is not None)


def test_run_raises_once_nothing_goes_on(relay: FakeRelay) -> None:
    with pytest.raises(ConsumerError, match="broken"):
        started(relay, Refusing(), Refusing()).run()


def test_run_raises_the_error_of_a_registration_that_stopped_long_before_the_end(
    relay: FakeRelay,
) -> None:
    bad = Refusing()

    class Last(Keeper):
        def on_end_data_event_sequence(self, scn: int) -> None:
            if scn == 5:
                wait_until(lambda: client.error is not None)
                client.stop()

    client = started(relay, Last(), bad)
    with pytest.raises(ConsumerError, match="broken"):
        client.run()
