"""A checkpoint proves that a server has the log that it is of, whatever serves that address."""

from __future__ import annotations

import itertools
import json
import random
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from databus.client import DatabusClient
from databus.schemas.errors import OtherLogError
from tests.mariadb_server import Database
from tests.promises.bootstrapping import (
    Applying,
    RunningPair,
    SqlitePlace,
    insert_orders,
    running_pair,
    serving,
    write_past_the_ring,
)
from tests.promises.running import (
    Remembering,
    RunningRelay,
    Shop,
    consuming,
    mysql_source,
    running,
    wait_until,
)


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Shop]:
    """A shop."""
    (tmp_path / "one").mkdir()
    shop = Shop(tmp_path / "one" / "shop.db")
    yield shop
    shop.close()


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Shop]:
    """Another database, with a table of the same name."""
    (tmp_path / "two").mkdir()
    shop = Shop(tmp_path / "two" / "shop.db")
    yield shop
    shop.close()


def relay_of(shop: Shop, folder: Path, port: int = 0) -> RunningRelay:
    http = {"port": port} if port else None
    return RunningRelay(folder, shop.settings(), http=http)


def notes(consumer: Remembering) -> set[str]:
    return {event.row["note"] for event in consumer.events}


def one_by_one(shop: Shop, relay: RunningRelay, *ids: int, note: str) -> None:
    """Insert rows so that each is a window of its own."""
    for number in ids:
        before = relay.max_scn()
        shop.insert(number, note=note)
        wait_until(lambda b=before: relay.max_scn() > b, "the window")  # type: ignore[misc]


WITH_PEOPLE = {"sources": ["shop.orders", "shop.people"]}


def people_one_by_one(shop: Shop, relay: RunningRelay, ids: Iterable[int]) -> None:
    """Insert people, each in a window of its own."""
    for number in ids:
        before = relay.max_scn()
        shop.connection.execute("INSERT INTO people VALUES (?)", (number,))
        wait_until(lambda b=before: relay.max_scn() > b, "the window")  # type: ignore[misc]


def backed_up(shop: Shop, folder: Path) -> Path:
    """Return a backup of a shop's file as it is now, in a folder of its own."""
    (folder / "restored").mkdir()
    with closing(sqlite3.connect(folder / "restored" / "shop.db")) as copy:
        shop.connection.backup(copy)
    return folder / "restored" / "shop.db"


def is_marked(folder: Path) -> bool:
    """Return whether a checkpoint is kept there with a window that its relay had."""
    return any("databus_log_scn" in path.read_text() for path in folder.glob("*.json"))


def log_scn_in(folder: Path) -> int:
    """Return the SCN of the window that a kept checkpoint has of its relay."""
    (path,) = folder.glob("*.json")
    return int(json.loads(path.read_text())["checkpoint"].get("databus_log_scn", -1))


def read_first(
    relay: RunningRelay, shop: Shop, consumer: Remembering, kept: dict[str, Path]
) -> None:
    """Write five windows, and have a client read them that keeps its checkpoint."""
    relay.start()
    one_by_one(shop, relay, *range(5), note="one")
    with consuming([relay.url], ["shop.orders"], consumer, **kept):
        wait_until(lambda: len(consumer.events) == 5, "the rows")


def test_a_client_is_not_sent_windows_of_another_database(
    one: Shop, two: Shop, tmp_path: Path
) -> None:
    kept = {"checkpoint_dir": tmp_path / "kept"}
    consumer = Remembering()
    with running(relay_of(one, tmp_path / "a")) as relay:
        read_first(relay, one, consumer, kept)
    with running(relay_of(two, tmp_path / "b")) as relay:
        relay.start()
        one_by_one(two, relay, *range(15), note="two")
        with consuming([relay.url], ["shop.orders"], consumer, **kept) as client:
            wait_until(lambda: client.error is not None, "the refusal")
            assert isinstance(client.error, OtherLogError)
            assert "another log of shop" in str(client.error)
            assert not client.is_healthy
    assert notes(consumer) == {"one"}


def test_a_client_is_not_sent_windows_of_a_backup_that_went_another_way(
    one: Shop, tmp_path: Path
) -> None:
    """Both logs are one up to the newest row that it has, and a part of the rows it passed over."""
    consumer, kept = Remembering(), {"checkpoint_dir": tmp_path / "kept"}
    one.connection.execute("CREATE TABLE people (id INTEGER PRIMARY KEY)")
    with running(RunningRelay(tmp_path / "a", one.settings(**WITH_PEOPLE))) as relay:
        read_first(relay, one, consumer, kept)
        backup = backed_up(one, tmp_path)
        # A request that is held does not keep the checkpoint without a proof of its place.
        with consuming([relay.url], ["shop.orders"], consumer, **kept, wait_ms=60_000):
            people_one_by_one(one, relay, range(10))
            wait_until(lambda: log_scn_in(tmp_path / "kept") == relay.max_scn(), "its last window")
    with (
        closing(Shop(backup)) as restored,
        running(RunningRelay(tmp_path / "b", restored.settings(**WITH_PEOPLE))) as relay,
    ):
        relay.start()
        one_by_one(restored, relay, *range(5, 15), note="two")
        with consuming([relay.url], ["shop.orders"], consumer, **kept) as client:
            wait_until(lambda: client.error is not None, "the refusal")
            assert isinstance(client.error, OtherLogError)
    assert notes(consumer) == {"one"}


def test_a_relay_that_is_replaced_while_its_client_lives_is_noticed(
    one: Shop, two: Shop, tmp_path: Path
) -> None:
    consumer = Remembering()
    first = relay_of(one, tmp_path / "a")
    with running(first):
        first.start()
        one_by_one(one, first, *range(5), note="one")
        with consuming([first.url], ["shop.orders"], consumer) as client:
            wait_until(lambda: len(consumer.events) == 5, "the rows")
            first.child.stop()
            second = relay_of(two, tmp_path / "b", port=first.port)
            with running(second):
                second.start()
                one_by_one(two, second, *range(15), note="two")
                wait_until(lambda: client.error is not None, "the refusal")
                assert isinstance(client.error, OtherLogError)
    assert notes(consumer) == {"one"}


def test_of_two_relays_the_one_with_another_log_is_passed_over(
    one: Shop, two: Shop, tmp_path: Path
) -> None:
    consumer = Remembering()
    kept = {"checkpoint_dir": tmp_path / "kept"}
    with running(relay_of(one, tmp_path / "a")) as right:
        read_first(right, one, consumer, kept)
        with running(relay_of(two, tmp_path / "b")) as wrong:
            wrong.start()
            one_by_one(two, wrong, *range(15), note="two")
            one_by_one(one, right, 5, 6, note="one")
            for _ in range(3):  # whichever it asks first
                with consuming([wrong.url, right.url], ["shop.orders"], consumer, **kept):
                    wait_until(lambda: {e.row["id"] for e in consumer.events} == {*range(7)}, "")
    assert notes(consumer) == {"one"}


@pytest.mark.mariadb
def test_a_client_of_a_server_is_not_sent_windows_of_another_of_its_databases_log(
    database: Database, tmp_path: Path
) -> None:
    """The SCNs of a binlog lie apart: another log has no window just there."""
    draw = random.Random(5)
    sources = [f"{database.name}.orders"]
    consumer, kept = Remembering(), {"checkpoint_dir": tmp_path / "kept"}
    database.run("RESET MASTER")  # both logs begin in file 1, whatever the server had before
    with running(RunningRelay(tmp_path / "a", mysql_source(database, tmp_path))) as relay:
        relay.start()
        for number in range(5):
            database.run(f"INSERT INTO orders (id, note) VALUES ({number}, 'one')")
        with consuming([relay.url], sources, consumer, **kept):
            wait_until(lambda: len(consumer.events) == 5, "the rows")
    database.run("RESET MASTER", "DELETE FROM orders")
    with running(RunningRelay(tmp_path / "b", mysql_source(database, tmp_path))) as relay:
        relay.start()
        while relay.max_scn() <= consumer.events[-1].scn + 1000:
            text = "t" * draw.randrange(1, 99)
            database.run(f"REPLACE INTO orders (id, note) VALUES ({draw.randrange(99)}, '{text}')")
        with consuming([relay.url], sources, consumer, **kept) as client:
            wait_until(lambda: client.error is not None, "the refusal")
            assert isinstance(client.error, OtherLogError)
    assert notes(consumer) == {"one"}


@pytest.mark.mariadb
def test_a_client_that_was_sent_no_row_is_not_sent_those_behind_its_place_in_another_log(
    database: Database, tmp_path: Path
) -> None:
    """Its checkpoint has a window of a source that it does not read."""
    sources, kept = [f"{database.name}.people"], {"checkpoint_dir": tmp_path / "kept"}
    consumer = Remembering()
    database.run("RESET MASTER")  # as above
    with running(RunningRelay(tmp_path / "a", mysql_source(database, tmp_path))) as relay:
        relay.start()
        with consuming([relay.url], sources, consumer, **kept):
            database.run("INSERT INTO orders (id, note) VALUES (1, 'one')")
            wait_until(lambda: is_marked(tmp_path / "kept"), "a checkpoint with a mark")
        newest = relay.max_scn()
    database.run("RESET MASTER")
    with running(RunningRelay(tmp_path / "b", mysql_source(database, tmp_path))) as relay:
        relay.start()
        database.run("INSERT INTO people VALUES ('lost?', 'x', '1970-01-01')")
        numbers = itertools.count(2)
        while relay.max_scn() <= newest + 1000:
            number = next(numbers)
            note = "t" * (number % 99)
            database.run(f"REPLACE INTO orders (id, note) VALUES ({number}, '{note}')")
        with consuming([relay.url], sources, consumer, **kept) as client:
            wait_until(lambda: client.error is not None, "the refusal")
            assert isinstance(client.error, OtherLogError)
    assert consumer.events == []


@contextmanager
def keeping_five(shop: Shop, relay: RunningRelay, pair: RunningPair) -> Iterator[ExitStack]:
    """Run a pair that has five windows of a shop; gives what is closed in the end."""
    with ExitStack() as stack:
        stack.callback(relay.child.stop)
        relay.start()
        stack.callback(pair.producer.stop)
        one_by_one(shop, relay, *range(5), note="one")
        pair.start()
        pair.wait_for_producer()
        yield stack


def test_a_pair_whose_source_was_begun_anew_says_so_and_mixes_nothing(
    one: Shop, two: Shop, tmp_path: Path
) -> None:
    relay = relay_of(one, tmp_path / "a")
    pair = RunningPair(tmp_path, relay)
    with keeping_five(one, relay, pair) as stack:
        position = pair.position()
        relay.child.stop()
        anew = relay_of(two, tmp_path / "b", port=relay.port)
        stack.callback(anew.child.stop)
        anew.start()
        one_by_one(two, anew, *range(15), note="two")
        wait_until(lambda: "another log" in pair.producer.log_tail(), "the refusal")
        assert pair.position() == position


def test_a_pair_is_not_sent_windows_of_a_backup_that_went_another_way(
    one: Shop, tmp_path: Path
) -> None:
    """Both logs are one up to the newest row of its store, and a part of what it passed over."""
    one.connection.execute("CREATE TABLE people (id INTEGER PRIMARY KEY)")
    relay = RunningRelay(tmp_path / "a", one.settings(**WITH_PEOPLE))
    pair = RunningPair(tmp_path, relay, ["shop.orders"])
    with keeping_five(one, relay, pair) as stack:
        backup = backed_up(one, tmp_path)
        people_one_by_one(one, relay, range(10))
        pair.wait(lambda: pair.log_scn() == relay.max_scn(), "its last window")
        pair.producer.stop()  # what proves its place is in the store
        position = pair.position()
        relay.child.stop()
        restored = stack.enter_context(closing(Shop(backup)))
        anew = RunningRelay(
            tmp_path / "b", restored.settings(**WITH_PEOPLE), http={"port": relay.port}
        )
        stack.callback(anew.child.stop)
        anew.start()
        one_by_one(restored, anew, 5, note="lost?")
        people_one_by_one(restored, anew, range(15))
        pair.start()
        wait_until(lambda: "another log" in pair.producer.log_tail(), "the refusal")
        assert pair.position() == position


def test_a_bootstrap_server_of_another_database_is_refused(
    one: Shop, two: Shop, tmp_path: Path
) -> None:
    consumer = Remembering()
    kept = {"checkpoint_dir": tmp_path / "kept"}
    with running(relay_of(one, tmp_path / "a")) as relay:
        read_first(relay, one, consumer, kept)
    place = SqlitePlace(two)
    insert_orders(place, range(600), note="two" * 100)
    with running_pair(tmp_path / "b", place) as (relay, pair):
        pair.seed()
        one_by_one(two, relay, *range(600, 620), note="two")
        pair.wait_for_producer()
        server = pair.server()
        with serving(server) as urls:
            write_past_the_ring(place, relay, consumer.events[-1].scn)
            servers = {"bootstrap_servers": urls} | kept
            with consuming([relay.url], ["shop.orders"], consumer, **servers) as client:
                wait_until(lambda: client.error is not None, "the refusal")
                assert isinstance(client.error, OtherLogError)
    assert notes(consumer) == {"one"}


def test_a_client_that_was_bootstrapped_goes_on_at_the_relay_of_that_log(
    two: Shop, one: Shop, tmp_path: Path
) -> None:
    """The bootstrap server names a window of its log, and the relay proves that it has it."""
    place = SqlitePlace(two)
    insert_orders(place, range(10), note="two")
    with running_pair(tmp_path / "b", place) as (relay, pair):
        pair.seed()
        one_by_one(two, relay, *range(20, 24), note="two")
        pair.wait_for_producer()
        with serving(pair.server()) as urls, running(relay_of(one, tmp_path / "a")) as other:
            other.start()
            one_by_one(one, other, *range(40), note="one")
            for url, may_go_on in ((relay.url, True), (other.url, False)):
                consumer = Applying()
                options = {"bootstrap_servers": urls, "start": "beginning"}
                with consuming([url], ["shop.orders"], consumer, **options) as client:
                    assert_goes_on(client, consumer, two, relay, may_go_on=may_go_on)


def assert_goes_on(
    client: DatabusClient,
    consumer: Applying,
    shop: Shop,
    relay: RunningRelay,
    *,
    may_go_on: bool,
) -> None:
    if may_go_on:
        wait_until(lambda: ("two",) in consumer.rows("shop.orders", "note"), "the snapshot")
        one_by_one(shop, relay, 50, note="live")
        wait_until(lambda: ("live",) in consumer.rows("shop.orders", "note"), "the live row")
        return
    wait_until(lambda: client.error is not None, "the refusal")
    assert isinstance(client.error, OtherLogError)
    assert ("one",) not in consumer.rows("shop.orders", "note")
