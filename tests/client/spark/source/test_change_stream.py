"""The stream against running servers: relays, a bootstrap pair, SQLite; without Spark."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from databus.client.spark.source.change_stream import ChangeStream
from databus.schemas.errors import DatabusError, ScnNotFoundError, SettingsError, UnknownSourceError
from tests.client.spark.source.queries import Applied, Query
from tests.promises.bootstrapping import (
    RunningPair,
    SqlitePlace,
    has_evicted,
    insert_orders,
    insert_people,
    running_pair,
    serving,
    update_orders,
    write_past_the_ring,
)
from tests.promises.running import RunningRelay, Shop, running, wait_until


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    found = Shop(tmp_path / "shop.db")
    yield found
    found.close()


@pytest.fixture
def place(shop: Shop) -> SqlitePlace:
    return SqlitePlace(shop)


@pytest.fixture
def relay(tmp_path: Path, place: SqlitePlace) -> Iterator[RunningRelay]:
    relay = RunningRelay(tmp_path, place.settings())
    with running(relay.start()):
        yield relay


@pytest.fixture
def pair(tmp_path: Path, place: SqlitePlace) -> Iterator[tuple[RunningRelay, RunningPair, str]]:
    insert_orders(place, range(1, 200))
    insert_people(place, 30)
    with running_pair(tmp_path, place) as (relay, pair):
        pair.seed()
        with serving(pair.server()) as (url,):
            yield relay, pair, url


@pytest.fixture
def open_query() -> Iterator[Callable[..., Query]]:
    with ExitStack() as opened:

        def open_(**options: str) -> Query:
            query = Query(**options)
            opened.callback(query.close)
            return query

        yield open_


@contextmanager
def seeded_anew(relay: RunningRelay, old: RunningPair, tmp_path: Path) -> Iterator[str]:
    """Put a pair that knows nothing of the past in the place of one; yields its server's URL."""
    old.producer.stop()
    folder = tmp_path / "new"
    folder.mkdir()
    new = RunningPair(folder, relay).start()
    try:
        new.seed()
        with serving(new.server("new-server")) as (url,):
            yield url
    finally:
        new.producer.stop()


def applied(query: Query, table: Applied | None = None) -> Applied:
    table = table or Applied()
    for records in query.batches():
        table.apply(records)
    return table


def test_every_change_comes_once_in_batches_of_whole_transactions(
    relay: RunningRelay,
    shop: Shop,
    open_query: Callable[..., Query],
) -> None:
    query = open_query(
        relays=relay.url,
        sources="shop.orders",
        start="earliest",
        maxRowsPerTrigger="25",
        shards="3",
    )
    for begin in range(1, 300, 10):
        shop.insert(*range(begin, begin + 10), each=10)
    relay.wait_for_scn(relay.max_scn())
    rows_of_window: dict[int, int] = defaultdict(int)
    seen: set[int] = set()
    ids: list[int] = []
    while len(ids) < 300:
        records = query.wait_for_batch()
        scns = {record["_databus"]["scn"] for record in records}
        assert not scns & seen, "a window is in one batch"
        seen |= scns
        for record in records:
            rows_of_window[record["_databus"]["scn"]] += 1
        assert len(records) <= 25 or len(scns) == 1
        ids += [record["id"] for record in records]
    assert sorted(ids) == list(range(1, 301))
    assert all(count % 10 == 0 for count in rows_of_window.values())


def test_a_batch_that_was_planned_is_read_again_exactly_after_a_crash(
    relay: RunningRelay,
    shop: Shop,
    open_query: Callable[..., Query],
) -> None:
    query = open_query(relays=relay.url, sources="shop.orders", start="earliest")
    shop.insert(1, 2, 3)
    before = query.wait_for_batch()
    shop.insert(4, 5)
    query.restart()
    assert query.read(query.planned()) == before


def test_latest_stays_where_it_was_when_the_query_first_asked(
    relay: RunningRelay,
    shop: Shop,
    open_query: Callable[..., Query],
) -> None:
    shop.insert(1)
    relay.wait_for_scn(1)
    query = open_query(relays=relay.url, sources="shop.orders", start="latest")
    assert query.read(query.plan() or []) == []
    shop.insert(2)
    query.restart()  # before any batch had a row
    shop.insert(3)
    ids = [r["id"] for r in query.wait_for_batch()]
    while len(ids) < 2:
        ids += [r["id"] for r in query.wait_for_batch()]
    assert ids == [2, 3]


def test_from_nothing_the_snapshot_comes_first_and_then_the_stream(
    pair: tuple[RunningRelay, RunningPair, str],
    place: SqlitePlace,
    open_query: Callable[..., Query],
) -> None:
    relay, _, url = pair
    write_past_the_ring(place, relay)
    query = open_query(
        relays=relay.url,
        bootstrapServers=url,
        sources="shop.orders",
        start="beginning",
        maxRowsPerTrigger="60",
    )
    table = Applied()
    table.apply(query.wait_for_batch())
    update_orders(place)
    place.run("DELETE FROM orders WHERE id BETWEEN 20 AND 30")
    relay.wait_for_scn(relay.max_scn())
    while table.rows != place.shop.rows():
        table.apply(query.wait_for_batch())
    assert table.ops.count("snapshot_end") == 1
    assert table.ops[0] == "snapshot"
    assert "delete" in table.ops


def test_a_range_that_the_ring_evicts_before_it_is_read_comes_from_the_log(
    pair: tuple[RunningRelay, RunningPair, str],
    place: SqlitePlace,
    open_query: Callable[..., Query],
) -> None:
    relay, producer, url = pair
    query = open_query(
        relays=relay.url, bootstrapServers=url, sources="shop.orders", start=str(relay.max_scn())
    )
    update_orders(place)
    expected = query.wait_for_batch()
    query.restart()
    write_past_the_ring(place, relay, json.loads(query.log[0])["physical"]["shop"]["scn"])
    producer.wait_for_producer()
    assert query.read(query.planned()) == expected


def test_without_a_bootstrap_server_an_evicted_range_is_an_error_that_names_it(
    pair: tuple[RunningRelay, RunningPair, str],
    place: SqlitePlace,
    open_query: Callable[..., Query],
) -> None:
    relay, _, _ = pair
    scn = relay.max_scn()
    query = open_query(relays=relay.url, sources="shop.orders", start=str(scn))
    update_orders(place)
    query.wait_for_batch()
    write_past_the_ring(place, relay, scn)
    with pytest.raises(SettingsError, match=rf"from scn {scn} .*bootstrapServers") as refused:
        query.read(query.planned())
    assert isinstance(refused.value.__cause__, ScnNotFoundError)


def test_a_query_that_slept_past_the_ring_goes_on_from_the_log_without_a_gap(
    pair: tuple[RunningRelay, RunningPair, str],
    place: SqlitePlace,
    open_query: Callable[..., Query],
) -> None:
    relay, producer, url = pair
    query = open_query(relays=relay.url, bootstrapServers=url, sources="shop.orders")
    table = applied(query)
    write_past_the_ring(place, relay)
    place.run("DELETE FROM orders WHERE id < 10")
    write_past_the_ring(place, relay)
    producer.wait_for_producer()
    assert has_evicted(relay, json.loads(query.log[-1])["physical"]["shop"]["scn"])
    query.restart()
    while table.rows != place.shop.rows():
        table.apply(query.wait_for_batch())
    assert table.ops.count("snapshot") == 199


def test_a_query_that_no_log_reaches_reads_everything_anew_and_the_mark_clears_the_rest(
    pair: tuple[RunningRelay, RunningPair, str],
    place: SqlitePlace,
    tmp_path: Path,
    open_query: Callable[..., Query],
) -> None:
    relay, old, url = pair
    query = open_query(relays=relay.url, bootstrapServers=url, sources="shop.orders")
    table = applied(query)
    write_past_the_ring(place, relay)
    place.run("DELETE FROM orders WHERE id < 10")
    write_past_the_ring(place, relay)
    with seeded_anew(relay, old, tmp_path) as new_url:
        query.options["bootstrapServers"] = new_url
        query.restart()
        while table.rows != place.shop.rows():
            table.apply(query.wait_for_batch())
    assert table.ops.count("snapshot_end") == 2
    assert "delete" not in table.ops


def test_a_batch_that_was_planned_and_that_no_log_has_any_more_is_read_all_the_same(
    pair: tuple[RunningRelay, RunningPair, str],
    place: SqlitePlace,
    tmp_path: Path,
    open_query: Callable[..., Query],
) -> None:
    relay, old, url = pair
    query = open_query(relays=relay.url, bootstrapServers=url, sources="shop.orders")
    table = applied(query)
    place.run("DELETE FROM orders WHERE id < 10")
    wait_until(query.plan, "a batch")
    write_past_the_ring(place, relay)
    with seeded_anew(relay, old, tmp_path) as new_url:
        query.options["bootstrapServers"] = new_url
        query.restart()
        table.apply(query.read(query.planned()))
        assert set(table.rows) == set(place.shop.rows())
        while table.rows != place.shop.rows():
            table.apply(query.wait_for_batch())
    assert table.ops.count("snapshot_end") >= 2
    assert "delete" not in table.ops


def test_a_column_that_comes_later_ends_the_query_and_its_restart_takes_it_in(
    relay: RunningRelay,
    shop: Shop,
    open_query: Callable[..., Query],
) -> None:
    query = open_query(relays=relay.url, sources="shop.orders", start="earliest")
    shop.insert(1)
    assert [r["id"] for r in query.wait_for_batch()] == [1]
    shop.connection.execute("ALTER TABLE orders ADD COLUMN price INTEGER")
    shop.connection.execute("INSERT INTO orders VALUES (2, 'x', 5)")
    with pytest.raises(DatabusError, match=r"shop\.orders.*price"):
        query.wait_for_batch()
    query.restart()
    records = query.read(query.planned())
    assert (records[-1]["id"], records[-1]["price"]) == (2, 5)


def test_a_source_that_is_not_there_is_named_with_those_that_are(
    relay: RunningRelay, open_query: Callable[..., Query]
) -> None:
    with pytest.raises(UnknownSourceError, match=r"shop\.order'?.*shop\.orders"):
        open_query(relays=relay.url, sources="shop.order")


def test_a_relay_that_is_gone_is_an_error_with_its_address(
    relay: RunningRelay, open_query: Callable[..., Query]
) -> None:
    query = open_query(relays=relay.url, sources="shop.orders", retrySeconds="0")
    relay.child.stop()
    with pytest.raises(DatabusError, match=relay.url):
        query.plan()


@pytest.mark.parametrize("name", ["archive", "after", "until"])
def test_a_stream_refuses_what_only_a_read_has_instead_of_reading_everything(name: str) -> None:
    given = {"sources": "shop.orders", "relays": "http://127.0.0.1:1", name: "7"}
    with pytest.raises(SettingsError, match=f"option {name} is only for spark.read"):
        ChangeStream(given)
