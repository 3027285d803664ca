"""Rows events turned into row changes. Pure.

    rows event   table id (6), flags (2), [version 2: size of extra data, itself
                 included (2), the data], number of columns, a bit each for
                 "is in the image" (an update has two sets), then the images
    image        a bit for each column present, 1 = NULL, then the values

An image that lacks columns is refused: absent is not NULL.

The row after a PARTIAL_UPDATE has options in front (a length-encoded number; 1:
parts of JSON values) and then a bit for each JSON column of the table, 1 = it
is differences from the value before (length 4, differences).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pymysqlreplication.constants import BINLOG as B

from databus.relay.sources.mysql_columns import ByteReader, LoggedColumn, SqlType
from databus.relay.sources.mysql_json_diff import apply_differences
from databus.relay.sources.mysql_values import Reader, ZeroDateError
from databus.relay.sources.source import Row, RowChange
from databus.schemas.metadata import Op
from databus.schemas.table import Table

_WRITES = frozenset({B.WRITE_ROWS_EVENT_V1, B.WRITE_ROWS_EVENT_V2})
_PARTIAL = B.PARTIAL_UPDATE_ROWS_EVENT
_UPDATES = frozenset({B.UPDATE_ROWS_EVENT_V1, B.UPDATE_ROWS_EVENT_V2, _PARTIAL})
_DELETES = frozenset({B.DELETE_ROWS_EVENT_V1, B.DELETE_ROWS_EVENT_V2})
_VERSION_2 = frozenset(
    {B.WRITE_ROWS_EVENT_V2, B.UPDATE_ROWS_EVENT_V2, B.DELETE_ROWS_EVENT_V2, _PARTIAL}
)
ROWS_EVENTS = _WRITES | _UPDATES | _DELETES


class PackedColumn(NamedTuple):
    """How the values of one column are packed, what they mean, and what reads them.

    `charset` is None for a column of bytes or numbers.
    """

    logged: LoggedColumn
    sql: SqlType
    charset: str | None
    read: Reader


@dataclass(frozen=True)
class RowLayout:
    """How the rows of one table are packed, and the table they belong to."""

    table: Table
    columns: tuple[PackedColumn, ...]
    names: tuple[str, ...]
    readers: tuple[Reader, ...]
    key: tuple[str, ...]  # whose change makes another row of it; all columns without a key

    @staticmethod
    def of(table: Table, columns: Sequence[PackedColumn]) -> RowLayout:
        """Make the layout of a table whose columns are packed like this."""
        names = tuple(column.name for column in table.columns)
        key = tuple(column.name for column in table.key_columns)
        readers = tuple(column.read for column in columns)
        return RowLayout(table, tuple(columns), names, readers, key or names)


def table_id(body: bytes) -> int:
    """Return the table id that a rows event or a TABLE_MAP begins with."""
    return int.from_bytes(body[:6], "little")


def row_changes(
    layout: RowLayout, type_code: int, body: bytes, comment: str | None
) -> list[RowChange]:
    """Decode a rows event; raises ValueError naming the column where it cannot."""
    start, images = _open(layout, type_code, body)
    if type_code == _PARTIAL:
        return _partial_updates(layout, body, start, comment)
    rows = _rows(layout, body, start)
    table = layout.table
    if images == 1:
        op = Op.INSERT if type_code in _WRITES else Op.DELETE
        return [RowChange(table, op, row, None, comment) for row in rows]
    changes: list[RowChange] = []
    for before in rows:
        after = next(rows, None)
        if after is None:
            raise ValueError("an update without the row after it")
        changes.extend(_update(layout, before, after, comment))
    return changes


def _update(
    layout: RowLayout, before: Row, after: Row, comment: str | None
) -> tuple[RowChange, ...]:
    # A consumer keeps rows by key: under a new key it is another row, and the
    # old one is gone.
    if any(before[name] != after[name] for name in layout.key):
        return (
            RowChange(layout.table, Op.DELETE, before, None, comment),
            RowChange(layout.table, Op.INSERT, after, None, comment),
        )
    return (RowChange(layout.table, Op.UPDATE, after, before, comment),)


def _open(layout: RowLayout, type_code: int, body: bytes) -> tuple[int, int]:
    """Check which columns the images hold; return where they begin and how many make a change."""
    reader = ByteReader(body, 8)
    if type_code in _VERSION_2:
        reader.take(reader.number(2) - 2)
    count = reader.packed()
    if count != len(layout.names):
        raise ValueError(f"rows of {count} columns, and the table has {len(layout.names)}")
    images = 2 if type_code in _UPDATES else 1
    complete = (1 << count) - 1
    for _ in range(images):
        present = reader.number((count + 7) // 8) & complete
        if present != complete:
            raise ValueError(_absent(layout, present))
    return reader.position, images


def _absent(layout: RowLayout, present: int) -> str:
    names = [name for i, name in enumerate(layout.names) if not present >> i & 1]
    return (
        f"the row image lacks {', '.join(names[:10])}: the session that wrote it had not "
        "binlog_row_image=FULL; SET GLOBAL binlog_row_image = FULL, and in every session"
    )


def _rows(layout: RowLayout, body: bytes, start: int) -> Iterator[dict[str, Any]]:
    names, readers = layout.names, layout.readers
    null_bytes = (len(names) + 7) // 8
    at, end = start, len(body)
    while at < end:
        nulls = int.from_bytes(body[at : at + null_bytes], "little")
        at += null_bytes
        row: dict[str, Any] = {}
        index = 0
        try:
            if nulls:
                for index, read in enumerate(readers):
                    if nulls >> index & 1:
                        row[names[index]] = None
                    else:
                        row[names[index]], at = read(body, at)
            else:
                for index, read in enumerate(readers):
                    row[names[index]], at = read(body, at)
        except (ValueError, IndexError, ArithmeticError, struct.error) as error:
            raise ValueError(_column_problem(layout, index, error)) from error
        if at > end:
            raise ValueError("the rows event ends inside a row")
        yield row


_PARTS_OF_JSON = 1


def _partial_updates(
    layout: RowLayout, body: bytes, start: int, comment: str | None
) -> list[RowChange]:
    changes: list[RowChange] = []
    reader = ByteReader(body, start)
    while reader.position < len(body):
        before = _partial_image(layout, reader, 0, {})
        options = reader.packed()
        if options & ~_PARTS_OF_JSON:
            raise ValueError(f"row value options {options}, which are not known")
        differs = 0
        if options:
            count = sum(column.sql_type == "json" for column in layout.table.columns)
            differs = reader.number((count + 7) // 8)
        after = _partial_image(layout, reader, differs, before)
        changes.extend(_update(layout, before, after, comment))
    return changes


def _partial_image(
    layout: RowLayout, reader: ByteReader, differs: int, before: Row
) -> dict[str, Any]:
    """Read a row of which the JSON columns in `differs` are differences from `before`."""
    nulls = reader.number((len(layout.names) + 7) // 8)
    row: dict[str, Any] = {}
    for index, (name, read) in enumerate(zip(layout.names, layout.readers, strict=True)):
        is_part = False
        if layout.table.columns[index].sql_type == "json":
            is_part, differs = bool(differs & 1), differs >> 1
        try:
            if nulls >> index & 1:
                row[name] = None
            elif is_part:
                row[name] = _patched(before[name], reader.take(reader.number(4)))
            else:
                row[name], reader.position = read(reader.data, reader.position)
        except (ValueError, LookupError, ArithmeticError, struct.error) as error:
            raise ValueError(_column_problem(layout, index, error)) from error
        if reader.position > len(reader.data):
            raise ValueError("the rows event ends inside a row")
    return row


def _patched(before: str | None, differences: bytes) -> str:
    if before is None:
        raise ValueError("parts of a JSON value are logged, and there was no value before")
    return apply_differences(before, differences)


def _column_problem(layout: RowLayout, index: int, error: Exception) -> str:
    column = layout.table.columns[index]
    hint = ""
    if isinstance(error, ZeroDateError):
        hint = ' is no date; to have such values as null, set zero_dates = "null"'
    return f"column {column.name!r} ({column.sql_type}): {error}{hint}"
