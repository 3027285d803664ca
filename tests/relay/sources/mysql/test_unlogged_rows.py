"""Statements of sessions without row format, delivered at their places."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from databus.demo.private_mariadb import PrivateMariaDB
from databus.relay.sources.source import Change, RowChange, TableDefined, TableEmptied, Transaction
from databus.schemas.errors import SourceStoppedError
from databus.schemas.table_change import UNLOGGED_ROWS, WHOLE_TABLE
from tests.mariadb_server import Database, fresh_database
from tests.relay.sources.mysql.reading import opened, read_full, read_until, watching

pytest_plugins = ["tests.mariadb", "tests.mysql"]
pytestmark = pytest.mark.usefixtures("both_ways")

SERVERS = [
    pytest.param("mariadb", marks=pytest.mark.mariadb),
    pytest.param("mysql_server", marks=pytest.mark.mysql),
]
STATEMENT = "SET SESSION binlog_format = STATEMENT"
MIXED = "SET SESSION binlog_format = MIXED"
ROW = "SET SESSION binlog_format = ROW"


def shown(database: Database, change: Change) -> str:
    """Return a row as `table:id`, and a statement as `table=its text`."""
    if isinstance(change, RowChange):
        return f"{change.table.source.split('.')[1]}:{change.row['id']}"
    assert isinstance(change, TableDefined)
    assert change.is_dml
    assert change.database == database.name
    tables = ",".join(source.split(".")[1] for source in change.sources)
    return f"{tables}={change.statement}"


def captured(database: Database, folder: Path, *statements: str, until: int) -> list[Transaction]:
    """Capture `a` and `b` with `on_statement = "deliver"` until row `until` of `b` has come."""

    def is_enough(found: list[Transaction]) -> bool:
        last = found[-1].changes[-1:] if found else ()
        return any(
            isinstance(one, RowChange) and shown(database, one) == f"b:{until}" for one in last
        )

    with opened(watching(database, folder, "a", "b", on_statement="deliver")) as source:
        database.run(*statements)
        return [one for one in read_until(source, is_enough) if one.changes]


def read(database: Database, folder: Path, *statements: str, until: int) -> list[list[str]]:
    """Return the changes of each captured transaction as `shown`."""
    found = captured(database, folder, *statements, until=until)
    return [[shown(database, change) for change in one.changes] for one in found]


@pytest.fixture(scope="session", params=SERVERS)
def either(request: pytest.FixtureRequest) -> PrivateMariaDB:
    """A running MariaDB, and a MySQL."""
    server: PrivateMariaDB = request.getfixturevalue(request.param)
    return server


@pytest.fixture
def shop(either: PrivateMariaDB) -> Iterator[Database]:
    """Two captured tables and one that is not."""
    with fresh_database(either) as database:
        database.run(
            *(f"CREATE TABLE {name} (id INT PRIMARY KEY, v INT)" for name in ("a", "b", "other"))
        )
        yield database


def test_a_statement_comes_at_its_place_among_the_rows_of_its_transaction(
    shop: Database, tmp_path: Path
) -> None:
    found = read(
        shop,
        tmp_path,
        "INSERT INTO a VALUES (1, 1)",
        # What is not the same on a replica, such as UUID(), is logged as rows all the same.
        MIXED,
        "BEGIN",
        "INSERT INTO a VALUES (2, LENGTH(UUID()))",
        "UPDATE a SET v = 5 WHERE id = 1",
        "INSERT INTO b VALUES (3, LENGTH(UUID()))",
        "COMMIT",
        STATEMENT,
        "DELETE FROM a /* all of them */",
        ROW,
        "INSERT INTO b VALUES (9, 9)",
        until=9,
    )
    assert [[change.split("=")[0] for change in one] for one in found] == [
        ["a:1"],
        ["a:2", "a", "b:3"],
        ["a"],
        ["b:9"],
    ]
    assert found[1][1] == "a=UPDATE a SET v = 5 WHERE id = 1"
    assert found[2] == ["a=DELETE FROM a /* all of them */"]


def test_a_statement_says_that_only_the_database_knows_the_rows_of_its_tables(
    shop: Database, tmp_path: Path
) -> None:
    statement = "UPDATE a JOIN b SET a.v = 1, b.v = 1"
    lines = ("INSERT INTO a VALUES (1, 1)", STATEMENT, statement, ROW)
    found = captured(shop, tmp_path, *lines, "INSERT INTO b VALUES (9, 9)", until=9)
    (told,) = [c for one in found for c in one.changes if isinstance(c, TableDefined)]
    assert sorted(told.sources) == [f"{shop.name}.a", f"{shop.name}.b"]
    assert told.statement == statement
    for altered in told.altered:
        assert altered.table == altered.before
        assert altered.change.reload == {WHOLE_TABLE: UNLOGGED_ROWS}


def test_what_is_rolled_back_and_what_is_of_other_tables_is_not_delivered(
    shop: Database, tmp_path: Path
) -> None:
    found = read(
        shop,
        tmp_path,
        STATEMENT,
        "INSERT INTO other VALUES (1, 1)",
        "BEGIN",
        "INSERT INTO a VALUES (1, 1)",
        "ROLLBACK",
        "BEGIN",
        "INSERT INTO a VALUES (2, 2)",
        "SAVEPOINT s",
        "INSERT INTO a VALUES (3, 3)",
        "ROLLBACK TO s",
        "COMMIT",
        ROW,
        "INSERT INTO b VALUES (9, 9)",
        until=9,
    )
    assert found == [["a=INSERT INTO a VALUES (2, 2)"], ["b:9"]]


def test_xa_and_tables_without_transactions_deliver_their_statements_too(
    shop: Database, tmp_path: Path
) -> None:
    shop.run("ALTER TABLE b ENGINE = MyISAM")
    found = read(
        shop,
        tmp_path,
        STATEMENT,
        "XA START 'x'",
        "INSERT INTO a VALUES (1, 1)",
        "XA END 'x'",
        "XA PREPARE 'x'",
        "XA COMMIT 'x'",
        "INSERT INTO b VALUES (1, 1)",
        ROW,
        "INSERT INTO b VALUES (9, 9)",
        until=9,
    )
    assert found == [["a=INSERT INTO a VALUES (1, 1)"], ["b=INSERT INTO b VALUES (1, 1)"], ["b:9"]]


def test_a_temporary_table_that_is_emptied_is_not_the_captured_one_of_its_name(
    shop: Database, tmp_path: Path
) -> None:
    found = captured(
        shop,
        tmp_path,
        "INSERT INTO a VALUES (1, 1)",
        STATEMENT,
        "CREATE TEMPORARY TABLE a (x INT)",
        "TRUNCATE TABLE a",
        "DROP TEMPORARY TABLE a",
        "TRUNCATE TABLE b",
        ROW,
        "INSERT INTO b VALUES (9, 9)",
        until=9,
    )
    emptied = [c.table.source for t in found for c in t.changes if isinstance(c, TableEmptied)]
    assert emptied == [f"{shop.name}.b"]


def make_function(shop: Database) -> None:
    """Make a function that writes to `a`."""
    shop.run(
        "CREATE FUNCTION put(x INT) RETURNS INT DETERMINISTIC MODIFIES SQL DATA "
        "BEGIN INSERT INTO a VALUES (x, x); RETURN x; END"
    )


def test_a_function_that_was_called_may_have_changed_each_table(
    shop: Database, tmp_path: Path
) -> None:
    make_function(shop)
    called = ("SELECT put(1)", "SET @x = put(2)", ROW, "SELECT put(3)")
    found = read(shop, tmp_path, STATEMENT, *called, "INSERT INTO b VALUES (9, 9)", until=9)
    text = f"SELECT `{shop.name}`.`put`"
    assert found == [[f"a,b={text}(1)"], [f"a,b={text}(2)"], ["a:3"], ["b:9"]]


def test_a_function_that_was_called_stops_capture(shop: Database, tmp_path: Path) -> None:
    make_function(shop)
    with opened(watching(shop, tmp_path, "a", "b")) as source:
        shop.run(STATEMENT, "SELECT put(1)", ROW)
        with pytest.raises(SourceStoppedError, match=r"does not name, may have changed the rows"):
            read_full(source, 1)


def test_capture_goes_on_at_a_statement_that_had_stopped_it(shop: Database, tmp_path: Path) -> None:
    settings = watching(shop, tmp_path, "a", "b")
    with opened(settings) as source:
        shop.run("INSERT INTO a VALUES (1, 1)", STATEMENT, "DELETE FROM a", ROW)
        shop.run("INSERT INTO b VALUES (9, 9)")
        (before,) = read_full(source, 1)
        with pytest.raises(SourceStoppedError, match="DELETE in statement format"):
            read_full(source, 2)
    again = settings.model_copy(update={"on_statement": "deliver"})
    with opened(again, before.scn) as source:
        found = read_until(source, lambda found: any(t.changes for t in found))
    (told,) = next(one.changes for one in found if one.changes)
    assert isinstance(told, TableDefined)
    assert told.statement == "DELETE FROM a"
