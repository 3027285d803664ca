"""Sources with names of their own, from the database to consumers, by every program."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from databus.cli.main import main
from databus.conf.loading import load_settings
from databus.conf.settings import RelaySettings
from databus.relay.sources.kind import read_columns
from tests.mariadb_server import Database
from tests.promises.bootstrapping import (
    PAGE_BYTES,
    Applying,
    MysqlPlace,
    Place,
    SqlitePlace,
    insert_orders,
    insert_people,
    rows_of,
    running_pair,
    serving,
    write_past_the_ring,
)
from tests.promises.running import (
    Remembering,
    RunningRelay,
    Shop,
    consuming,
    running,
    wait_until,
)

ORDERS, PEOPLE = "com.example.shop.Orders", "People"


@pytest.fixture(scope="module", autouse=True)
def _server_before_tests(request: pytest.FixtureRequest) -> None:
    """Start MariaDB before the first test if any needs it: it is not left behind by that test."""
    if any(item.get_closest_marker("mariadb") for item in request.session.items):
        request.getfixturevalue("server")


class NamedPlace:
    """A database whose sources have names of their own."""

    orders, people = ORDERS, PEOPLE

    def __init__(self, place: Place) -> None:
        self.tables = {place.orders: ORDERS, place.people: PEOPLE}
        self._place = place

    def run(self, *statements: str) -> Sequence[tuple[Any, ...]]:
        """Run statements, each a transaction; return the last one's rows."""
        return self._place.run(*statements)

    def settings(self, *tables: str) -> dict[str, Any]:
        """Return the settings of the physical source, with names for its tables."""
        settings = self._place.settings(*tables)
        named = [{"name": self.tables[table], "table": table} for table in settings["sources"]]
        return settings | {"sources": named}


@pytest.fixture(params=["sqlite", pytest.param("mysql", marks=pytest.mark.mariadb)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> NamedPlace:
    """Each kind of database, with rows in both tables."""
    found: Place
    if request.param == "sqlite":
        found = SqlitePlace(request.getfixturevalue("shop"))
    else:
        found = MysqlPlace(request.getfixturevalue("database"), tmp_path)
    insert_orders(found, range(400))
    insert_people(found, 50)
    return NamedPlace(found)


def databus(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words], prog_name="databus")


def has_all(place: NamedPlace, seen: Applying, *columns: str) -> bool:
    """Say whether the consumer's rows are the source's, in both tables."""
    columns = ("id", "note", *columns)
    if not all(row.keys() >= set(columns) for row in [*seen.state.get(ORDERS, {}).values()]):
        return False  # rows from before the ALTER
    orders, people = rows_of(place, "orders", *columns), rows_of(place, "people", "name", "land")
    return seen.rows(ORDERS, *columns) == orders and seen.rows(PEOPLE, "name", "land") == people


def records_of(relay: RunningRelay) -> dict[int, list[str]]:
    """Return the full names of the Avro records of each source's versions."""
    found: dict[int, list[str]] = {}
    for one in relay.get("/register").json():
        schema = json.loads(one["schema"])
        name = ".".join(filter(None, (schema.get("namespace"), schema["name"])))
        found.setdefault(one["id"], []).append(name)
    return found


def test_a_consumer_bootstraps_streams_and_follows_an_alter_by_the_sources_own_names(
    place: NamedPlace, tmp_path: Path
) -> None:
    seen = Applying()
    with running_pair(tmp_path, place) as (relay, pair):
        write_past_the_ring(place, relay)
        pair.seed()
        small = {"start": "beginning", "fetch_bytes": PAGE_BYTES, "checkpoint_every_s": 0}
        with (
            serving(pair.server()) as servers,
            consuming(
                [relay.url], [ORDERS, PEOPLE], seen, bootstrap_servers=tuple(servers), **small
            ) as client,
        ):
            wait_until(lambda: has_all(place, seen), "the bootstrap", client.status)
            place.run(
                "ALTER TABLE orders ADD COLUMN extra INT",
                "INSERT INTO orders (id, note, extra) VALUES (9001, 'new', 7)",
                "UPDATE orders SET extra = 8",
                "DELETE FROM people WHERE name = 'p3'",
            )
            wait_until(lambda: has_all(place, seen, "extra"), "the ALTER", client.status)
            relay.child.kill()
            relay.start()
            place.run("UPDATE orders SET note = 'again' WHERE id < 10")
            wait_until(lambda: has_all(place, seen, "extra"), "the restart", client.status)
        pair.wait_for_producer()
        verified = databus("bootstrap", "verify", "-c", tmp_path / "producer.toml", "--json")
        by_table = relay.stream(sources=next(iter(place.tables)))
        sources = relay.get("/sources").json()
        records = records_of(relay)
        tailed = databus(
            "tail", ORDERS, "--relay", relay.url, "--from", "earliest", "--count", 1, "--json"
        )
    assert seen.bootstrapped
    assert seen.problems == []
    assert set(seen.state) == {ORDERS, PEOPLE}
    compared = json.loads(verified.stdout)
    assert {name: one["isSame"] for name, one in compared.items()} == {ORDERS: True, PEOPLE: True}
    assert by_table.headers["x-dbus-error"], "a table is no source"
    assert sources == [{"name": ORDERS, "id": 1}, {"name": PEOPLE, "id": 2}]
    assert records == {1: [ORDERS, ORDERS], 2: [PEOPLE]}
    assert json.loads(tailed.stdout)["source"] == ORDERS


def test_the_doctor_and_the_columns_of_a_table_are_those_of_the_source(
    place: NamedPlace, tmp_path: Path
) -> None:
    relay = RunningRelay(tmp_path, place.settings())
    with running(relay):
        relay.start()
        looked = databus("doctor", "-c", relay.file)
    assert looked.exit_code == 0, looked.output
    assert "Databus 2" not in looked.output, "these names are right for all clients"
    (physical,) = load_settings(relay.file, RelaySettings).physical_sources
    table = read_columns(physical, ORDERS)
    assert (table.source, table.table) == (ORDERS, next(iter(place.tables)))
    assert read_columns(physical, table.table) == table


def test_two_databases_have_a_table_of_one_name(tmp_path: Path) -> None:
    shops = [Shop(tmp_path / f"{name}.db") for name in ("east", "west")]
    names = ["com.example.East", "com.example.West"]
    settings = [
        shop.settings(name=name[-4:].lower(), sources=[{"name": name, "table": "shop.orders"}])
        for shop, name in zip(shops, names, strict=True)
    ]
    seen = [Remembering(), Remembering()]
    with running(RunningRelay(tmp_path, *settings)) as relay:
        relay.start()
        with (
            consuming([relay.url], [names[0]], seen[0]),
            consuming([relay.url], [names[1]], seen[1]),
        ):
            shops[0].insert(1, 2, note="east")
            shops[1].insert(1, 3, note="west")
            for one, consumer, name in zip(shops, seen, names, strict=True):
                wait_until(lambda o=one, c=consumer, n=name: c.rows(n) == o.rows(), name)  # type: ignore[misc]
    for one in shops:
        one.close()
    assert [{event.source for event in consumer.events} for consumer in seen] == [
        {name} for name in names
    ]


def test_another_name_for_a_table_is_a_new_source_and_another_table_for_a_name_is_refused(
    shop: Shop, tmp_path: Path
) -> None:
    shop.connection.execute("CREATE TABLE others (id INTEGER PRIMARY KEY)")
    first, second = Remembering(), Remembering()
    named = {"name": "com.example.First", "table": "shop.orders"}
    with running(RunningRelay(tmp_path, shop.settings(sources=[named]))) as relay:
        relay.start()
        with consuming([relay.url], ["com.example.First"], first):
            shop.insert(1)
            wait_until(lambda: first.rows("com.example.First") == shop.rows(), "the first row")
        relay.child.stop()

        relay.change(sources=[named | {"name": "com.example.Second"}])
        relay.start()
        with consuming([relay.url], ["com.example.Second"], second):
            shop.insert(2)
            wait_until(lambda: second.events, "the second row")
        sources = relay.get("/sources").json()
        gone = relay.stream(sources="com.example.First")
        relay.child.stop()

        relay.change(sources=[{"name": "com.example.Second", "table": "shop.others"}])
        relay.launch()
        assert relay.end() == 1
        said = relay.child.log_tail()
    assert [event.row["id"] for event in second.events] == [2], "not the rows of the first"
    assert sources == [{"name": "com.example.Second", "id": 2}]
    assert gone.headers["x-dbus-error"]
    assert "com.example.Second was captured from table shop.orders" in said
    assert "is now to be captured from shop.others" in said


@pytest.mark.mariadb
def test_a_renamed_table_is_told_by_its_name_in_the_database(
    database: Database, tmp_path: Path
) -> None:
    place = NamedPlace(MysqlPlace(database, tmp_path))
    with running(RunningRelay(tmp_path, place.settings())) as relay:
        relay.start()
        place.run("CREATE TABLE spare LIKE orders", "RENAME TABLE orders TO old, spare TO orders")
        problem = relay.wait_for_problem("RENAME TABLE")
    assert f"{database.name}.orders" in problem
