"""How capture's cost grows with columns, with the size of transactions and with rows' width.

Of each size so many rows are written that capture has enough to do for a clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pymysql.cursors import Cursor

from benchmarks.capture.log import (
    BULK_ROWS,
    DATABASE,
    NARROW,
    MixedTable,
    session_of,
    write_repeatedly,
)
from benchmarks.growth.captured import RING_BYTES, Log, capture_cpu, end_scn, log_from
from benchmarks.growth.curve import Curve, least
from databus.demo.private_mariadb import PrivateMariaDB

# 500 of them fit into a page of InnoDB.
_TYPES = ("INT", "VARCHAR(8)", "BIGINT", "DOUBLE")
_EVENT_BYTES = 400  # more than an event of a narrow row has in the ring
_LARGEST_BYTES = 1 << 20  # of a transaction of wide rows, unless one row is larger


class Load(Protocol):
    """What is written for each size."""

    def table(self, size: int) -> MixedTable:
        """Return the table of a size."""

    def write(self, cursor: Cursor, size: int) -> int:
        """Write into that table; return the number of units whose cost is measured."""


class Columns:
    """Rows of a number of columns; a unit is a row."""

    def __init__(self, cells: int) -> None:
        self._cells = cells

    def table(self, size: int) -> MixedTable:
        """Return a table of so many columns, with the key."""
        columns = [(f"c{at}", _TYPES[at % len(_TYPES)], "n") for at in range(1, size)]
        return MixedTable(f"columns_{size}", columns)

    def write(self, cursor: Cursor, size: int) -> int:
        """Write the rows; return their number."""
        return _write_rows(cursor, self.table(size), self._cells // (size + 10), BULK_ROWS)


class TransactionSize:
    """Narrow rows, a number of them in each transaction; a unit is a transaction."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def table(self, size: int) -> MixedTable:
        """Return a narrow table."""
        return MixedTable(f"transactions_{size}", NARROW.columns)

    def write(self, cursor: Cursor, size: int) -> int:
        """Write the transactions; return their number."""
        return _write_rows(cursor, self.table(size), max(size, self._rows), size) // size


class RowWidth:
    """Rows with a text of a number of bytes; a unit is a row."""

    def __init__(self, total_bytes: int, most_rows: int) -> None:
        self._total_bytes, self._most_rows = total_bytes, most_rows

    def table(self, size: int) -> MixedTable:
        """Return a table of one text."""
        return MixedTable(f"width_{size}", [("body", "LONGTEXT", f"REPEAT('x', {size})")])

    def write(self, cursor: Cursor, size: int) -> int:
        """Write the rows; return their number."""
        rows = min(self._most_rows, self._total_bytes // size)
        together = max(1, min(BULK_ROWS, _LARGEST_BYTES // size))
        return _write_rows(cursor, self.table(size), rows, together)


def columns(server: PrivateMariaDB, short: bool) -> list[Curve]:
    """Measure a row by its number of columns."""
    sizes = (2, 10, 50, 250) if short else (2, 5, 15, 50, 150, 500)
    load = Columns(250_000 if short else 3_000_000)
    costs = _costs(server, sizes, load, short)
    return [Curve("columns: capture of a row", "columns", costs)]


def transaction_size(server: PrivateMariaDB, short: bool) -> list[Curve]:
    """Measure a transaction by its number of rows."""
    sizes = tuple(10**power for power in range(5 if short else 7))
    ring_bytes = max(RING_BYTES, max(sizes) * _EVENT_BYTES)
    load = TransactionSize(20_000 if short else 200_000)
    costs = _costs(server, sizes, load, short, ring_bytes)
    return [Curve("transaction size: capture of a transaction", "rows", costs)]


def row_width(server: PrivateMariaDB, short: bool) -> list[Curve]:
    """Measure a row by the bytes of its text."""
    sizes = tuple(10**power for power in range(1, 6 if short else 7))
    load = RowWidth(8 << 20, 20_000) if short else RowWidth(100 << 20, 200_000)
    costs = _costs(server, sizes, load, short)
    return [Curve("row width: capture of a row", "bytes", costs)]


def _costs(
    server: PrivateMariaDB,
    sizes: Sequence[int],
    load: Load,
    short: bool,
    ring_bytes: int = RING_BYTES,
) -> dict[int, float]:
    """Write every size, then capture each in turns; return the CPU seconds of a unit."""
    written: dict[int, tuple[Log, int, int]] = {}
    with session_of(server) as cursor:
        cursor.execute(f"USE {DATABASE}")
        # All of them first: no table is defined behind a place at which a relay starts.
        for size in sizes:
            cursor.execute(load.table(size).create)
        for size in sizes:
            log = log_from(server, cursor, [load.table(size).source], ring_bytes)
            units = load.write(cursor, size)
            written[size] = (log, end_scn(cursor), units)

    def measure(size: int) -> list[float]:
        log, scn, units = written[size]
        return [capture_cpu(log, scn) / units]

    (costs,) = least(sizes, 1 if short else 3, measure)
    return costs


def _write_rows(cursor: Cursor, table: MixedTable, rows: int, together: int) -> int:
    """Write about so many rows, in transactions of a number of them; return how many."""
    count = max(1, rows // together)
    insert = table.insert(f"i * {together} + seq", f" FROM seq_1_to_{together}")
    write_repeatedly(cursor, insert, count)
    return count * together
