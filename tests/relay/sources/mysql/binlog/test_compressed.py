"""A log that MariaDB compresses (`log_bin_compress`) reads like one that it does not."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from databus.relay.sources.source import Transaction
from tests.mariadb_server import Database
from tests.relay.sources.mysql.reading import opened, read_changes, read_full, watching
from tests.relay.sources.read_back import ReadSource

pytest_plugins = ["tests.mariadb"]
pytestmark = [pytest.mark.mariadb, pytest.mark.usefixtures("both_ways")]

COLUMNS = "id INT PRIMARY KEY, t TEXT, b MEDIUMBLOB, n DECIMAL(20,4), e ENUM('x','y')"
WRITES = (
    "BEGIN",
    "INSERT INTO a VALUES (1, REPEAT('é', 5000), REPEAT('x', 70000), 1.5, 'x')",
    "INSERT INTO a VALUES (2, '', NULL, -1, 'y'), (3, REPEAT('z', 300), '', 0, NULL)",
    "COMMIT",
    "/* trace=7 */ UPDATE a SET t = REPEAT('w', 400) WHERE id <= 2",
    "UPDATE a SET id = 9 WHERE id = 3",
    "DELETE FROM a WHERE id = 1",
    "INSERT INTO a SELECT seq + 100, REPEAT('q', 100), NULL, seq, 'x' FROM seq_1_to_2000",
)


@pytest.fixture
def compressing(database: Database) -> Iterator[Database]:
    """A server that compresses whatever is longer than ten bytes."""
    database.run(f"CREATE TABLE a ({COLUMNS})")
    database.run("SET GLOBAL log_bin_compress_min_len = 10")
    yield database
    with contextlib.suppress(Exception):
        database.run("SET GLOBAL log_bin_compress = OFF")
    database.run("SET GLOBAL log_bin_compress_min_len = DEFAULT")


def told(transactions: list[Transaction]) -> list[object]:
    return [
        [(c.op, c.row, c.before, c.comment) for c in transaction.changes]
        for transaction in transactions
    ]


def kinds_in_log(database: Database, file: str, offset: int) -> set[str]:
    rows = database.run(f"SHOW BINLOG EVENTS IN '{file}' FROM {offset}")
    return {str(row[2]) for row in rows}


def written(database: Database, source: ReadSource, compress: str) -> list[object]:
    # The variable is global; sessions take it when they write.
    database.run(f"SET GLOBAL log_bin_compress = {compress}", "TRUNCATE unwatched", *WRITES)
    return told(read_full(source, 5))


@pytest.mark.parametrize("metadata", ["FULL", "NO_LOG"])
def test_compressed_rows_are_the_rows(compressing: Database, tmp_path: Path, metadata: str) -> None:
    compressing.run(
        "CREATE TABLE unwatched (id INT)", f"SET GLOBAL binlog_row_metadata = {metadata}"
    )
    try:
        with opened(watching(compressing, tmp_path, "a")) as source:
            plain = written(compressing, source, "OFF")
            compressing.run("DELETE FROM a")
            read_full(source, 1)
            (file, offset, *_) = compressing.run("SHOW MASTER STATUS")[0]
            assert written(compressing, source, "ON") == plain
    finally:
        compressing.run("SET GLOBAL binlog_row_metadata = NO_LOG")
    kinds = kinds_in_log(compressing, file, offset)
    assert {
        "Write_rows_compressed_v1",
        "Update_rows_compressed_v1",
        "Delete_rows_compressed_v1",
        "Query_compressed",
    } <= kinds


def test_a_compressed_ddl_is_followed(compressing: Database, tmp_path: Path) -> None:
    compressing.run("SET GLOBAL log_bin_compress = ON")
    with opened(watching(compressing, tmp_path, "a")) as source:
        compressing.run(
            "INSERT INTO a (id) VALUES (1)",
            f"ALTER TABLE a ADD COLUMN added VARCHAR(10) DEFAULT 'new' COMMENT '{'x' * 300}'",
            "INSERT INTO a (id) VALUES (2)",
        )
        first, second = read_changes(source, 2)
        assert "added" not in first.row
        assert second.row["added"] == "new"


def test_a_compressed_ddl_ahead_of_a_lagging_stream_is_seen(
    compressing: Database, tmp_path: Path
) -> None:
    settings = watching(compressing, tmp_path, "a")
    with opened(settings) as source:
        begin = source.read_transactions()[-1].scn
    compressing.run("SET GLOBAL log_bin_compress = ON", "INSERT INTO a (id) VALUES (1)")
    compressing.run(f"ALTER TABLE a DROP COLUMN e, COMMENT '{'x' * 300}'")
    compressing.run("ALTER TABLE a ADD COLUMN e ENUM('other')")
    with opened(settings, begin) as source, pytest.raises(Exception, match="altered later"):
        read_full(source, 1)
