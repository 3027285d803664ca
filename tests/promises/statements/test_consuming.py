"""Statements of a session without row format, as each way of consuming has them, from MariaDB."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from databus.client import DatabusClient
from databus.client.consumer import Consumer, DataEvent, DdlEvent, StatementEvent
from tests import PATIENCE_S
from tests.mariadb_server import Database
from tests.promises.running import RunningRelay, consuming, wait_until
from tests.promises.statements.unlogged import (
    LONG_BYTES,
    MIXED,
    ROW,
    STATEMENT,
    delivering_relay,
    session,
)
from tools.repository import ROOT

pytest_plugins = ["tests.mariadb"]
pytestmark = pytest.mark.mariadb

LAST = 99  # the row that ends a test


def shown(database: str, change: DataEvent | DdlEvent | StatementEvent) -> str:
    """Return a row as `table:key`, and a statement as `table=its text`."""
    if isinstance(change, DataEvent):
        return f"{change.source.split('.')[1]}:{change.row.get('id', change.row.get('name'))}"
    assert change.database == database
    tables = ",".join(source.split(".")[1] for source in change.sources)
    return f"{tables}={change.statement}"


class Noting(Consumer):
    """Notes rows, statements and new versions in their order."""

    def __init__(self, database: str) -> None:
        self.told: list[str] = []
        self.errors: list[BaseException] = []
        self.owned: set[int] = set()  # partitions of a group
        self._database = database

    def on_add_partition(self, partition: int, scn: int) -> None:
        self.owned.add(partition)

    def on_drop_partition(self, partition: int) -> None:
        self.owned.discard(partition)

    def on_data_event(self, event: DataEvent) -> None:
        self.told.append(shown(self._database, event))

    def on_statement(self, event: StatementEvent) -> None:
        self.told.append(shown(self._database, event))

    def on_schema_change(self, source: str, before: str, after: str, needs_reload: bool) -> None:
        assert needs_reload
        self.told.append(f"read {source.split('.')[1]} again")

    def on_error(self, error: BaseException) -> None:
        self.errors.append(error)


@pytest.fixture
def relay(database: Database, tmp_path: Path) -> Iterator[RunningRelay]:
    with delivering_relay(database, tmp_path, ring_bytes=16 << 20) as relay:
        yield relay


def write(shop: Database) -> list[list[str]]:
    """Write rows and statements; return the changes of each window, as `shown`."""
    with session(shop.server, shop.name) as writer:
        writer.run(
            "INSERT INTO orders VALUES (1, 'a', 1)",
            MIXED,
            "BEGIN",
            "INSERT INTO orders VALUES (2, UUID(), 1)",
            "UPDATE orders SET note = 'b' WHERE id = 1",
            "INSERT INTO people VALUES (LEFT(UUID(), 1), 'AT', NULL)",
            "COMMIT",
            STATEMENT,
            "DELETE FROM orders",
            ROW,
            f"INSERT INTO orders VALUES ({LAST}, 'z', 1)",
        )
        ((person,),) = writer.run("SELECT name FROM people")
    return [
        ["orders:1"],
        ["orders:2", "orders=UPDATE orders SET note = 'b' WHERE id = 1", f"people:{person}"],
        ["orders=DELETE FROM orders"],
        [f"orders:{LAST}"],
    ]


def client_of(relay: RunningRelay, **options: Any) -> DatabusClient:
    return DatabusClient([relay.url], start="earliest", wait_ms=500, **options)


def test_callbacks_tell_of_statements_at_their_places_and_that_the_rows_are_unknown(
    database: Database, relay: RunningRelay
) -> None:
    noting, plain = Noting(database.name), Plain()
    expected = write(database)
    sources = relay.all_sources().split(",")
    with (
        consuming([relay.url], sources, noting, start="earliest"),
        consuming([relay.url], sources, plain, start="earliest"),
    ):
        last = f"orders:{LAST}"
        wait_until(lambda: last in noting.told and last in plain.told, last)
    told = [one for one in noting.told if not one.startswith("read ")]
    assert told == [change for window in expected for change in window]
    # Before what it is about: the rows that a consumer keeps are not right any more from there on.
    at = noting.told.index("orders=DELETE FROM orders")
    assert noting.told[at - 1] == "read orders again"
    assert not noting.errors
    # A consumer that asks for no statements gets the rows, and nothing else.
    assert plain.told == [one for one in told if "=" not in one]


class Plain(Consumer):
    """Wants rows only."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def on_data_event(self, event: DataEvent) -> None:
        self.told.append(shown("", event))


def test_windows_have_them_and_a_window_of_nothing_else_comes_too(
    database: Database, relay: RunningRelay
) -> None:
    expected = write(database)
    sources = relay.all_sources().split(",")
    found = []
    with client_of(relay) as client:
        for window in client.windows(*sources):
            found.append([shown(database.name, change) for change in window.changes])
            if found[-1] == expected[2]:
                assert window.events == ()
                assert isinstance(window.statements[0], StatementEvent)
                # Rows of two tables were asked for: the table of which one?
                with pytest.raises(ValueError, match=r"has none, of .*: name the table's source"):
                    window.to_arrow()
                assert window.to_arrow(f"{database.name}.orders").num_rows == 0
            if found[-1] == expected[-1]:
                break
    assert found == expected


def test_a_window_of_a_statement_alone_is_an_empty_table_of_the_one_source(
    database: Database, relay: RunningRelay
) -> None:
    write(database)
    rows = []
    with client_of(relay) as client:
        for window in client.windows(f"{database.name}.orders"):
            table = window.to_arrow()
            assert table.column_names == ["id", "note", "price", "_databus"]
            rows.append(table["id"].to_pylist())
            if rows[-1] == [LAST]:
                break
    assert rows == [[1], [2], [], [LAST]]


def test_batches_have_the_statements_among_the_rows_of_several_windows(
    database: Database, relay: RunningRelay
) -> None:
    expected = [change for window in write(database) for change in window]
    sources = relay.all_sources().split(",")
    found: list[str] = []
    rows = 0
    with client_of(relay) as client:
        for batch in client.batches(*sources, rows=1000):
            found += [shown(database.name, change) for change in batch.changes]
            rows += batch.to_arrow(f"{database.name}.orders").num_rows
            if found[-1] == expected[-1]:
                break
    assert found == expected
    assert rows == 3


def test_a_task_gets_them_too(database: Database, relay: RunningRelay) -> None:
    expected = write(database)
    sources = relay.all_sources().split(",")

    async def read() -> list[list[str]]:
        found: list[list[str]] = []
        with client_of(relay) as client:
            async for window in client.windows_async(*sources):
                found.append([shown(database.name, change) for change in window.changes])
                if found[-1] == expected[-1]:
                    break
        return found

    assert asyncio.run(read()) == expected


def test_the_command_prints_them(database: Database, relay: RunningRelay) -> None:
    expected = [change for window in write(database) for change in window]
    orders = [one for one in expected if one.startswith("orders")]
    command = [sys.executable, "-m", "databus.cli.main", "tail", f"{database.name}.orders"]
    options = ["--relay", relay.url, "--from", "earliest", "--count", str(len(orders))]
    printed = [
        subprocess.run(
            [*command, *options, *more],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE_S,
        ).stdout.splitlines()
        for more in ((), ("--json",))
    ]
    assert "rows unknown" in printed[0][-2]
    assert "DELETE FROM orders" in printed[0][-2]
    told = json.loads(printed[1][-2])
    assert (told["op"], told["statement"]) == ("statement", "DELETE FROM orders")


@pytest.mark.parametrize("processes", [2, 3])
def test_each_process_of_a_group_gets_each_statement_once(
    database: Database, relay: RunningRelay, tmp_path: Path, processes: int
) -> None:
    noting = [Noting(database.name) for _ in range(processes)]
    sources = relay.all_sources().split(",")
    clients: list[DatabusClient] = []
    with ExitStack() as stack:
        for one in noting:
            client = client_of(
                relay, group="billing", partitions=6, checkpoint_dir=tmp_path / "group"
            )
            client.register(one, sources)
            clients.append(stack.enter_context(client))
        share = 6 // processes
        # Told of them, and reading: a partition that moves while rows are written has its
        # statements twice, and its rows later.
        wait_until(lambda: all(len(one.owned) == share for one in noting), "the shares")
        expected = write(database)
        last = f"orders:{LAST}"
        delete = "orders=DELETE FROM orders"
        wait_until(lambda: any(last in one.told for one in noting), last)
        wait_until(lambda: all(delete in one.told for one in noting), "the statement")
    wanted = [change for window in expected for change in window]
    for one in noting:
        statements = [told for told in one.told if "=" in told]
        assert statements == [change for change in wanted if "=" in change]
    rows = [told for one in noting for told in one.told if ":" in told]
    assert sorted(rows) == sorted(change for change in wanted if ":" in change)


def test_every_kind_of_statement_comes_with_its_whole_text(
    database: Database, relay: RunningRelay, tmp_path: Path
) -> None:
    shop = database
    shop.run(f"CREATE TABLE {shop.name}.other (id INT PRIMARY KEY AUTO_INCREMENT, v TEXT)")
    lines = tmp_path / "lines.csv"
    lines.write_text("501,a,1\n", "utf-8")
    long = f"INSERT INTO orders VALUES (30, 'long', 1) /* {'ü' * (LONG_BYTES // 2)} */"
    kinds = [
        "INSERT INTO orders VALUES (1, 'n', 1)",
        "INSERT INTO orders SELECT id + 1, note, price FROM orders",
        "REPLACE INTO orders VALUES (3, 'r', 1)",
        "INSERT INTO orders VALUES (4, @note, 1)",
        "INSERT INTO orders VALUES (5, RAND(), 1)",
        "UPDATE orders SET note = 'x'",
        "DELETE FROM orders WHERE id = 2",
        long,
    ]
    with session(shop.server, shop.name, local_infile=True) as writer:
        writer.run(STATEMENT, "SET @note = 'of the session'")
        # Not captured, although it has the name of a captured table as a value.
        writer.run("INSERT INTO other (v) VALUES ('orders')")
        writer.run(*kinds)
        writer.run(f"LOAD DATA LOCAL INFILE '{lines}' INTO TABLE orders FIELDS TERMINATED BY ','")
    with session(shop.server, "mysql", charset="latin1") as writer:
        writer.run(STATEMENT, f"INSERT INTO {shop.name}.orders VALUES (20, 'café', 1)")
        # Bytes that are no text in the session's character set.
        writer.run("SET NAMES binary")
        writer.run(f"INSERT INTO {shop.name}.orders VALUES (21, _latin1 'café', 1)")
    shop.run(f"INSERT INTO orders VALUES ({LAST}, 'z', 1)")
    found: list[StatementEvent] = []
    with client_of(relay) as client:
        for window in client.windows(f"{shop.name}.orders"):
            found += [told for told in window.statements if isinstance(told, StatementEvent)]
            if window.events:
                break
    texts = [told.statement for told in found]
    assert texts[: len(kinds)] == kinds
    loaded, latin, raw = texts[len(kinds) :]
    assert loaded.startswith("LOAD DATA LOCAL INFILE '")
    assert "INTO TABLE `orders`" in loaded
    assert latin == f"INSERT INTO {shop.name}.orders VALUES (20, 'café', 1)"
    assert raw == f"INSERT INTO {shop.name}.orders VALUES (21, _latin1 'caf\ufffd', 1)"
    assert [told.database for told in found[-3:]] == [shop.name, "mysql", "mysql"]
    assert {told.sources for told in found} == {(f"{shop.name}.orders",)}
