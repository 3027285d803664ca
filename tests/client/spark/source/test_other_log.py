"""A query's offset proves that a relay has the log that was read, whatever serves that address."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from databus.schemas.errors import OtherLogError
from tests.client.spark.source.queries import Query
from tests.client.spark.source.table_shop import TableShop, table_shop
from tests.promises.bootstrapping import has_evicted
from tests.promises.running import RunningRelay, Shop, running, wait_until


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """What is closed in the end."""
    with ExitStack() as closing:
        yield closing


def shop_at(folder: Path, stack: ExitStack) -> Shop:
    folder.mkdir()
    shop = Shop(folder / "shop.db")
    stack.callback(shop.close)
    return shop


def started(shop: Shop, folder: Path, port: int, stack: ExitStack) -> RunningRelay:
    relay = stack.enter_context(running(RunningRelay(folder, shop.settings(), http={"port": port})))
    relay.start()
    return relay


def started_with_people(shop: Shop, folder: Path, port: int, stack: ExitStack) -> RunningRelay:
    """Start a relay that captures a second table, too."""
    shop.connection.execute("CREATE TABLE IF NOT EXISTS people (id INTEGER PRIMARY KEY, name TEXT)")
    settings = shop.settings(sources=["shop.orders", "shop.people"])
    relay = stack.enter_context(running(RunningRelay(folder, settings, http={"port": port})))
    relay.start()
    return relay


def write(shop: Shop, relay: RunningRelay, *ids: int, note: str) -> None:
    """Insert rows, each in a window of its own."""
    for number in ids:
        before = relay.max_scn()
        shop.insert(number, note=note)
        wait_until(lambda b=before: relay.max_scn() > b, "the window")  # type: ignore[misc]


def write_person(shop: Shop, relay: RunningRelay, number: int) -> None:
    """Insert a row of the second table, in a window of its own."""
    before = relay.max_scn()
    shop.connection.execute("INSERT INTO people VALUES (?, 'Ann')", (number,))
    wait_until(lambda: relay.max_scn() > before, "the window")


def query_of(*relays: str, stack: ExitStack, **options: str) -> Query:
    query = Query(
        sources="shop.orders", relays=",".join(relays), start="earliest", mode="changes", **options
    )
    stack.callback(query.close)
    return query


@pytest.mark.parametrize("is_planned", [False, True], ids=["before a batch", "within a batch"])
def test_a_query_is_not_given_windows_of_a_database_that_took_the_place_of_its_own(
    tmp_path: Path, stack: ExitStack, is_planned: bool
) -> None:
    with ExitStack() as first:
        one = shop_at(tmp_path / "one", first)
        relay = started(one, tmp_path / "a", 0, first)
        write(one, relay, *range(5), note="one")
        url = relay.url
        query = query_of(url, stack=stack)
        assert {row["note"] for rows in query.batches() for row in rows} == {"one"}
        if is_planned:
            # Its end is in Spark's log, and the batch is not applied.
            write(one, relay, 6, note="one")
            assert query.plan()
    two = shop_at(tmp_path / "two", stack)
    other = started(two, tmp_path / "b", int(url.rpartition(":")[2]), stack)
    write(two, other, *range(15), note="two")
    query.restart()
    with pytest.raises(OtherLogError, match="another log of shop"):
        query.planned() if is_planned else query.plan()


def test_a_task_is_not_given_windows_of_another_database_by_the_second_of_its_relays(
    tmp_path: Path, stack: ExitStack
) -> None:
    """The first relay, which the planner asked, does not answer any more."""
    one, two = (shop_at(tmp_path / name, stack) for name in ("one", "two"))
    first, second = (
        started(shop, tmp_path / name, 0, stack) for shop, name in ((one, "a"), (two, "b"))
    )
    write(one, first, *range(5), note="one")
    write(two, second, *range(15), note="two")
    query = query_of(first.url, stack=stack)
    assert sum(map(len, query.batches())) == 5
    write(one, first, 6, 7, note="one")
    ranges = query.plan()
    assert ranges
    query.options["relays"] = second.url
    with pytest.raises(OtherLogError, match="another log of shop"):
        query.read(ranges)
    query.options["relays"] = first.url
    assert [row["id"] for row in query.read(ranges)] == [6, 7]


def test_a_query_that_has_only_a_snapshot_is_not_given_windows_of_another_database(
    tmp_path: Path, stack: ExitStack
) -> None:
    (tmp_path / "one").mkdir()
    with table_shop(tmp_path / "one", 10) as shop:
        url = shop.relay.url
        query = query_of(url, stack=stack, bootstrapServers=shop.server)
        query.stream.close()
        query.options["start"] = "beginning"
        query.restart()
        shop.place.run("INSERT INTO orders VALUES (11, 'x')")
        shop.place.run("DELETE FROM orders WHERE id = 11")
        _read_all(shop, query)
    two = shop_at(tmp_path / "two", stack)
    other = started(two, tmp_path / "b", int(url.rpartition(":")[2]), stack)
    write(two, other, *range(30), note="two")
    query.options.pop("bootstrapServers")
    query.restart()
    with pytest.raises(OtherLogError, match="another log of shop"):
        query.plan()


def _read_all(shop: TableShop, query: Query) -> None:
    shop.scn()
    rows = [row for batch in query.batches() for row in batch]
    assert {row["id"] for row in rows if row["_databus"]["op"] != "snapshot_end"} == {*range(1, 11)}


def test_a_query_is_not_given_windows_of_a_backup_that_went_another_way(
    tmp_path: Path, stack: ExitStack
) -> None:
    """Up to the newest window with rows of the query's own sources, both logs are one."""
    with ExitStack() as first:
        one = shop_at(tmp_path / "one", first)
        relay = started_with_people(one, tmp_path / "a", 0, first)
        write(one, relay, *range(5), note="one")
        backup = tmp_path / "backup.db"
        with closing(sqlite3.connect(backup)) as copy:
            one.connection.backup(copy)
        for number in range(3):
            write_person(one, relay, number)
        url = relay.url
        query = query_of(url, stack=stack)
        assert sum(map(len, query.batches())) == 5
    (tmp_path / "two").mkdir()
    backup.rename(tmp_path / "two" / "shop.db")
    two = Shop(tmp_path / "two" / "shop.db")
    stack.callback(two.close)
    other = started_with_people(two, tmp_path / "b", int(url.rpartition(":")[2]), stack)
    write(two, other, *range(5, 15), note="two")
    query.restart()
    with pytest.raises(OtherLogError, match="another log of shop"):
        query.plan()


def test_a_query_of_a_quiet_table_goes_on_from_a_bootstrap_servers_log(tmp_path: Path) -> None:
    """The windows of another table, which alone are near its place, are not taken for its own."""
    with table_shop(tmp_path, 5, "busy (id INTEGER PRIMARY KEY, note TEXT)") as shop:
        numbers = itertools.count()

        def write_busily() -> int:
            before = shop.relay.max_scn()
            shop.place.run(f"INSERT INTO busy VALUES ({next(numbers)}, '{'x' * 20_000}')")
            wait_until(lambda: shop.relay.max_scn() > before, "the window")
            return shop.relay.max_scn()

        shop.place.run("UPDATE orders SET note = 'near' WHERE id = 1")
        query = Query(
            sources="shop.orders",
            relays=shop.relay.url,
            bootstrapServers=shop.server,
            start="earliest",
            mode="changes",
        )
        with closing(query):
            assert [row["note"] for rows in query.batches() for row in rows][-1:] == ["near"]
            for _ in range(10):
                place = write_busily()
            assert not any(query.batches())
            while not has_evicted(shop.relay, place):
                write_busily()
            shop.place.run("UPDATE orders SET note = 'later' WHERE id = 2")
            shop.scn()
            query.restart()
            assert [row["note"] for rows in query.batches() for row in rows] == ["later"]


def test_a_query_that_begins_at_an_scn_reads_the_log_that_has_its_mark(
    tmp_path: Path, stack: ExitStack
) -> None:
    one = shop_at(tmp_path / "one", stack)
    relay = started(one, tmp_path / "a", 0, stack)
    write(one, relay, *range(5), note="one")
    query = query_of(relay.url, stack=stack)
    assert sum(map(len, query.batches())) == 5
    place = query.start["physical"]["shop"]
    scn, time_ns = place["mark"]
    write(one, relay, 5, note="later")
    for mark, is_same in ((f"{scn},{time_ns}", True), (f"{scn},{time_ns + 1}", False)):
        again = query_of(relay.url, stack=stack)
        again.options |= {"start": str(place["scn"]), "startMark": mark}
        again.restart()
        if is_same:
            assert [row["note"] for rows in again.batches() for row in rows] == ["later"]
            continue
        with pytest.raises(OtherLogError, match="another log of shop"):
            again.plan()


@pytest.mark.parametrize("has_people", [False, True], ids=["of its tables", "with another table"])
def test_another_relay_of_the_log_that_a_relay_had_goes_on(
    tmp_path: Path, stack: ExitStack, has_people: bool
) -> None:
    """With a ring of its own, and without the table that the first one captured beside."""
    one = shop_at(tmp_path / "one", stack)
    with ExitStack() as first:
        start = started_with_people if has_people else started
        relay = start(one, tmp_path / "a", 0, first)
        write(one, relay, *range(5), note="one")
        for number in range(3) if has_people else ():
            write_person(one, relay, number)
        url = relay.url
        query = query_of(url, stack=stack)
        assert sum(map(len, query.batches())) == 5
    again = started(one, tmp_path / "b", int(url.rpartition(":")[2]), stack)
    write(one, again, 7, 8, note="one")
    query.restart()
    assert sorted(row["id"] for rows in query.batches() for row in rows) == [7, 8]
