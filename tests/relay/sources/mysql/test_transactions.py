"""Transactions out of a real binlog: whole, in order, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from databus.relay.sources.source import Transaction
from databus.schemas.errors import SourceStoppedError
from databus.schemas.event.metadata import Op
from databus.schemas.scn import binlog_position
from tests.mariadb_server import Database, connect
from tests.relay.sources.mysql.reading import (
    opened,
    read_changes,
    read_full,
    read_until,
    watching,
)

pytest_plugins = ["tests.mariadb"]
pytestmark = [pytest.mark.mariadb, pytest.mark.usefixtures("both_ways")]


@pytest.fixture
def shop(database: Database) -> Database:
    """Two tables, one with a text key, and one that nobody watches."""
    database.run(
        "CREATE TABLE a (id INT PRIMARY KEY, v INT)",
        "CREATE TABLE b (k VARCHAR(10) PRIMARY KEY, v INT)",
        "CREATE TABLE unwatched (id INT PRIMARY KEY)",
    )
    return database


def told(transactions: list[Transaction]) -> list[list[tuple[str, str, dict[str, object]]]]:
    """Return operation, table and row of each change, transaction by transaction."""
    return [
        [(c.op.value, c.table.source.split(".")[1], dict(c.row)) for c in t.changes]
        for t in transactions
    ]


def test_a_transaction_over_several_tables_is_one_window_in_statement_order(
    shop: Database, tmp_path: Path
) -> None:
    with opened(watching(shop, tmp_path, "a", "b")) as source:
        shop.run(
            "BEGIN",
            "INSERT INTO a VALUES (1, 10), (2, 20)",
            "INSERT INTO unwatched VALUES (1)",
            "INSERT INTO b VALUES ('x', 1)",
            "UPDATE a SET v = 11 WHERE id = 1",
            "DELETE FROM a WHERE id = 2",
            "COMMIT",
        )
        (transaction,) = read_full(source, 1)
        assert told([transaction]) == [
            [
                ("insert", "a", {"id": 1, "v": 10}),
                ("insert", "a", {"id": 2, "v": 20}),
                ("insert", "b", {"k": "x", "v": 1}),
                ("update", "a", {"id": 1, "v": 11}),
                ("delete", "a", {"id": 2, "v": 20}),
            ]
        ]
        assert transaction.changes[3].before == {"id": 1, "v": 10}


def test_what_was_rolled_back_is_not_delivered(shop: Database, tmp_path: Path) -> None:
    with opened(watching(shop, tmp_path, "a")) as source:
        shop.run("BEGIN", "INSERT INTO a VALUES (1, 1)", "ROLLBACK")
        shop.run(
            "BEGIN",
            "INSERT INTO a VALUES (2, 2)",
            "SAVEPOINT s",
            "INSERT INTO a VALUES (3, 3)",
            "ROLLBACK TO s",
            "INSERT INTO a VALUES (4, 4)",
            "COMMIT",
        )
        assert [c.row["id"] for c in read_changes(source, 2)] == [2, 4]


def test_a_changed_key_is_a_delete_and_an_insert(shop: Database, tmp_path: Path) -> None:
    with opened(watching(shop, tmp_path, "a", "b")) as source:
        shop.run(
            "INSERT INTO a VALUES (1, 1)",
            "INSERT INTO b VALUES ('k', 1)",
            "UPDATE a SET id = 9",
            "UPDATE b SET k = 'K'",
            "UPDATE a SET v = 2",
        )
        changes = read_changes(source, 7)[2:]
        assert [(c.op, dict(c.row)) for c in changes] == [
            (Op.DELETE, {"id": 1, "v": 1}),
            (Op.INSERT, {"id": 9, "v": 1}),
            (Op.DELETE, {"k": "k", "v": 1}),
            (Op.INSERT, {"k": "K", "v": 1}),
            (Op.UPDATE, {"id": 9, "v": 2}),
        ]


def test_a_table_without_a_key_changes_as_whole_rows(database: Database, tmp_path: Path) -> None:
    database.run("CREATE TABLE t (a INT, b INT)")
    with opened(watching(database, tmp_path, "t")) as source:
        database.run("INSERT INTO t VALUES (1, 1)", "UPDATE t SET b = 2")
        assert [c.op for c in read_changes(source, 3)] == [Op.INSERT, Op.DELETE, Op.INSERT]


def test_one_statement_of_many_rows_is_one_window(shop: Database, tmp_path: Path) -> None:
    with opened(watching(shop, tmp_path, "a")) as source:
        shop.run("INSERT INTO a SELECT seq, seq * 2 FROM seq_1_to_20000", "DELETE FROM a")
        insert, delete = read_full(source, 2)
        assert [c.row["id"] for c in insert.changes] == list(range(1, 20001))
        assert {c.row["v"] for c in delete.changes} == set(range(2, 40001, 2))


def test_a_row_larger_than_a_packet_is_delivered(database: Database, tmp_path: Path) -> None:
    (before,) = database.run("SELECT @@GLOBAL.max_allowed_packet")[0]
    database.run("CREATE TABLE t (id INT PRIMARY KEY, v LONGBLOB)")
    database.run("SET GLOBAL max_allowed_packet = 64 << 20")
    other = connect(database.server, max_allowed_packet=64 << 20, database=database.name)
    try:
        with opened(watching(database, tmp_path, "t")) as source:
            with other.cursor() as cursor:
                cursor.execute("INSERT INTO t VALUES (1, REPEAT('0123456789abcdef', 1200000))")
            (change,) = read_changes(source, 1)
            assert change.row["v"] == b"0123456789abcdef" * 1_200_000
    finally:
        other.close()
        database.run(f"SET GLOBAL max_allowed_packet = {before}")


def test_replace_and_upsert_arrive_as_what_they_did(shop: Database, tmp_path: Path) -> None:
    with opened(watching(shop, tmp_path, "a")) as source:
        shop.run(
            "INSERT INTO a VALUES (1, 1)",
            "REPLACE INTO a VALUES (1, 2)",
            "INSERT INTO a VALUES (1, 3) ON DUPLICATE KEY UPDATE v = 3",
            "INSERT IGNORE INTO a VALUES (1, 4)",
            "INSERT INTO a VALUES (2, 5)",
        )
        assert [(c.op.value, c.row["v"]) for c in read_changes(source, 4)] == [
            ("insert", 1),
            ("update", 2),
            ("update", 3),
            ("insert", 5),
        ]


def test_rows_that_a_trigger_writes_are_delivered(shop: Database, tmp_path: Path) -> None:
    shop.run("CREATE TRIGGER g AFTER INSERT ON a FOR EACH ROW INSERT INTO b VALUES (NEW.id, NEW.v)")
    with opened(watching(shop, tmp_path, "a", "b")) as source:
        shop.run("INSERT INTO a VALUES (1, 1), (2, 2)")
        (transaction,) = read_full(source, 1)
        assert sorted(c.table.source[-1] for c in transaction.changes) == ["a", "a", "b", "b"]


def test_a_table_without_transactions_is_delivered(database: Database, tmp_path: Path) -> None:
    database.run("CREATE TABLE t (id INT PRIMARY KEY) ENGINE=MyISAM")
    with opened(watching(database, tmp_path, "t")) as source:
        database.run("INSERT INTO t VALUES (1), (2)", "DELETE FROM t WHERE id = 1")
        assert [c.op for c in read_changes(source, 3)] == [Op.INSERT, Op.INSERT, Op.DELETE]


def test_create_table_as_select_delivers_its_rows(shop: Database, tmp_path: Path) -> None:
    shop.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO a VALUES (1, 1), (2, 2)")
    with opened(watching(shop, tmp_path, "t", start="latest")) as source:
        shop.run("CREATE TABLE other AS SELECT * FROM a", "INSERT INTO t SELECT * FROM other")
        assert [c.row for c in read_changes(source, 2)] == [{"id": 1, "v": 1}, {"id": 2, "v": 2}]


def test_the_origin_says_where_a_transaction_stands(shop: Database, tmp_path: Path) -> None:
    with opened(watching(shop, tmp_path, "a", epoch=3)) as source:
        (file, offset), *_ = [row[:2] for row in shop.run("SHOW MASTER STATUS")]
        shop.run("INSERT INTO a VALUES (1, 1)")
        (transaction,) = read_full(source, 1)
        (end,) = [row[1] for row in shop.run("SHOW MASTER STATUS")]
        position = binlog_position(transaction.scn)
        assert (position.epoch, position.offset) == (3, end)
        origin = transaction.origin
        assert (origin.file, origin.offset, origin.epoch) == (file, offset, 3)
        assert (origin.gtid, origin.server_id) == (
            shop.run("SELECT @@GLOBAL.gtid_binlog_pos")[0][0],
            1,
        )


def test_the_timestamp_is_the_servers(shop: Database, tmp_path: Path) -> None:
    with opened(watching(shop, tmp_path, "a")) as source:
        shop.run("SET timestamp = 1234567890", "INSERT INTO a VALUES (1, 1)")
        assert read_full(source, 1)[0].timestamp_ns == 1_234_567_890_000_000_000


@pytest.mark.parametrize(
    ("statement", "comment"),
    [
        ("/* trace=7 */ INSERT INTO a VALUES (1, 1)", "trace=7"),
        ("INSERT INTO a VALUES (1, 1) /* at the end */", "at the end"),
        ("INSERT INTO b VALUES ('/* no */', 1)", None),
        ("INSERT INTO a VALUES (1, 1)", None),
    ],
)
def test_a_statements_comment_is_kept(
    shop: Database, tmp_path: Path, statement: str, comment: str | None
) -> None:
    with opened(watching(shop, tmp_path, "a", "b")) as source:
        shop.run(statement)
        assert read_changes(source, 1)[0].comment == comment


def test_transactions_without_watched_rows_move_the_scn_and_do_not_flood(
    shop: Database, tmp_path: Path
) -> None:
    with opened(watching(shop, tmp_path, "a")) as source:
        for number in range(300):
            shop.run(f"INSERT INTO unwatched VALUES ({number})")
        (end,) = [row[1] for row in shop.run("SHOW MASTER STATUS")]
        found = read_until(
            source, lambda found: any(binlog_position(t.scn).offset == end for t in found)
        )
        assert len(found) < 30
        assert not any(t.changes for t in found)
        assert [t.scn for t in found] == sorted({t.scn for t in found})


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("RENAME TABLE a TO z, unwatched TO a", "RENAME TABLE"),
        ("ALTER TABLE a DISCARD TABLESPACE", "DISCARD"),
        ("SET STATEMENT binlog_format = 'STATEMENT' FOR DELETE FROM a", "statement format"),
        ("SET STATEMENT binlog_row_image = 'MINIMAL' FOR UPDATE a SET v = 5", "lacks"),
        ("SET STATEMENT binlog_row_image = 'NOBLOB' FOR UPDATE c SET v = 5", "lacks t"),
    ],
)
def test_changes_that_are_not_in_the_log_as_rows_stop_capture_and_can_be_passed(
    shop: Database, tmp_path: Path, statement: str, says: str
) -> None:
    shop.run("CREATE TABLE c (id INT PRIMARY KEY, v INT, t TEXT)")
    settings = watching(shop, tmp_path, "a", "c")
    with opened(settings) as source:
        begin = source.read_transactions()[-1].scn
        shop.run("INSERT INTO a VALUES (1, 1)", "INSERT INTO c VALUES (1, 1, 'x')", statement)
        shop.run("CREATE TABLE IF NOT EXISTS a (id INT PRIMARY KEY, v INT)")
        shop.run("INSERT INTO c VALUES (3, 3, 'z')")
        assert len(read_changes(source, 2)) == 2
        with pytest.raises(SourceStoppedError, match=says) as caught:
            read_full(source, 1000)
        assert "binlog.0" in caught.value.position
        assert caught.value.scn > begin
        number = int(str(caught.value).split("acknowledged_scns = [")[1].split("]")[0])
        again = settings.model_copy(update={"acknowledged_scns": (number,)})
        with opened(again, caught.value.scn) as second:
            assert [c.row["id"] for c in read_changes(second, 1)] == [3]


def test_statements_about_other_tables_do_not_stop_capture(shop: Database, tmp_path: Path) -> None:
    with opened(watching(shop, tmp_path, "a")) as source:
        shop.run(
            "TRUNCATE TABLE unwatched",
            "DROP TABLE unwatched",
            "CREATE TEMPORARY TABLE tmp (id INT)",
            "DROP TEMPORARY TABLE tmp",
            "CREATE INDEX i ON a (v)",
            "ANALYZE TABLE a",
            "OPTIMIZE TABLE a",
            "CREATE VIEW w AS SELECT * FROM a",
            "DROP VIEW w",
            "FLUSH TABLES",
            "INSERT INTO a VALUES (1, 1)",
        )
        assert read_changes(source, 1)[0].row == {"id": 1, "v": 1}
