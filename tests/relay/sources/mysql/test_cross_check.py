"""The same log read with mysql-replication: the same rows where its decoding is right."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

from databus.demo.private_mariadb import HOST
from databus.relay.sources.source import RowChange
from tests.mariadb_server import Database
from tests.relay.sources.mysql.reading import opened, read_changes, watching

pytest_plugins = ["tests.mariadb"]
pytestmark = pytest.mark.mariadb

COLUMNS = (
    "id INT PRIMARY KEY, big BIGINT UNSIGNED, small SMALLINT, price DECIMAL(20,6), ratio DOUBLE,"
    " name VARCHAR(300), code CHAR(3), note TEXT, at DATETIME(6), day DATE, kind ENUM('a','b'),"
    " took TIME(3)"
)


def read_with_library(database: Database, file: str, offset: int, count: int) -> list[Any]:
    server = database.server
    reader = BinLogStreamReader(
        {"host": HOST, "port": server.port, "user": server.user, "password": server.password},
        server_id=4243,
        log_file=file,
        log_pos=offset,
        resume_stream=True,
        only_schemas=[database.name],
        only_events=[WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent],
        enable_logging=False,
    )
    found: list[Any] = []
    try:
        for event in reader:
            for row in event.rows:
                after = row.get("after_values") or row["values"]
                found.append((type(event).__name__[:6].lower(), after, row.get("before_values")))
            if len(found) >= count:
                break
    finally:
        reader.close()
    return found


def as_library(change: RowChange) -> tuple[str, Any, Any]:
    """Put a change the way mysql-replication does."""
    operation = {"insert": "writer", "update": "update", "delete": "delete"}[change.op.value]
    return operation, _library_row(change.row), change.before and _library_row(change.before)


def _library_row(row: Any) -> dict[str, Any]:
    took = row["took"]
    return {
        **row,
        "big": None if row["big"] is None else int(row["big"]),
        "took": None if took is None else timedelta(microseconds=took),
    }


# The library's own use of the driver.
@pytest.mark.filterwarnings("ignore:'db' is deprecated:DeprecationWarning")
def test_rows_are_those_that_mysql_replication_reads(database: Database, tmp_path: Path) -> None:
    database.run("SET GLOBAL binlog_row_metadata = FULL")
    try:
        database.run(f"CREATE TABLE t ({COLUMNS})")
        (file, offset, *_) = database.run("SHOW MASTER STATUS")[0]
        with opened(watching(database, tmp_path, "t")) as source:
            for number in range(1, 60):
                values = (
                    number, 2**64 - number, -number, Decimal(number) / 7, number / 3, "ñ" * number,
                    "x", "text", f"2024-01-01 00:00:{number:02}.000{number:02}", "2024-02-29",
                    "ab"[number % 2], f"{number}:00:00.5",
                )  # fmt: skip
                row: list[Any] = [v if number % (i + 3) else None for i, v in enumerate(values)]
                row[0] = number
                marks = ", ".join(["%s"] * len(row))
                database.run(f"INSERT INTO t VALUES ({marks})", args=tuple(row))
            database.run("UPDATE t SET small = 1 WHERE id % 3 = 0", "DELETE FROM t WHERE id > 40")
            ours = [as_library(change) for change in read_changes(source, 59 + 19 + 19)]
        theirs = read_with_library(database, file, offset, len(ours))
    finally:
        database.run("SET GLOBAL binlog_row_metadata = NO_LOG")
    assert ours == theirs
