"""Tables that change under a running or lagging source."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pymysql.err import OperationalError

from databus.demo.private_mariadb import PrivateMariaDB
from databus.relay.sources.source import RowChange, TableDefined, TableEmptied
from databus.schemas.errors import SourceStoppedError
from tests.mariadb_server import Database, connect
from tests.relay.sources.mysql.reading import (
    opened,
    read_changes,
    read_until,
    row_changes_of,
    watching,
)

pytest_plugins = ["tests.mariadb"]
pytestmark = pytest.mark.mariadb


@pytest.fixture(params=["NO_LOG", "FULL"])
def metadata(mariadb: PrivateMariaDB, request: pytest.FixtureRequest) -> Iterator[str]:
    """A server that logs column metadata, or does not; the session's server is put back."""
    connection = connect(mariadb)
    try:
        with connection.cursor() as cursor:
            cursor.execute(f"SET GLOBAL binlog_row_metadata = {request.param}")
            yield request.param
            cursor.execute("SET GLOBAL binlog_row_metadata = NO_LOG")
    finally:
        connection.close()


def columns(change: RowChange) -> list[tuple[str, str]]:
    return [(c.name, c.sql_type) for c in change.table.columns]


def test_altered_tables_are_new_ones_from_their_scn_on(
    metadata: str, database: Database, tmp_path: Path
) -> None:
    database.run("CREATE TABLE t (id INT PRIMARY KEY, a INT)")
    with opened(watching(database, tmp_path, "t")) as source:
        rows = []
        for statement in (
            "INSERT INTO t VALUES (1, 1)",
            "ALTER TABLE t ADD COLUMN b VARCHAR(10) AFTER id",
            "INSERT INTO t VALUES (2, 'b', 2)",
            "ALTER TABLE t CHANGE a renamed INT",
            "INSERT INTO t VALUES (3, 'b', 3)",
            "ALTER TABLE t DROP COLUMN b, MODIFY renamed BIGINT UNSIGNED NOT NULL DEFAULT 5",
            "INSERT INTO t VALUES (4, 4)",
            "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (renamed, id)",
            "INSERT INTO t VALUES (5, 5)",
        ):
            database.run(statement)
            if statement.startswith("INSERT"):
                rows += read_changes(source, 1)
        assert [columns(change) for change in rows] == [
            [("id", "int(11)"), ("a", "int(11)")],
            [("id", "int(11)"), ("b", "varchar(10)"), ("a", "int(11)")],
            [("id", "int(11)"), ("b", "varchar(10)"), ("renamed", "int(11)")],
            [("id", "int(11)"), ("renamed", "bigint(20) unsigned")],
            [("id", "int(11)"), ("renamed", "bigint(20) unsigned")],
        ]
        assert [[c.name for c in change.table.key_columns] for change in rows] == [
            ["id"], ["id"], ["id"], ["id"], ["renamed", "id"],
        ]  # fmt: skip
        assert source.tables() == [rows[-1].table]


def test_a_lagging_source_reads_rows_of_every_age_where_the_log_names_columns(
    database: Database, tmp_path: Path
) -> None:
    database.run("SET GLOBAL binlog_row_metadata = FULL")
    try:
        database.run("CREATE TABLE t (id INT PRIMARY KEY, a INT, u UUID)")
        settings = watching(database, tmp_path, "t")
        with opened(settings) as live:
            begin = live.read_transactions()[-1].scn
            database.run(
                "INSERT INTO t VALUES (1, 1, NULL)",
                "ALTER TABLE t CHANGE a x INT UNSIGNED",
                "INSERT INTO t VALUES (2, 2, NULL)",
                "ALTER TABLE t ADD COLUMN e ENUM('ñ', 'it''s') CHARACTER SET latin1 FIRST",
                "INSERT INTO t VALUES ('ñ', 3, 3, NULL)",
                "ALTER TABLE t DROP COLUMN x",
                "INSERT INTO t VALUES ('it''s', 4, NULL)",
            )
            seen = read_changes(live, 4)
        with opened(settings, begin) as late:
            assert read_changes(late, 4) == seen
        assert [dict(change.row) for change in seen] == [
            {"id": 1, "a": 1, "u": None},
            {"id": 2, "x": 2, "u": None},
            {"e": "ñ", "id": 3, "x": 3, "u": None},
            {"e": "it's", "id": 4, "u": None},
        ]
    finally:
        database.run("SET GLOBAL binlog_row_metadata = NO_LOG")


@pytest.mark.parametrize(
    "alter",
    [
        "ALTER TABLE t CHANGE a renamed INT",
        "ALTER TABLE t ADD COLUMN b INT",
        "ALTER TABLE t MODIFY a INT UNSIGNED",
        "ALTER TABLE t DROP PRIMARY KEY",
    ],
)
def test_a_lagging_source_refuses_rows_whose_columns_nobody_knows(
    database: Database, tmp_path: Path, alter: str
) -> None:
    database.run("CREATE TABLE t (id INT PRIMARY KEY, a INT)")
    settings = watching(database, tmp_path, "t")
    with opened(settings) as live:
        begin = live.read_transactions()[-1].scn
    database.run("INSERT INTO t VALUES (1, 1)", alter)
    with (
        opened(settings, begin) as late,
        pytest.raises(SourceStoppedError, match="--create-table FILE"),
    ):
        read_changes(late, 1)


def test_a_lagging_source_reads_on_over_changes_that_leave_columns_alone(
    database: Database, tmp_path: Path
) -> None:
    database.run("CREATE TABLE t (id INT PRIMARY KEY, a INT)")
    settings = watching(database, tmp_path, "t")
    with opened(settings) as live:
        begin = live.read_transactions()[-1].scn
    database.run("INSERT INTO t VALUES (1, 1)", "ALTER TABLE t ADD INDEX (a), ENGINE = InnoDB")
    database.run("CREATE TABLE other (id INT)", "ALTER TABLE other ADD COLUMN b INT")
    database.run("INSERT INTO t VALUES (2, 2)")
    with opened(settings, begin) as late:
        assert [c.row["id"] for c in read_changes(late, 2)] == [1, 2]


def test_rows_after_a_change_that_lies_ahead_are_read(database: Database, tmp_path: Path) -> None:
    database.run("CREATE TABLE t (id INT PRIMARY KEY, a INT)")
    settings = watching(database, tmp_path, "t")
    with opened(settings) as live:
        begin = live.read_transactions()[-1].scn
    database.run("ALTER TABLE t CHANGE a b INT", "INSERT INTO t VALUES (1, 1)")
    with opened(settings, begin) as late:
        assert read_changes(late, 1)[0].row == {"id": 1, "b": 1}


def test_a_table_that_is_dropped_and_made_anew_goes_on_with_its_new_columns(
    database: Database, tmp_path: Path
) -> None:
    database.run("CREATE TABLE t (id INT PRIMARY KEY)")
    with opened(watching(database, tmp_path, "t")) as source:
        source.read_transactions()
        database.run("DROP TABLE t", "CREATE TABLE t (k CHAR(3) PRIMARY KEY, z INT)")
        database.run("INSERT INTO t VALUES ('abc', 7)")
        read = read_until(source, lambda found: any(row_changes_of(t) for t in found))
        found = [change for transaction in read for change in transaction.changes]
    assert [type(change) for change in found] == [
        TableEmptied, TableDefined, TableDefined, RowChange,
    ]  # fmt: skip
    assert [c.name for c in found[0].table.columns] == ["id"]
    assert found[-1].row == {"k": "abc", "z": 7}


def test_an_alter_in_two_phases_counts_when_it_is_committed(
    metadata: str, database: Database, tmp_path: Path
) -> None:
    database.run("CREATE TABLE t (id INT PRIMARY KEY, a INT)")
    with opened(watching(database, tmp_path, "t")) as source:
        begin = source.read_transactions()[-1].scn
        database.run("SET binlog_alter_two_phase = ON", "INSERT INTO t VALUES (1, 1)")
        # The log has what it began with, and that it was rolled back.
        with pytest.raises(OperationalError, match="CONSTRAINT"):
            database.run("ALTER TABLE t ADD COLUMN c INT DEFAULT 0, ADD CHECK (a > 1)")
        database.run("INSERT INTO t VALUES (2, 2)")
        rows = read_changes(source, 2)
        database.run("ALTER TABLE t ADD COLUMN b INT DEFAULT 7", "INSERT INTO t VALUES (3, 3, 3)")
        rows += read_changes(source, 1)
    assert [len(columns(change)) for change in rows] == [2, 2, 3]
    if metadata == "NO_LOG":
        with (
            opened(watching(database, tmp_path, "t"), begin) as late,
            pytest.raises(SourceStoppedError, match="altered later"),
        ):
            read_changes(late, 1)


@pytest.mark.usefixtures("both_ways")
def test_gh_ost_and_pt_online_schema_change_alter_a_table_without_taking_its_rows(
    metadata: str, database: Database, tmp_path: Path
) -> None:
    database.run("CREATE TABLE t (id INT PRIMARY KEY, a INT)", "INSERT INTO t VALUES (1, 1)")
    with opened(watching(database, tmp_path, "t")) as source:
        source.read_transactions()
        database.run(
            "CREATE TABLE `_t_ghc` (id BIGINT AUTO_INCREMENT PRIMARY KEY, hint VARCHAR(64))",
            "CREATE TABLE `_t_gho` LIKE t",
            "ALTER TABLE `_t_gho` CHANGE a b VARCHAR(5), ADD c INT DEFAULT 7",
            "INSERT INTO t VALUES (2, 2)",
            "INSERT IGNORE INTO `_t_gho` (id, b) SELECT id, a FROM t LOCK IN SHARE MODE",
            "REPLACE INTO `_t_gho` (id, b) VALUES (2, 2)",
            "CREATE TABLE `_t_del` (id INT AUTO_INCREMENT PRIMARY KEY) COMMENT='sentry'",
            "DROP TABLE IF EXISTS `_t_del`",
            "RENAME /* gh-ost */ TABLE t TO `_t_del`, `_t_gho` TO t",
            "INSERT INTO t VALUES (3, 'x', 3)",
            "DROP TABLE IF EXISTS `_t_ghc`",
            "DROP TABLE IF EXISTS `_t_del`",
            "CREATE TABLE `_t_new` LIKE t",
            "ALTER TABLE `_t_new` DROP COLUMN b, MODIFY c BIGINT FIRST",
            "CREATE TRIGGER pt_osc_ins AFTER INSERT ON t FOR EACH ROW "
            "REPLACE INTO `_t_new` (id, c) VALUES (NEW.id, NEW.c)",
            "INSERT LOW_PRIORITY IGNORE INTO `_t_new` (id, c) SELECT id, c FROM t",
            "INSERT INTO t VALUES (4, 'y', 4)",
            "RENAME TABLE t TO `_t_old`, `_t_new` TO t",
            "DROP TABLE IF EXISTS `_t_old`",
            "INSERT INTO t VALUES (5, 5)",
        )
        found = read_until(source, lambda found: sum(map(len, map(row_changes_of, found))) >= 4)
    rows = [change.row for transaction in found for change in row_changes_of(transaction)]
    assert rows == [
        {"id": 2, "a": 2},
        {"id": 3, "b": "x", "c": 3},
        {"id": 4, "b": "y", "c": 4},
        {"id": 5, "c": 5},
    ]
    statements = [c for t in found for c in t.changes if not isinstance(c, RowChange)]
    assert [type(change) for change in statements] == [TableDefined] * len(statements)
    assert sum(s.statement.startswith("RENAME") for s in statements) == 2
