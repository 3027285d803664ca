"""A table that has stopped alone, and consumers that only the server's log can serve."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from databus.cli.main import main
from databus.schemas.checkpoint import Checkpoint
from tests.mariadb_server import Database
from tests.promises.history.databases import own_database
from tests.promises.hostile.test_stopped_table import scn_to_repair, stopped_table
from tests.promises.running import (
    Remembering,
    RunningRelay,
    consuming,
    mysql_source,
    running,
    sources_of,
    wait_until,
)

pytest_plugins = ["tests.mysql"]

ROWS = 2000


@pytest.fixture(params=["mariadb", pytest.param("mysql", marks=pytest.mark.mysql)])
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    """A database whose log does not name columns: only their definitions tell what rows mean."""
    options = {"binlog-row-metadata": "MINIMAL"}
    with own_database(request, options, is_mysql=request.param == "mysql") as database:
        yield database


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


class Load:
    """Writes a row to each table in one transaction, one after the other, on a thread."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self.rows = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            with self._lock:
                write(self._database, range(self.rows, self.rows + 1))
            self.rows += 1
            self._stopping.wait(0.002)

    def alter(self) -> None:
        with self._lock:
            alter_unlogged(self._database)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()


def order_ids(consumer: Remembering) -> list[int]:
    return [event.row["id"] for event in consumer.events if "id" in event.row]


def repair(relay: RunningRelay, name: str, scn: int) -> None:
    command = ["source", "repair", "shop", name, "--scn", str(scn), "--relay", relay.url]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    assert f"{name} is captured again" in done.output
    assert stopped_table(relay) is None


def test_a_table_is_repaired_under_load_without_a_restart_and_nobody_sees_a_hole(
    database: Database, tmp_path: Path
) -> None:
    orders, people = sources_of(database)
    third, both, others, late = Remembering(), Remembering(), Remembering(), Remembering()
    wanted = {"third": (third, [orders]), "both": (both, [people, orders])}
    wanted["others"] = (others, [people])
    with ExitStack() as stack:
        relay = RunningRelay(tmp_path, mysql_source(database, tmp_path))
        stack.enter_context(running(relay))
        relay.start()
        for name, (consumer, sources) in wanted.items():
            options: dict[str, Any] = {"start": "earliest", "name": name}
            stack.enter_context(consuming([relay.url], sources, consumer, **options))
        load = Load(database)
        try:
            wait_until(lambda: len(order_ids(third)) > 50, "the first rows", relay.tell)
            begin = third.scns[0]
            load.alter()
            wait_until(lambda: stopped_table(relay), "the stop", relay.tell)
            stop = stopped_table(relay)
            assert stop is not None
            count = len(names_of(others))
            wait_until(lambda: len(names_of(others)) > count + 300, "others", relay.tell)
            assert max(third.scns[-1], both.scns[-1]) <= stop["afterScn"]
            repair(relay, orders, scn_to_repair(stop["problem"]))
            relay.child.kill()
            relay.start()
            count = load.rows
            for consumer in (third, both):
                wait_until(lambda c=consumer: order_ids(c)[-1] > count + 100, "it", relay.tell)  # type: ignore[misc]
        finally:
            load.stop()
        last = load.rows - 1
        more = {"start": f"scn:{begin}", "name": "late"}
        stack.enter_context(consuming([relay.url], [orders], late, **more))
        for consumer in (third, both, late):
            wait_until(lambda c=consumer: order_ids(c)[-1:] == [last], "the rest", relay.tell)  # type: ignore[misc]
        wait_until(lambda: names_of(others)[-1] == last, "the others", relay.tell)
        everything = list(range(load.rows))
        assert order_ids(third) == order_ids(both) == everything
        assert names_of(both) == names_of(others) == everything
        assert order_ids(late) == everything[1:]
        assert third.events[-1].row["extra"] == 7
        for consumer in (third, both, others, late):
            assert consumer.errors == []


def test_a_table_that_gets_a_cascade_stops_alone_also_after_a_restart(
    database: Database, tmp_path: Path
) -> None:
    relay = RunningRelay(tmp_path, mysql_source(database, tmp_path))
    consumer, people = Remembering(), f"{database.name}.people"
    with running(relay):
        relay.start()
        write(database, range(5))
        wait_until(lambda: len(relay.windows()) >= 5, "the first rows", relay.tell)
        database.run(
            "CREATE TABLE parents (id INT PRIMARY KEY)",
            "INSERT INTO parents SELECT id FROM orders",
            "ALTER TABLE orders ADD CONSTRAINT of_parent FOREIGN KEY (id) REFERENCES parents (id)"
            " ON DELETE CASCADE",
            "INSERT INTO parents VALUES (5), (6), (7)",
        )
        write(database, range(5, 8))
        wait_until(lambda: stopped_table(relay) is not None, "the table stopped", relay.tell)
        relay.child.kill()
        relay.serve()
        with consuming([relay.url], [people], consumer, start="earliest"):
            wait_until(lambda: len(consumer.events) >= 8, "the other table", relay.tell)
        stopped = stopped_table(relay)
        assert stopped is not None
        assert "ON DELETE CASCADE" in stopped["problem"]
    assert sorted(names_of(consumer)) == list(range(8))
