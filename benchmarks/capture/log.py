"""A private MariaDB, and the workloads that are written to its binlog.

The server's caches are large and it flushes nothing: how fast it writes is
not what is measured. Rows come from its own sequences, so that the log has the
rows and not the text of statements a thousand rows long.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Literal

import pymysql
from pymysql.connections import Connection
from pymysql.cursors import Cursor

from databus.demo.private_mariadb import HOST, PrivateMariaDB
from databus.relay.sources.mysql.server.start_position import file_number
from databus.schemas.scn import BinlogPosition

DATABASE = "d"
BULK_ROWS = 1000  # of one transaction
Kind = Literal["bulk", "single"]
Metadata = Literal["NO_LOG", "MINIMAL", "FULL"]

SERVER_OPTIONS: dict[str, str | int] = {
    "innodb-buffer-pool-size": "1G",
    "innodb-doublewrite": 0,
    "innodb-log-file-size": "1G",
    "sync-binlog": 0,
}
# Type, and the expression of a value out of `n`, the row's number from 1.
_NARROW = (
    ("name", "VARCHAR(50)", "CONCAT('name ', n)"),
    ("price", "DECIMAL(10,2)", "(n % 10000000) / 7"),
    ("quantity", "BIGINT", "n * 1000"),
    ("is_sold", "TINYINT", "n & 1"),
    ("weight", "DOUBLE", "n / 3"),
    ("made_at", "DATETIME(3)", "'2024-02-29 12:34:56.789'"),
    ("changed_at", "TIMESTAMP", "'2024-02-29 12:34:56'"),
    ("note", "TEXT", "IF(n % 10, RPAD('a note of some length ', 70 + n % 30, n), NULL)"),
)
_WIDE = (*_NARROW, ("day", "DATE", "'2024-02-29'"), ("code", "CHAR(8)", "LPAD(n % 100000, 8, 'x')"))
_WIDE_COLUMNS = 50


@dataclass(frozen=True, slots=True)
class MixedTable:
    """A table of one integer key and mixed columns."""

    name: str
    columns: Sequence[tuple[str, str, str]]

    @property
    def source(self) -> str:
        """The name of its source."""
        return f"{DATABASE}.{self.name}"

    @property
    def create(self) -> str:
        """The CREATE TABLE statement."""
        columns = ", ".join(f"{name} {sql_type}" for name, sql_type, _ in self.columns)
        return f"CREATE TABLE {self.source} (id INT PRIMARY KEY, {columns})"

    def insert(self, number: str, origin: str = "") -> str:
        """Return the INSERT of the rows whose numbers an expression yields."""
        values = ", ".join(value for _, _, value in self.columns)
        return f"INSERT INTO {self.source} SELECT n, {values} FROM (SELECT {number} AS n{origin}) s"


NARROW = MixedTable("narrow", _NARROW)
WIDE = MixedTable(
    "wide",
    [
        (f"{name}_{at // len(_WIDE)}", sql_type, value)
        for at in range(_WIDE_COLUMNS - 1)
        for name, sql_type, value in (_WIDE[at % len(_WIDE)],)
    ],
)


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a binlog: its position, and what was written there."""

    table: MixedTable
    begin: BinlogPosition
    end: BinlogPosition
    file: str
    size_bytes: int
    rows: int
    transactions: int


@contextmanager
def server_with_log(metadata: Metadata) -> Iterator[PrivateMariaDB]:
    """Run a server for the length of a `with`."""
    with PrivateMariaDB(options={**SERVER_OPTIONS, "binlog-row-metadata": metadata}) as server:
        with session_of(server) as cursor:
            cursor.execute(f"CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4")
        yield server


@contextmanager
def session_of(server: PrivateMariaDB) -> Iterator[Cursor]:
    """Open a session for the length of a `with`."""
    connection: Connection[Cursor] = pymysql.connect(
        host=HOST, port=server.port, user=server.user, password=server.password, autocommit=True
    )
    with closing(connection), connection.cursor() as cursor:
        yield cursor


def begin_stretch(cursor: Cursor, table: MixedTable) -> tuple[str, BinlogPosition]:
    """Create the empty table and a new log file; return the file and its first event's position."""
    cursor.execute(f"USE {DATABASE}")
    cursor.execute(f"DROP TABLE IF EXISTS {table.source}")
    cursor.execute(table.create)
    cursor.execute("FLUSH BINARY LOGS")
    return log_end(cursor)


def end_stretch(
    cursor: Cursor, table: MixedTable, begun: tuple[str, BinlogPosition], rows: int, count: int
) -> Stretch:
    """Return what was written since the stretch began."""
    file, begin = begun
    _, end = log_end(cursor)
    cursor.execute("SHOW BINARY LOGS")
    later = [int(size) for name, size, *_ in cursor.fetchall() if str(name) >= file]
    return Stretch(table, begin, end, file, sum(later) - begin.offset, rows, count)


def write_bulk(cursor: Cursor, table: MixedTable, rows: int) -> int:
    """Write rows, a thousand per transaction; return the number of transactions."""
    insert = table.insert(f"i * {BULK_ROWS} + seq", f" FROM seq_1_to_{BULK_ROWS}")
    write_repeatedly(cursor, insert, rows // BULK_ROWS)
    return rows // BULK_ROWS


def write_singles(cursor: Cursor, table: MixedTable, rows: int) -> int:
    """Write rows, one per transaction; return the number of transactions."""
    write_repeatedly(cursor, table.insert("i + 1"), rows)
    return rows


def write_huge(cursor: Cursor, table: MixedTable, rows: int, after: int = 0) -> None:
    """Write rows in one transaction, numbered from `after` + 1."""
    cursor.execute(table.insert(f"seq + {after}", f" FROM seq_1_to_{rows}"))


def log_end(cursor: Cursor) -> tuple[str, BinlogPosition]:
    """Return the end of the log: file and position."""
    cursor.execute("SHOW MASTER STATUS")
    row = cursor.fetchone()
    assert row is not None
    file = str(row[0])
    return file, BinlogPosition(0, file_number(file), int(row[1]))


def write_repeatedly(cursor: Cursor, statement: str, times: int) -> None:
    """Run a statement a number of times on the server; `i` counts them from 0."""
    cursor.execute(repeated(statement, times))


def repeated(statement: str, times: int, first: int = 0) -> str:
    """Return a block that runs a statement a number of times; `i` counts from `first`."""
    return f"""
        BEGIN NOT ATOMIC
          DECLARE i INT DEFAULT {first};
          WHILE i < {first + times} DO
            {statement};
            SET i = i + 1;
          END WHILE;
        END
    """
