"""The rows that exist before anything starts; no change log has them."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.torture.workload import TABLES, Sizes, TortureTable, Workload
from databus.demo.databases import Database, Session

# Small transactions, for several hundred per second beside everything else.
SIZES = Sizes(tables=(1, 1, 1, 2), rows=(1, 1, 1, 2, 3), large_share=0.001)
ROWS_AT_ONCE = 200
ROWS_A_TRANSACTION = 10_000


def fill(database: Database, seed: int, rows: int, tell: Callable[[int], None]) -> None:
    """Insert a number of rows into the three tables; `tell` is called with the count so far."""
    session = database.connect()
    try:
        if database.dialect == "mysql":
            # Not in the change log: a relay that reads all of it must not find them there.
            session.execute("SET SESSION sql_log_bin = 0")
        _insert_all(session, Workload(seed, SIZES), rows, tell)
    finally:
        session.close()


def _insert_all(
    session: Session, workload: Workload, rows: int, tell: Callable[[int], None]
) -> None:
    waiting: dict[str, list[object]] = {table.name: [] for table in TABLES}
    session.begin()
    for number, (table, key) in enumerate(workload.keys_before(rows), 1):
        values = waiting[table.name]
        values += workload.row_before(table, key)
        if len(values) >= ROWS_AT_ONCE * len(table.columns):
            _insert(session, table, values)
        if number % ROWS_A_TRANSACTION == 0:
            session.commit()
            session.begin()
            tell(number)
    for table in TABLES:
        _insert(session, table, waiting[table.name])
    session.commit()


def _insert(session: Session, table: TortureTable, values: list[object]) -> None:
    """Insert the rows whose values stand one after another, and forget them."""
    width = len(table.columns)
    if values:
        row = f"({', '.join('?' * width)})"
        rows = ", ".join([row] * (len(values) // width))
        session.execute(f"INSERT INTO {table.name} VALUES {rows}", values)
    values.clear()
