"""How cost grows with the number of tables, and of the versions that a table has had.

The relay captures while the server writes: what it takes for one phase is not mixed with
what it takes for the next.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.capture.log import DATABASE, repeated, session_of
from benchmarks.growth.captured import log_from, phases_cpu, start_cpu
from benchmarks.growth.curve import FLAT, Curve, least
from databus.demo.private_mariadb import PrivateMariaDB

_COLUMNS = "id INT PRIMARY KEY, name VARCHAR(50), price DECIMAL(10,2), made_at DATETIME(3)"
_VALUES = "''name'', 1.25, ''2024-02-29 12:34:56.789''"
_FURTHER = 100  # DDLs whose cost is that of a further one


def tables(server: PrivateMariaDB, short: bool) -> list[Curve]:
    """Measure a relay by the number of its tables, each of which has rows in its log."""
    sizes = (1, 10, 100) if short else (1, 10, 30, 100, 300, 1000)
    transactions = 5000 if short else 30_000
    with session_of(server) as cursor:
        names = [f"{DATABASE}.many_{at}" for at in range(max(sizes))]
        for name in names:
            cursor.execute(f"CREATE OR REPLACE TABLE {name} ({_COLUMNS})")

        def measure(size: int) -> list[float]:
            for name in names[:size]:
                cursor.execute(f"DELETE FROM {name}")
            phases = [_rows_in_turns(size, 0, size), _rows_in_turns(size, size, transactions)]
            log = log_from(server, cursor, names[:size])
            with tempfile.TemporaryDirectory(prefix="databus-growth-") as folder:
                first, later = phases_cpu(log, phases, Path(folder))
                return [first, later / transactions, start_cpu(log, Path(folder))]

        first, later, start = least(sizes, 1 if short else 3, measure)
    return [
        Curve("tables: first sight of all", "tables", first),
        Curve("tables: a transaction after first sight", "tables", later, FLAT),
        Curve("tables: second start of the relay", "tables", start),
    ]


def schema_versions(server: PrivateMariaDB, short: bool) -> list[Curve]:
    """Measure a further DDL, and a start, by the number of versions before."""
    sizes = (100, 300) if short else (100, 1000, 3000, 10_000)
    further: dict[int, float] = {}
    start: dict[int, float] = {}
    with (
        session_of(server) as cursor,
        tempfile.TemporaryDirectory(prefix="databus-growth-") as name,
    ):
        folder, source, done = Path(name), f"{DATABASE}.altered", 0
        cursor.execute(f"CREATE OR REPLACE TABLE {source} (id INT PRIMARY KEY, c0 INT)")
        log = log_from(server, cursor, [source])
        for size in sizes:
            phases = [_ddls(source, done, size), _ddls(source, size, size + _FURTHER)]
            further[size] = phases_cpu(log, phases, folder)[1] / _FURTHER
            start[size] = min(start_cpu(log, folder) for _ in range(1 if short else 3))
            done = size + _FURTHER
    return [
        Curve("schema versions: a further DDL", "before", further, FLAT),
        Curve("schema versions: second start of the relay", "versions", start),
    ]


def _rows_in_turns(tables: int, first: int, count: int) -> str:
    """Return a block that writes transactions of one row, into one table after another."""
    insert = f"CONCAT('INSERT INTO {DATABASE}.many_', i % {tables}, ' VALUES (', i, ', {_VALUES})')"
    return repeated(f"EXECUTE IMMEDIATE {insert}", count, first)


def _ddls(source: str, done: int, end: int) -> str:
    """Return a block that renames the column until there were so many DDLs, each with a row."""
    rename = f"CONCAT('ALTER TABLE {source} RENAME COLUMN c', i, ' TO c', i + 1)"
    statements = f"EXECUTE IMMEDIATE {rename}; INSERT INTO {source} VALUES (i, i)"
    return repeated(statements, end - done, done)
