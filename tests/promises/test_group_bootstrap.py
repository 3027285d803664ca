"""A group whose position no relay holds any more bootstraps, each process its partitions."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from databus.client import DatabusClient
from databus.client.consumer import Consumer, DataEvent
from databus.client.group.deliveries import Move
from databus.schemas.event.keys import text_key
from databus.schemas.filters import key_hash
from tests import PATIENCE_S
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
        name = (event.source, event.wire_key)
        with self._table.lock:
            self._table.by.setdefault(name, []).append(self._name)
            if event.is_delete:
                self._table.rows.pop(name, None)
            else:
                self._table.rows[name] = tuple(event.row.values())

    def on_error(self, error: BaseException) -> None:
        self.errors.append(error)


def member(
    relay: RunningRelay,
    urls: list[str],
    folder: Path,
    consumer: Consumer,
    sources: Sequence[str],
    by: tuple[str, ...] = (),
) -> DatabusClient:
    client = DatabusClient(
        [relay.url],
        bootstrap_servers=tuple(urls),
        start="beginning",
        fetch_bytes=PAGE_BYTES,
        checkpoint_dir=folder / "state",
        group="billing",
        partitions=PARTITIONS,
        partition_by=by,
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
        _wait_for_shares(clients)
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


Handed = dict[int, dict[Any, tuple[int, str]]]


class Owning(Consumer):
    """Keeps the rows of its partitions only, by their notes; hands them on with a partition.

    As docs/cluster.md says, it leaves out what is older than what it has, and removes a row that
    has left only if it has it in one of those partitions.
    """

    def __init__(self, handed: Handed) -> None:
        self.rows: dict[Any, tuple[int, str]] = {}
        self.owned: set[int] = set()
        self.moves: Counter[str] = Counter()
        self.errors: list[BaseException] = []
        self.bootstraps = 0
        self._handed = handed

    def on_add_partition(self, partition: int, scn: int) -> None:
        self.owned.add(partition)
        self.rows |= self._handed.pop(partition, {})

    def on_drop_partition(self, partition: int) -> None:
        self.owned.discard(partition)
        rows = {key: row for key, row in self.rows.items() if partition_of(row[1]) == partition}
        self._handed[partition] = rows
        self.rows = {key: row for key, row in self.rows.items() if key not in rows}

    def on_start_bootstrap(self) -> None:
        self.bootstraps += 1

    def on_data_event(self, event: DataEvent) -> None:
        assert set(event.partitions) <= self.owned
        if event.move is not None:
            self.moves[event.move] += 1
        scn, note = self.rows.get(event.wire_key, (-1, ""))
        if event.scn < scn:
            return
        if not event.is_delete and event.move is not Move.LEFT:
            self.rows[event.wire_key] = event.scn, event.row["note"]
        elif scn >= 0 and partition_of(note) in event.partitions:
            del self.rows[event.wire_key]

    def on_error(self, error: BaseException) -> None:
        self.errors.append(error)


def partition_of(note: str) -> int:
    return key_hash(text_key("shop.orders", ("note",), {"note": note})) % PARTITIONS


def test_by_a_column_each_process_has_its_rows_and_none_that_has_moved_away(
    shop: Shop, tmp_path: Path
) -> None:
    """Also of those that moved while nobody read, and more than once."""
    place = SqlitePlace(shop)
    insert_orders(place, range(ORDERS))
    handed: Handed = {}
    with running_pair(tmp_path, place) as (relay, pair), ExitStack() as ended:
        write_past_the_ring(place, relay)
        pair.seed()
        server = pair.server()
        ended.callback(server.child.stop)
        for turn in range(2):
            group = [Owning(handed) for _ in "ab"]
            with ExitStack() as running:
                clients = []
                for one in group:
                    joined = member(relay, [server.url], tmp_path, one, [place.orders], ("note",))
                    running.callback(joined.stop)
                    clients.append(joined)
                # No row comes before both have their partitions: of two partitions of one
                # process, a row that moves from one to the other has not left.
                _wait_for_shares(clients)
                server.start()
                place.run(
                    f"INSERT INTO orders (id, note) VALUES ({90001 + turn}, 'new')",
                    f"UPDATE orders SET note = 'again {turn}' WHERE id % 50 = 7",
                    f"DELETE FROM orders WHERE id % 50 = {9 + turn}",
                )
                _wait_for_rows(group, place)
            assert [one.errors for one in group] == [[], []]
            assert any(one.bootstraps for one in group)
            server.child.stop()
            if turn == 0:
                for number in (3, 2, 1):  # three partitions, one after another
                    place.run(f"UPDATE orders SET note = 'moved {number}' || id WHERE id % 3 = 0")
                write_past_the_ring(place, relay, relay.max_scn())
                pair.wait_for_producer()
            else:
                assert sum(one.moves["left"] for one in group) > 50


def _wait_for_shares(clients: Sequence[DatabusClient]) -> None:
    share = PARTITIONS // len(clients)
    wait_until(
        lambda: all(len(one.registrations[0].partitions) == share for one in clients),
        f"each to have {share} partitions",
    )


def _wait_for_rows(group: Sequence[Owning], place: SqlitePlace) -> None:
    def wrong(one: Owning) -> set[Any]:
        rows = {(key, note) for key, (_, note) in list(one.rows.items())}
        wanted = rows_of(place, "orders", "id", "note")
        return rows ^ {row for row in wanted if partition_of(row[1]) in one.owned}

    wait_until(
        lambda: all(len(one.owned) == 4 and not wrong(one) for one in group),
        "each process to have its rows",
        lambda: [(one.owned, one.errors, len(wrong(one)), one.moves) for one in group],
        patience_s=PATIENCE_S,
    )


def _rows(table: Table, source: str) -> set[tuple[Any, ...]]:
    with table.lock:
        return {(key[1], row[-1]) for key, row in table.rows.items() if key[0] == source}


def _count(table: Table, source: str) -> int:
    with table.lock:
        return sum(key[0] == source for key in table.rows)
