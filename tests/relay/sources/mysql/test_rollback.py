"""What a real server logs of savepoints and tables without transactions, against its tables."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pymysql
import pytest

from databus.relay.sources.source import RowChange
from databus.schemas.event.metadata import Op
from tests.mariadb_server import Database
from tests.relay.sources.mysql.reading import opened, read_full, watching

pytest_plugins = ["tests.mariadb"]
pytestmark = [pytest.mark.mariadb, pytest.mark.usefixtures("both_ways")]

TABLES = ("i", "m", "r")


@pytest.fixture
def mixed(database: Database) -> Database:
    """Tables in InnoDB, MyISAM and Aria, and one that says when a test's writing ended."""
    database.run(
        "CREATE TABLE i (id INT PRIMARY KEY)",
        "CREATE TABLE m (id INT PRIMARY KEY) ENGINE=MyISAM",
        "CREATE TABLE r (id INT PRIMARY KEY) ENGINE=Aria TRANSACTIONAL=0",
        "CREATE TABLE ended (id INT PRIMARY KEY)",
    )
    return database


def replayed(database: Database, folder: Path, *statements: str) -> list[list[str]]:
    """Run statements; return the windows, after the tables made of them were compared."""
    with opened(watching(database, folder, *TABLES, "ended")) as source:
        for statement in statements:
            # A duplicate key; a savepoint that is not there.
            with contextlib.suppress(pymysql.err.IntegrityError, pymysql.err.OperationalError):
                database.run(statement)
        database.run("ROLLBACK", "INSERT INTO ended VALUES (1)")
        windows: list[list[RowChange]] = []
        while not windows or not windows[-1][0].table.source.endswith(".ended"):
            windows += [list(t.changes) for t in read_full(source, 1)]
    database.run("DELETE FROM ended")
    tables: dict[str, set[object]] = {name: set() for name in TABLES}
    for change in (change for window in windows[:-1] for change in window):
        rows = tables[change.table.source.split(".")[1]]
        assert (change.row["id"] in rows) == (change.op is Op.DELETE), change
        (rows.discard if change.op is Op.DELETE else rows.add)(change.row["id"])
    for name, rows in tables.items():
        assert {row[0] for row in database.run(f"SELECT id FROM {name}")} == rows, name
    return [[f"{c.table.source.split('.')[1]}{c.row['id']}" for c in w] for w in windows[:-1]]


def test_rows_after_a_savepoint_are_taken_back_when_the_log_still_has_them(
    mixed: Database, tmp_path: Path
) -> None:
    windows = replayed(
        mixed, tmp_path, "BEGIN", "INSERT INTO i VALUES (1)", "SAVEPOINT s",
        "INSERT INTO m VALUES (10)", "INSERT INTO i VALUES (2)", "ROLLBACK TO s",
        "INSERT INTO i VALUES (3)", "COMMIT",
    )  # fmt: skip
    # MyISAM's row is a group of its own, before the transaction that it was written in.
    assert windows == [["m10"], ["i1", "i3"]]


def test_a_rollback_leaves_what_has_no_transactions(mixed: Database, tmp_path: Path) -> None:
    windows = replayed(
        mixed, tmp_path, "BEGIN", "INSERT INTO i VALUES (1)", "INSERT INTO m VALUES (10)",
        "INSERT INTO r VALUES (20)", "ROLLBACK",
    )  # fmt: skip
    assert windows == [["m10"], ["r20"]]


def test_a_group_that_ends_with_a_rollback_is_empty(mixed: Database, tmp_path: Path) -> None:
    windows = replayed(
        mixed, tmp_path, "BEGIN", "INSERT INTO i VALUES (1)", "CREATE TEMPORARY TABLE z (id INT)",
        "INSERT INTO i VALUES (2)", "ROLLBACK", "INSERT INTO i VALUES (3)",
    )  # fmt: skip
    assert windows == [["i3"]]


def test_a_statement_that_fails_half_way_delivers_the_rows_that_stayed(
    mixed: Database, tmp_path: Path
) -> None:
    windows = replayed(mixed, tmp_path, "INSERT INTO m VALUES (1), (2), (1), (3)")
    assert windows == [["m1", "m2"]]


def test_rows_of_a_trigger_into_myisam_outlive_the_transaction(
    mixed: Database, tmp_path: Path
) -> None:
    mixed.run("CREATE TRIGGER g AFTER INSERT ON i FOR EACH ROW INSERT INTO m VALUES (NEW.id + 100)")
    windows = replayed(
        mixed, tmp_path, "BEGIN", "INSERT INTO i VALUES (1)", "SAVEPOINT `S``1`",
        "INSERT INTO i VALUES (2)", "ROLLBACK TO `s``1`", "INSERT INTO i VALUES (3)", "COMMIT",
    )  # fmt: skip
    assert windows == [["m101"], ["m102"], ["m103"], ["i1", "i3"]]


@pytest.mark.parametrize("seed", range(8))
def test_the_tables_made_of_the_windows_are_the_servers(
    mixed: Database, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    statements = []
    for number in range(60):
        name = chance.choice(TABLES)
        statements.append(
            chance.choices(
                [
                    "BEGIN",
                    "COMMIT",
                    "ROLLBACK",
                    f"SAVEPOINT s{chance.randrange(3)}",
                    f"ROLLBACK TO s{chance.randrange(3)}",
                    f"INSERT INTO {name} VALUES ({number})",
                    f"DELETE FROM {name} WHERE id % 3 = {number % 3}",
                    f"INSERT INTO i SELECT id + 1000 FROM m WHERE id = {number - 1}",
                    f"CREATE TEMPORARY TABLE t{number} (id INT)",
                ],
                [2, 1, 1, 4, 4, 12, 2, 2, 1],
            )[0]
        )
    replayed(mixed, tmp_path, *statements)
