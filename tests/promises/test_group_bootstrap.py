"""A group whose position no relay holds any more bootstraps, each process its partitions."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from databus.client import DatabusClient
from databus.client.consumer import Consumer, DataEvent
from tests.promises.bootstrapping import (
    PAGE_BYTES,
    SqlitePlace,
    insert_orders,
    insert_people,
    rows_of,
    running_pair,
    serving,
    write_past_the_ring,
)
from tests.promises.running import RunningRelay, Shop, wait_until

ORDERS, PEOPLE, PARTITIONS = 400, 100, 8


class Table:
    """What all processes of the group keep together, and who has delivered each row."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.rows: dict[tuple[str, Any], tuple[Any, ...]] = {}
        self.by: dict[tuple[str, Any], list[str]] = {}


class Keeping(Consumer):
    """Applies what comes to the one table."""

    def __init__(self, name: str, table: Table) -> None:
        self.errors: list[BaseException] = []
        self.bootstraps = 0
        self._name, self._table = name, table

    def on_start_bootstrap(self) -> None:
        self.bootstraps += 1

    def on_data_event(self, event: DataEvent) -> None:
        name = (event.source, event.key)
        with self._table.lock:
            self._table.by.setdefault(name, []).append(self._name)
            if event.is_delete:
                self._table.rows.pop(name, None)
            else:
                self._table.rows[name] = tuple(event.row.values())

    def on_error(self, error: BaseException) -> None:
        self.errors.append(error)


def member(
    relay: RunningRelay, urls: list[str], folder: Path, consumer: Consumer, sources: Sequence[str]
) -> DatabusClient:
    client = DatabusClient(
        [relay.url],
        bootstrap_servers=tuple(urls),
        start="beginning",
        fetch_bytes=PAGE_BYTES,
        checkpoint_dir=folder / "state",
        group="billing",
        partitions=PARTITIONS,
        checkpoint_every_s=0.1,
        group_ttl_s=5.0,
    )
    client.register(consumer, sources)
    client.start()
    return client


@pytest.mark.parametrize("joins_later", [False, True])
def test_each_process_bootstraps_its_partitions_and_all_rows_are_there(
    shop: Shop, tmp_path: Path, joins_later: bool
) -> None:
    place, table = SqlitePlace(shop), Table()
    insert_orders(place, range(ORDERS))
    insert_people(place, PEOPLE)
    sources = (place.orders, place.people)
    consumers = [Keeping(name, table) for name in ("a", "b")]
    with running_pair(tmp_path, place) as (relay, pair), ExitStack() as ended:
        write_past_the_ring(place, relay)
        pair.seed()
        urls = ended.enter_context(serving(pair.server()))

        def join(consumer: Keeping) -> DatabusClient:
            client = member(relay, urls, tmp_path, consumer, sources)
            ended.callback(client.stop)
            return client

        clients = [join(consumers[0])]
        if joins_later:
            wait_until(lambda: len(table.rows) > 100, "the first rows")
        clients.append(join(consumers[1]))
        wait_until(lambda: all(len(one.registrations[0].partitions) == 4 for one in clients), "4")
        place.run(
            "INSERT INTO orders (id, note) VALUES (90001, 'new')",
            "UPDATE orders SET note = 'again' WHERE id % 50 = 7",
            "DELETE FROM orders WHERE id % 50 = 9",
        )
        wait_until(
            lambda: (
                _rows(table, place.orders) == rows_of(place, "orders", "id", "note")
                and _count(table, place.people) == PEOPLE
            ),
            "all rows",
            lambda: [(one.status(), one.registrations[0].problem) for one in clients],
        )
    assert [one.errors for one in consumers] == [[], []]
    assert all(one.bootstraps for one in consumers[:1])
    assert {name for names in table.by.values() for name in names} == {"a", "b"}


def _rows(table: Table, source: str) -> set[tuple[Any, ...]]:
    with table.lock:
        return {(key[1], row[-1]) for key, row in table.rows.items() if key[0] == source}


def _count(table: Table, source: str) -> int:
    with table.lock:
        return sum(key[0] == source for key in table.rows)
