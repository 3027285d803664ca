"""The stretch of log that all readers read: the narrow table of `benchmarks.capture`, on MySQL."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from pymysql.cursors import Cursor

from benchmarks.capture.log import (
    BULK_ROWS,
    DATABASE,
    NARROW,
    Kind,
    Stretch,
    begin_stretch,
    end_stretch,
    session_of,
)
from databus.demo.private_mariadb import PrivateMariaDB
from tests.mysql_server import PrivateMySQL, initialize, mysql_basedir

_OPTIONS: dict[str, str | int] = {
    "binlog-row-metadata": "FULL",
    # Not every peer knows the newer plugin.
    "default-authentication-plugin": "mysql_native_password",
    # Debezium wants the set of GTIDs in an offset if the server has any.
    "enforce-gtid-consistency": "OFF",
    "gtid-mode": "OFF",
    "innodb-buffer-pool-size": "512M",
    "innodb-flush-log-at-trx-commit": 0,
    "innodb-redo-log-capacity": "512M",
}


@contextmanager
def mysql_with_log() -> Iterator[PrivateMariaDB]:
    """Run a MySQL for the length of a `with`; raises ClickException if it is not fetched."""
    basedir = mysql_basedir()
    if basedir is None:
        raise click.ClickException("MySQL is not there: python -m tools.fetch_test_servers")
    with tempfile.TemporaryDirectory(prefix="databus-peers-") as folder:
        template = Path(folder) / "template"
        initialize(basedir, template)
        with PrivateMySQL(basedir, template, options=_OPTIONS) as server:
            with session_of(server) as cursor:
                cursor.execute(f"CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4")
            yield server


def write_stretch(server: PrivateMariaDB, kind: Kind, rows: int) -> Stretch:
    """Write rows, a thousand or one per transaction; return where they are."""
    with session_of(server) as cursor:
        cursor.execute(f"USE {DATABASE}")
        make_numbers(cursor)
        begun = begin_stretch(cursor, NARROW)
        if kind == "bulk":
            insert, times = NARROW.insert(f"i * {BULK_ROWS} + seq", " FROM numbers"), rows // 1000
        else:
            insert, times = NARROW.insert("i + 1"), rows
        cursor.execute("DROP PROCEDURE IF EXISTS fill")
        cursor.execute(
            "CREATE PROCEDURE fill() BEGIN DECLARE i INT DEFAULT 0; "
            f"WHILE i < {times} DO {insert}; SET i = i + 1; END WHILE; END"
        )
        cursor.execute("CALL fill()")
        return end_stretch(cursor, NARROW, begun, rows, times)


def make_numbers(cursor: Cursor) -> None:
    """Create the table `numbers` in the current database: 1 to 1,000, as `seq`."""
    cursor.execute("CREATE TABLE IF NOT EXISTS numbers (seq INT PRIMARY KEY)")
    cursor.execute(
        "INSERT IGNORE INTO numbers WITH RECURSIVE n (seq) AS "
        f"(SELECT 1 UNION ALL SELECT seq + 1 FROM n WHERE seq < {BULK_ROWS}) SELECT seq FROM n"
    )
