"""A destination of several physical sources, and one of them in two destinations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.relay.fakes import ORDERS, PERSON, insert, transaction, wait_until
from tests.relay.serving.canal.door.served_canal import ServedCanal, drain, rows

SOURCES: list[dict[str, Any]] = [
    {"name": "shop", "uri": "fake:", "sources": [PERSON.source]},
    {"name": "crm", "uri": "fake:", "sources": [ORDERS.source]},
]
DESTINATIONS = [
    {"name": "example", "physical_sources": ["shop", "crm"]},
    {"name": "people", "physical_sources": ["shop"]},
]


WAIT_MS = 1000  # for a batch that does not become full


@pytest.fixture
def canal(tmp_path: Path) -> Iterator[ServedCanal]:
    found = ServedCanal(
        tmp_path,
        relay={"physical_sources": SOURCES},
        destinations=DESTINATIONS,
        batch_mode="itemsize",
        merge_wait_ms=50,
    )
    yield found
    found.close()


def put(canal: ServedCanal, *scns: int) -> None:
    """Commit: even ones at `crm`, the others at `shop`."""
    for scn in scns:
        if scn % 2:
            canal.put(rows(scn))
        else:
            canal.put(transaction(scn, insert(scn * 10, table=ORDERS)), name="crm")


def test_transactions_come_in_the_order_of_commits_and_again_after_a_rollback(
    canal: ServedCanal,
) -> None:
    put(canal, 1, 3, 2, 5, 4, 6)
    client = canal.client()
    first = client.get(4, timeout=20_000)
    assert first.keys == [10]  # with the begin of the next transaction
    client.ack(first.id)
    while client.get(100, timeout=WAIT_MS).id > 0:
        pass
    client.roll_back()
    keys: list[int] = []
    while (batch := client.get(100, timeout=WAIT_MS)).id > 0:
        keys += batch.keys
    assert keys == [20, 30, 40, 50, 60]


def test_a_cursor_has_a_place_of_each_source(canal: ServedCanal) -> None:
    put(canal, 1, 2, 3, 4)
    client = canal.client()
    while (batch := client.get(100, timeout=WAIT_MS)).id > 0:
        client.ack(batch.id)
    (destination, _) = canal.view()["destinations"]
    places = {one["physicalSource"]: one for one in destination["consumers"][0]["places"]}
    assert {name: one["ackedScn"] for name, one in places.items()} == {"shop": "3", "crm": "4"}
    canal.close_and_open_again()
    put(canal, 5, 6)
    again = canal.connect().login()
    keys: list[int] = []
    while (batch := again.get(100, timeout=WAIT_MS)).id > 0:
        keys += batch.keys
    assert sorted(keys) == [50, 60]


def test_a_silent_source_holds_the_others_back_for_a_moment_only(canal: ServedCanal) -> None:
    put(canal, 1, 3)
    client = canal.client()
    keys: list[int] = []
    while (batch := client.get(100, timeout=WAIT_MS)).id > 0:
        keys += batch.keys
        client.ack(batch.id)
    assert keys == [10, 30]


def test_one_source_serves_several_destinations(canal: ServedCanal) -> None:
    put(canal, 1, 2)
    client = canal.connect("people").login()
    assert drain(client.subscribe()) == [10]


def test_a_rollback_from_another_connection_ends_a_wait_for_several_sources(
    canal: ServedCanal,
) -> None:
    gone, client = canal.client(), canal.connect().login()
    gone.ask(timeout=20_000)
    wait_until(lambda: canal.relay.traffic.held_requests == 2)
    client.roll_back()
    assert gone.batch().id == -1
    put(canal, 1, 2)
    keys: list[int] = []
    while (batch := client.get(100, timeout=WAIT_MS)).id > 0:
        keys += batch.keys
    assert sorted(keys) == [10, 20]
