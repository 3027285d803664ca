"""Random DDL: definitions made from statements against the server's own, and rows of every age.

DATABUS_DDL_STEPS makes the walks longer than the 60 steps of every day.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pymysql.err import MySQLError

from databus.demo.private_mariadb import PrivateMariaDB
from databus.relay.sources.mysql.binlog.events import Query
from databus.relay.sources.mysql.server.catalog import ServerCatalog
from databus.relay.sources.mysql.server.connection import address_of
from databus.relay.sources.mysql.server.initial_history import first_record, rules_of
from databus.relay.sources.mysql.tables.captured_tables import WatchedTables
from databus.relay.sources.mysql.tables.history import History
from databus.relay.sources.mysql.tables.names import Names
from databus.relay.sources.source import RowChange, Transaction
from tests.mariadb_server import Database, connect
from tests.relay.sources.mysql.reading import read_changes, row_changes_of, watching
from tests.relay.sources.mysql.tables.ddl_steps import Steps
from tests.relay.sources.read_back import ReadSource

pytest_plugins = ["tests.mariadb", "tests.mysql"]

STEPS = int(os.environ.get("DATABUS_DDL_STEPS", "60"))
_LOG = "SELECT argument FROM mysql.general_log WHERE argument LIKE '%information_schema%'"


def columns_now(database: Database, table: str = "t") -> list[tuple[str, str]]:
    """Return a table's columns and their types, as the server has them."""
    rows = database.run(
        "SELECT COLUMN_NAME, COLUMN_TYPE FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = "
        f"'{database.name}' AND TABLE_NAME = '{table}' ORDER BY ORDINAL_POSITION"
    )
    return [(str(name), str(kind).replace(" /*M!100301 COMPRESSED*/", "")) for name, kind in rows]


def follow_statements(database: Database, folder: Path, steps: Steps, *, is_mariadb: bool) -> None:
    """Apply statements to a history and to the server, and compare after each."""
    settings = watching(database, folder, "t")
    catalog = ServerCatalog(address_of(settings), settings, 0)
    names = catalog.names = Names([f"{database.name}.t"])
    database.run("SET sql_mode = ''", steps.create("t"))
    with catalog.session():
        dialect = catalog.dialect(is_mariadb=is_mariadb, zero_dates_are_null=True)
        history = History()
        history.begin(first_record(catalog, names, lambda _begin, _end: {}))
        rules = rules_of(catalog.variables(), dialect)
        tables = WatchedTables(names, rules, history, lambda _begin, _end: {})
        scn = history.begin_scn or 0
        for _ in range(STEPS):
            text = steps.alter("t", [name for name, _ in columns_now(database)])
            try:
                database.run(text)
            except MySQLError:
                continue  # nor is it in the log
            scn += 1
            tables.apply(Query(database.name, text, 0, "latin1", True), scn)
            version = history.table((database.name, "t"), scn)
            assert version is not None, text
            assert version.definition == catalog.definition(f"{database.name}.t"), text


@pytest.mark.mariadb
@pytest.mark.parametrize("seed", range(3))
def test_definitions_are_those_of_mariadb_after_every_statement(
    database: Database, tmp_path: Path, seed: int
) -> None:
    follow_statements(database, tmp_path, Steps(seed, is_mariadb=True), is_mariadb=True)


@pytest.mark.mysql
@pytest.mark.parametrize("seed", range(3))
def test_definitions_are_those_of_mysql_after_every_statement(
    mysql_database: Database, tmp_path: Path, seed: int
) -> None:
    follow_statements(mysql_database, tmp_path, Steps(seed, is_mariadb=False), is_mariadb=False)


@dataclass
class Walk:
    """A table that is altered again and again, with a row after each step."""

    database: Database
    steps: Steps
    expected: dict[int, list[tuple[str, str]]] = field(default_factory=dict)  # by id of the row
    number: int = 0

    def run(self, count: int) -> None:
        """Take so many steps."""
        self.database.run("SET sql_mode = ''")
        for at in range(count):
            with contextlib.suppress(MySQLError):
                self.step(at)  # too many columns, or no place for a value: nothing happened
            with contextlib.suppress(MySQLError):
                self.insert()  # a column may refuse what it has as a default

    def step(self, at: int) -> None:
        """Alter the table, make it anew, or change it as gh-ost and pt-osc do."""
        columns = [name for name, _ in columns_now(self.database)]
        if at % 10 == 9:
            self.database.run("DROP TABLE t", self.steps.create("t"))
        elif at % 10 == 6:
            self.change_online("_t_gho", "_t_del", columns)
        elif at % 10 == 3:
            self.change_online("_t_new", "_t_old", columns)
        else:
            self.database.run(self.steps.alter("t", columns))

    def change_online(self, copy: str, old: str, columns: list[str]) -> None:
        """Alter a copy of the table and put it in its place."""
        run = self.database.run
        run(f"DROP TABLE IF EXISTS {copy}", f"CREATE TABLE {copy} LIKE t")
        run(self.steps.alter(copy, columns), f"INSERT IGNORE INTO {copy} (id) SELECT id FROM t")
        run(f"RENAME TABLE t TO {old}, {copy} TO t", f"DROP TABLE {old}")

    def insert(self) -> None:
        """Write a row, and keep what its table is now."""
        number = self.number + 1
        self.database.run(f"INSERT INTO t (id) VALUES ({number})")
        self.number = number
        self.expected[number] = columns_now(self.database)


@pytest.fixture(params=["NO_LOG", "FULL"])
def walking(mariadb: PrivateMariaDB, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A server with or without column metadata in its log; it is put back."""
    with closing(connect(mariadb)) as connection, connection.cursor() as cursor:
        cursor.execute(
            f"SET GLOBAL binlog_row_metadata = {request.param}, GLOBAL log_output = 'TABLE'"
        )
        yield cursor
        cursor.execute("SET GLOBAL general_log = OFF, GLOBAL binlog_row_metadata = NO_LOG")


def seen_in(changes: list[RowChange]) -> dict[int, list[tuple[str, str]]]:
    """Return the columns that each inserted row was read with, by the row's id."""
    return {
        change.row["id"]: [(c.name, c.sql_type) for c in change.table.columns] for change in changes
    }


@pytest.mark.mariadb
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("both_ways")
def test_rows_have_the_names_and_types_of_their_moment_when_the_relay_was_stopped_all_the_time(
    walking: Any, database: Database, tmp_path: Path
) -> None:
    steps = Steps(7, is_mariadb=True, insertable=True)
    database.run("SET sql_mode = ''", steps.create("t"))
    settings = watching(database, tmp_path, "t", zero_dates="null")
    history = tmp_path / "shop.history"
    with closing(ReadSource(settings, history=history)) as source:
        source.open(None)
        begin = source.read_transactions()[-1].scn
    walk = Walk(database, steps)
    walk.run(STEPS)
    assert walk.number > STEPS * 0.9
    with closing(ReadSource(settings, history=history)) as source:
        source.open(begin)
        walking.execute("TRUNCATE mysql.general_log")
        walking.execute("SET GLOBAL general_log = ON")
        transactions: list[Transaction] = []
        while len(seen_in([c for t in transactions for c in row_changes_of(t)])) < walk.number:
            transactions += source.read_transactions()
        walking.execute("SET GLOBAL general_log = OFF")
        walking.execute(_LOG)
        asked = [row[0] for row in walking.fetchall() if "general_log" not in str(row[0])]
    assert asked == []
    assert seen_in([c for t in transactions for c in row_changes_of(t)]) == walk.expected
    middle = transactions[len(transactions) // 2]
    rest = [c for t in transactions if t.scn > middle.scn for c in row_changes_of(t)]
    with closing(ReadSource(settings, history=history)) as source:
        source.open(middle.scn)
        assert read_changes(source, len(rest)) == rest
