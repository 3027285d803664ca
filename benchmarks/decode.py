"""The MySQL source against mysql-replication: `python -m benchmarks.decode [--short]`.

Both read the same stretch of one private MariaDB's binlog over loopback, in one
process, in turns: transactions of one row, and one transaction of many. The
source checks each checksum, knows each column's declared type and puts whole
transactions together; mysql-replication, which Python programs use for this,
decodes rows. What counts is processor time, for the server takes its share of
the machine too. A figure is the median of the repeats.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pymysql
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.event import XidEvent
from pymysqlreplication.row_event import WriteRowsEvent

from benchmarks.report import Figure, command, median
from databus.conf.settings import PhysicalSourceSettings
from databus.demo.private_mariadb import HOST, PrivateMariaDB
from databus.relay.sources.mysql.source import MysqlSource
from databus.relay.sources.source import Transaction
from databus.schemas.scn import BinlogPosition

TABLE = """
CREATE TABLE d.t (id INT PRIMARY KEY AUTO_INCREMENT, name VARCHAR(50), price DECIMAL(10,2),
                  n BIGINT, at DATETIME(3), note TEXT)
"""
SINGLE_ROWS = """
BEGIN NOT ATOMIC
  DECLARE i INT DEFAULT 0;
  WHILE i < {count} DO
    INSERT INTO d.t (name, price, n, at, note)
      VALUES (CONCAT('name ', i), i / 7, i * 1000, NOW(3), 'a note of some length');
    SET i = i + 1;
  END WHILE;
END
"""
MANY_ROWS = """
INSERT INTO d.t (name, price, n, at, note)
  SELECT CONCAT('name ', seq), seq / 7, seq, NOW(3), 'a note of some length' FROM seq_1_to_{count}
"""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of the binlog, with so many rows."""

    file: str
    begin: int
    end: int
    rows: int

    def scn(self, offset: int) -> int:
        """Return an offset of the file as an SCN."""
        return BinlogPosition(0, int(self.file.rpartition(".")[2]), offset).to_scn()


def read_with_source(server: PrivateMariaDB, password_file: Path, stretch: Stretch) -> int:
    """Read a stretch with the relay's source; return the rows."""
    settings = PhysicalSourceSettings(
        name="bench", uri=server.uri, sources=("d.t",), password_file=password_file
    )
    source = MysqlSource(settings)
    try:
        source.open(stretch.scn(stretch.begin))
        rows, scn = 0, 0
        while scn < stretch.scn(stretch.end):
            for transaction in source.read():
                # It was given nothing to write windows with.
                assert isinstance(transaction, Transaction)
                rows += len(transaction.changes)
                scn = transaction.scn
        return rows
    finally:
        source.close()


def read_with_library(server: PrivateMariaDB, stretch: Stretch) -> int:
    """Read a stretch with mysql-replication; return the rows."""
    reader = BinLogStreamReader(
        {"host": HOST, "port": server.port, "user": server.user, "password": server.password},
        server_id=4242,
        log_file=stretch.file,
        log_pos=stretch.begin,
        resume_stream=True,
        only_events=[WriteRowsEvent, XidEvent],
        enable_logging=False,
    )
    rows = 0
    try:
        for event in reader:
            if isinstance(event, WriteRowsEvent):
                rows += len(event.rows)
            elif event.packet.log_pos >= stretch.end:
                break
        return rows
    finally:
        reader.close()


def rows_per_cpu_second(read: Callable[[], int], rows: int) -> float:
    """Return how fast a reader is, having checked that it read everything."""
    started = time.process_time()
    found = read()
    spent = time.process_time() - started
    if found != rows:
        raise RuntimeError(f"{found} of {rows} rows were read")
    return rows / spent


def figures(short: bool = False) -> list[Figure]:
    """Measure both readers on both kinds of transaction."""
    singles, many, repeats = (3_000, 30_000, 1) if short else (20_000, 200_000, 3)
    found: list[Figure] = []
    with (
        PrivateMariaDB(options={"binlog-row-metadata": "FULL"}) as server,
        TemporaryDirectory(prefix="databus-bench-") as folder,
    ):
        password_file = Path(folder) / "password"
        password_file.write_text(server.password)
        for name, sql, rows in (
            ("transactions of one row", SINGLE_ROWS, singles),
            ("rows of one transaction", MANY_ROWS, many),
        ):
            stretch = _write(server, sql.format(count=rows), rows)
            ours = partial(read_with_source, server, password_file, stretch)
            theirs = partial(read_with_library, server, stretch)
            speed = median(repeats, partial(rows_per_cpu_second, ours, rows))
            library_speed = median(repeats, partial(rows_per_cpu_second, theirs, rows))
            found.append(Figure(f"decode {name}", speed, "/s"))
            ratio = speed / library_speed
            found.append(Figure(f"decode {name} / mysql-replication", ratio, "x"))
    return found


def _write(server: PrivateMariaDB, sql: str, rows: int) -> Stretch:
    connection = pymysql.connect(
        host=HOST, port=server.port, user=server.user, password=server.password, autocommit=True
    )
    try:
        with connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE IF NOT EXISTS d")
            cursor.execute("USE d")
            cursor.execute("DROP TABLE IF EXISTS d.t")
            cursor.execute(TABLE)
            file, begin = _end(cursor)
            cursor.execute(sql)
            return Stretch(file, begin, _end(cursor)[1], rows)
    finally:
        connection.close()


def _end(cursor: pymysql.cursors.Cursor) -> tuple[str, int]:
    cursor.execute("SHOW MASTER STATUS")
    row = cursor.fetchone()
    assert row is not None
    return str(row[0]), int(row[1])


main = command("decode", figures)
if __name__ == "__main__":
    main()
