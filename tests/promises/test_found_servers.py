"""Relays that a client finds: they come, end, are killed, are frozen; ZooKeeper goes and comes."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from databus.client import DatabusClient
from databus.client.consumer import Consumer, DataEvent
from databus.leases.errors import LeaseError
from databus.servers.entry import ServerEntry
from databus.servers.places import open_directory
from tests import PATIENCE_S
from tests.promises.running import Remembering, RunningRelay, Shop, consuming, running, wait_until
from tests.zookeeper_server import PrivateZookeeper

pytest_plugins = ["tests.record_stores"]

MakeRelay = Callable[..., RunningRelay]

_numbers = itertools.count(1)


@pytest.fixture(params=["file", "zookeeper"])
def coordinator(request: pytest.FixtureRequest, zookeeper: PrivateZookeeper, tmp_path: Path) -> str:
    if request.param == "file":
        return f"file:{tmp_path / 'store'}"
    return zookeeper.url(f"/found-{next(_numbers)}")


@pytest.fixture
def make_relay(shop: Shop, tmp_path: Path, coordinator: str) -> Iterator[MakeRelay]:
    made: list[RunningRelay] = []

    def make(name: str, room: str = "") -> RunningRelay:
        made.append(
            RunningRelay(tmp_path, shop.settings(), name=name, coordinator=coordinator, room=room)
        )
        return made[-1].start()

    yield make
    for relay in made:
        with running(relay):
            relay.child.kill()


def entries(coordinator: str) -> Sequence[ServerEntry]:
    with contextlib.closing(open_directory(coordinator)) as directory:
        return directory.entries()


def found(coordinator: str) -> set[str]:
    """Return the URLs of those that offer something."""
    return {entry.url for entry in entries(coordinator) if entry.physical_sources}


def wait_for(coordinator: str, *relays: RunningRelay) -> None:
    wanted = {relay.url for relay in relays}
    wait_until(lambda: found(coordinator) == wanted, f"{wanted} in the list")


def server_of(client: DatabusClient) -> str | None:
    (registration,) = client.registrations
    return registration.relay


class Collecting(Consumer):
    """Collects the keys of rows."""

    def __init__(self) -> None:
        self.keys: set[object] = set()

    def on_data_event(self, event: DataEvent) -> None:
        self.keys.add(event.wire_key)


def following(
    coordinator: str, consumer: Consumer, room: str = "", **options: Any
) -> DatabusClient:
    client = DatabusClient(
        coordinator=coordinator,
        room=room,
        wait_ms=300,
        back_off={"first_s": 0.02, "max_s": 0.2},
        request_timeout_s=3.0,
        **options,
    )
    client.register(consumer, ["shop.orders"])
    return client


def test_a_client_goes_from_relay_to_relay_as_they_come_and_end(
    shop: Shop, coordinator: str, make_relay: MakeRelay
) -> None:
    first = make_relay("first")
    wait_for(coordinator, first)
    consumer = Remembering()
    with following(coordinator, consumer) as client:
        shop.insert(1, 2, 3, each=3)
        wait_until(lambda: len(consumer.scns) == 1)
        assert server_of(client) == first.url
        second = make_relay("second")
        wait_for(coordinator, first, second)
        # It leaves the list, and then it ends.
        first.child.stop()
        shop.insert(4)
        wait_until(lambda: len(consumer.scns) == 2)
        assert server_of(client) == second.url
        assert not client.report().servers_problem
        wait_for(coordinator, second)
        third = make_relay("third")
        wait_for(coordinator, second, third)
        second.child.kill()
        shop.insert(5)
        wait_until(lambda: len(consumer.scns) == 3)
        assert server_of(client) == third.url
        # Nobody took it out: the others heard nothing from it.
        wait_for(coordinator, third)
    assert consumer.rows("shop.orders") == shop.rows()
    assert consumer.scns == sorted(set(consumer.scns))


def test_a_relay_of_the_same_room_is_read_from_first(
    shop: Shop, coordinator: str, make_relay: MakeRelay
) -> None:
    relays = [make_relay(f"in-{room}", room) for room in ("attic", "cellar", "yard")]
    wait_for(coordinator, *relays)
    shop.insert(1)
    for relay, room in zip(relays, ("attic", "cellar", "yard"), strict=True):
        consumer = Remembering()
        with following(coordinator, consumer, room) as client:
            wait_until(lambda: len(consumer.scns) == 1)  # noqa: B023
            assert server_of(client) == relay.url


def test_each_process_of_a_group_reads_from_its_own_room_and_from_another_when_that_is_gone(
    shop: Shop, coordinator: str, make_relay: MakeRelay
) -> None:
    relays = {room: make_relay(f"in-{room}", room) for room in ("attic", "cellar")}
    wait_for(coordinator, *relays.values())
    # On a slow machine partitions may move, and windows are read again for them.
    consumers = {room: Collecting() for room in relays}
    clients = {
        room: following(coordinator, consumers[room], room, group="billing", group_ttl_s=5.0)
        for room in relays
    }

    def came() -> int:
        return len(consumers["attic"].keys | consumers["cellar"].keys)

    with ExitStack() as ended:
        for client in clients.values():
            ended.enter_context(client)
        wait_until(
            lambda: all(len(one.registrations[0].partitions) == 16 for one in clients.values()),
            patience_s=PATIENCE_S,
        )
        shop.insert(*range(1, 40))
        wait_until(lambda: came() == 39, patience_s=PATIENCE_S)
        for room, relay in relays.items():
            assert server_of(clients[room]) == relay.url
        relays["attic"].child.kill()
        shop.insert(*range(40, 80))
        wait_until(lambda: came() == 79, patience_s=PATIENCE_S)
        assert server_of(clients["attic"]) == relays["cellar"].url
    assert len(consumers["attic"].keys) > 20


def test_a_relay_that_is_frozen_is_left_and_comes_back(
    shop: Shop, coordinator: str, make_relay: MakeRelay
) -> None:
    first = make_relay("first")
    wait_for(coordinator, first)
    consumer = Remembering()
    with following(coordinator, consumer) as client:
        shop.insert(1)
        wait_until(lambda: len(consumer.scns) == 1)
        second = make_relay("second")
        os.kill(first.child.pid, signal.SIGSTOP)
        shop.insert(2)
        wait_until(lambda: len(consumer.scns) == 2)
        assert server_of(client) == second.url
        # The list is watched meanwhile: a look alone takes nobody for dead.
        watched = open_directory(coordinator)
        wait_until(lambda: [one.url for one in watched.entries()] == [second.url], "one alone")
        os.kill(first.child.pid, signal.SIGCONT)
        wait_until(lambda: len(watched.entries()) == 2, "both")
        watched.close()
    assert consumer.rows("shop.orders") == shop.rows()


def test_without_zookeeper_a_client_goes_on_and_one_that_begins_waits_and_says_so(
    shop: Shop, tmp_path: Path
) -> None:
    with PrivateZookeeper() as server:
        coordinator = server.url()
        relay = RunningRelay(tmp_path, shop.settings(), coordinator=coordinator)
        consumer, late = Remembering(), Remembering()
        with running(relay), following(coordinator, consumer) as client:
            wait_until(
                lambda: "no relay of shop.orders is known" in client.registrations[0].problem
            )
            assert client.silence_of(client.registrations[0]) is not None
            relay.start()
            shop.insert(1)
            wait_until(lambda: len(consumer.scns) == 1)
            server.kill()
            wait_until(lambda: "the 1 servers that are known" in client.report().servers_problem)
            shop.insert(2)
            wait_until(lambda: len(consumer.scns) == 2)
            with following(coordinator, late) as waiting:
                wait_until(lambda: "no server is known" in waiting.report().servers_problem)
                assert "no relay of shop.orders is known" in waiting.registrations[0].problem
                health = relay.get("/health").json()
                assert (relay.get("/health").status, health["status"]) == (200, "ok")
                wait_until(lambda: relay.get("/health").json()["servers"]["problem"])
                server.start()
                wait_until(lambda: len(late.scns) == 2)
                wait_until(lambda: not waiting.report().servers_problem)
            wait_until(lambda: not client.report().servers_problem)
            wait_until(lambda: "databus_listed 1.0" in relay.get("/metrics").body.decode())


def test_a_drained_physical_source_is_not_offered_any_more(
    shop: Shop, coordinator: str, make_relay: MakeRelay
) -> None:
    relay = make_relay("relay")
    wait_for(coordinator, relay)
    relay.post("/api/v1/physicalSources/shop/drain")
    wait_for(coordinator)
    assert [entry.draining for entry in entries(coordinator)] == [("shop",)]
    relay.post("/api/v1/physicalSources/shop/resume")
    wait_for(coordinator, relay)
    assert [entry.draining for entry in entries(coordinator)] == [()]


def test_relays_that_are_named_are_used_whatever_is_listed(
    shop: Shop, coordinator: str, make_relay: MakeRelay, tmp_path: Path
) -> None:
    make_relay("listed")
    other = RunningRelay(tmp_path, shop.settings(), name="other")
    consumer = Remembering()
    shop.insert(1)
    with (
        running(other),
        consuming(
            [other.start().url], ["shop.orders"], consumer, coordinator=coordinator
        ) as client,
    ):
        wait_until(lambda: len(consumer.scns) == 1)
        assert server_of(client) == other.url


def test_what_cannot_be_read_is_an_error_of_the_list_alone(tmp_path: Path) -> None:
    (tmp_path / "servers.json").write_text("{")
    with pytest.raises(LeaseError, match="servers write it anew"):
        found(f"file:{tmp_path}")
    client = DatabusClient(coordinator=f"file:{tmp_path}")
    client.register(Remembering(), ["shop.orders"])
    with client:
        wait_until(lambda: "no server is known" in client.report().servers_problem)
