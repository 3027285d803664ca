"""A table that has stopped alone, and consumers that only the server's log can serve."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from databus.demo.private_mariadb import PrivateMariaDB
from databus.schemas.checkpoint import Checkpoint
from tests.mariadb_server import Database
from tests.promises.hostile.test_stopped_table import stopped_table
from tests.promises.running import (
    Remembering,
    RunningRelay,
    consuming,
    mysql_source,
    new_database,
    running,
    sources_of,
    wait_until,
)

pytest_plugins = ["tests.mysql"]

ROWS = 2000


@pytest.fixture(params=["mariadb", pytest.param("mysql", marks=pytest.mark.mysql)])
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    """A database whose log does not name columns: only their definitions tell what rows mean."""
    options: dict[str, str | int] = {"binlog-row-metadata": "MINIMAL"}
    with ExitStack() as started:
        if request.param == "mysql":
            server = request.getfixturevalue("new_mysql")(options=options)
        else:
            server = PrivateMariaDB(options=options)
        started.enter_context(server)
        yield started.enter_context(new_database(server, "shop"))


def write(database: Database, numbers: range) -> None:
    """Insert a row into each table in one transaction, and so on."""
    for n in numbers:
        database.run(
            "BEGIN",
            f"INSERT INTO people (name, land) VALUES ('{n}', 'de')",
            f"INSERT INTO orders (id, note) VALUES ({n}, '{'x' * 100}')",
            "COMMIT",
        )


def alter_unlogged(database: Database) -> None:
    """Alter a table without a trace in the server's log."""
    database.run(
        "SET sql_log_bin = 0",
        "ALTER TABLE orders ADD COLUMN extra INT NOT NULL DEFAULT 7 AFTER id",
        "SET sql_log_bin = 1",
    )


def names_of(consumer: Remembering) -> list[int]:
    return [int(event.row["name"]) for event in consumer.events if "name" in event.row]


def test_the_others_get_every_row_across_the_stop_from_the_servers_log(
    database: Database, tmp_path: Path
) -> None:
    orders, people = sources_of(database)
    settings = mysql_source(database, tmp_path, ring_bytes=64 << 10)
    consumer, both = Remembering(), Remembering()
    with running(RunningRelay(tmp_path, settings)) as relay:
        relay.start()
        write(database, range(10))
        wait_until(lambda: len(relay.windows()) >= 10, "the first rows", relay.tell)
        begin = min(relay.windows())
        alter_unlogged(database)
        write(database, range(10, ROWS))
        wait_until(lambda: stopped_table(relay), "the stop", relay.tell)
        stop = stopped_table(relay)
        assert stop is not None
        wait_until(
            lambda: relay.get("/bufferInfo/inbound/shop/0").json()["minScn"] > stop["afterScn"],
            "the stop to be out of the ring",
            relay.tell,
        )
        with consuming([relay.url], [people], consumer, start=f"scn:{begin}"):
            wait_until(lambda: len(names_of(consumer)) >= ROWS - 1, "the rest", relay.tell)
        assert names_of(consumer) == list(range(1, ROWS))
        assert not consumer.errors + consumer.rollbacks
        with consuming([relay.url], [orders, people], both, start=f"scn:{begin}"):
            wait_until(lambda: len(both.events) >= 18, "up to the stop", relay.tell)
        assert len(both.events) == 18
        answer = relay.stream(Checkpoint.at(stop["afterScn"]), sources=orders)
        assert (answer.status, answer.headers["x-databus-stopped"]) == (503, orders)
