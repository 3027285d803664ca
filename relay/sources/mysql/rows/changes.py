"""Decodes rows events into row changes. Pure.

    rows event   table id (6), flags (2), [version 2: size of the extra data including
                 these 2 bytes, the data], number of columns, one bit per column for
                 "is in the image" (an update has two sets), then the images
    image        one bit per present column, 1 = NULL, then the values

An image without all columns (`binlog_row_image` MINIMAL or NOBLOB) is refused, unless
the settings allow partial rows. Absent is not NULL: an absent column is left out of the
row and named in the change's notes. Columns absent from an update's after-image are
unchanged, and are taken from its before-image. Key columns are never absent.

A system-versioned table logs its current rows and its history rows; the row-end column
tells them apart. History rows are not delivered, and an update that moves a row into the
history is delivered as a delete.

In a PARTIAL_UPDATE, an after-image begins with options (a length-encoded number; 1: parts of
JSON values). With that option, one bit per JSON column of the table follows; 1 = the column has
differences from the value before (length 4, differences).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import cycle
from typing import Any, NamedTuple

from pymysqlreplication.constants import BINLOG as B

from databus.relay.sources.mysql.rows.columns import ByteReader, LoggedColumn, SqlType
from databus.relay.sources.mysql.rows.json_diff import apply_differences
from databus.relay.sources.mysql.rows.values import (
    DATE_CODES,
    ZERO_DATE_HINT,
    Reader,
    ZeroDate,
    ZeroDateError,
)
from databus.relay.sources.source import Row, RowChange
from databus.schemas.event.metadata import Notes, Op
from databus.schemas.table import Table

_WRITES = frozenset({B.WRITE_ROWS_EVENT_V1, B.WRITE_ROWS_EVENT_V2})
_PARTIAL = B.PARTIAL_UPDATE_ROWS_EVENT
_UPDATES = frozenset({B.UPDATE_ROWS_EVENT_V1, B.UPDATE_ROWS_EVENT_V2, _PARTIAL})
_DELETES = frozenset({B.DELETE_ROWS_EVENT_V1, B.DELETE_ROWS_EVENT_V2})
_VERSION_2 = frozenset(
    {B.WRITE_ROWS_EVENT_V2, B.UPDATE_ROWS_EVENT_V2, B.DELETE_ROWS_EVENT_V2, _PARTIAL}
)
ROWS_EVENTS = _WRITES | _UPDATES | _DELETES


# In place of an error that may have the value in it.
NOT_SHOWN = "its value cannot be read, and is not shown, because `columns` protects the table"


class PackedColumn(NamedTuple):
    """One packed column: its storage, its declared type, and its reader.

    `charset` is None for a column of bytes or numbers.
    """

    logged: LoggedColumn
    sql: SqlType
    charset: str | None
    read: Reader


@dataclass(frozen=True)
class RowLayout:
    """How the rows of one table are packed, and the table they belong to.

    `dates` are the columns in which an invalid date becomes null. Without
    `delivers_partial`, an image that lacks columns is refused. `row_end` is the column of a
    system-versioned table that holds the end of a row's validity. `hidden` are logged
    columns that are not visible in the table. With `hides_values` no error has a value in it.
    """

    table: Table
    columns: tuple[PackedColumn, ...]
    names: tuple[str, ...]
    readers: tuple[Reader, ...]
    key: tuple[str, ...]  # the columns that identify a row: its key, or all columns
    dates: tuple[str, ...] = ()
    delivers_partial: bool = False
    row_end: str | None = None
    hidden: tuple[str, ...] = ()  # after all others in `names`
    hides_values: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether complete rows are delivered exactly as they are logged."""
        return not self.dates and self.row_end is None

    @staticmethod
    def of(
        table: Table,
        columns: Sequence[PackedColumn],
        *,
        zero_dates_are_null: bool = False,
        delivers_partial: bool = False,
        row_end: str | None = None,
        hidden: tuple[str, ...] = (),
    ) -> RowLayout:
        """Make the layout of a table from its packed columns, `hidden` ones last."""
        own = tuple(column.name for column in table.columns)
        names = own + hidden
        key = tuple(column.name for column in table.key_columns)
        readers = tuple(column.read for column in columns)
        dates = tuple(
            name
            for name, column in zip(names, columns, strict=True)
            if zero_dates_are_null and column.logged.type_code in DATE_CODES
        )
        return RowLayout(
            table, tuple(columns), names, readers, key or own, dates, delivers_partial,
            row_end, hidden,
        )  # fmt: skip


class _Present(NamedTuple):
    """The columns that an image holds."""

    mask: int
    names: Sequence[str]
    readers: Sequence[Reader]
    null_bytes: int  # one bit for each


class _Image(NamedTuple):
    """A decoded row image, with notes on absent columns and invalid dates."""

    row: Row
    absent: tuple[int, ...]
    raw: Mapping[str, str]

    @property
    def notes(self) -> Notes | None:
        return Notes(self.absent, (), self.raw) if self.absent or self.raw else None


def table_id(body: bytes) -> int:
    """Return the table id at the beginning of a rows event or a TABLE_MAP."""
    return int.from_bytes(body[:6], "little")


def row_changes(
    layout: RowLayout, type_code: int, body: bytes, comment: str | None, scn: int
) -> list[RowChange]:
    """Decode a rows event that ends at `scn`; raises ValueError that names the column."""
    start, present = _open(layout, type_code, body)
    if type_code == _PARTIAL:
        rows = _partial_rows(layout, present, body, start)
    else:
        rows = _rows(layout, present, body, start)
    if not layout.is_plain or not all(_is_complete(layout, columns) for columns in present):
        return _noted_changes(layout, type_code, rows, comment, scn)
    table = layout.table
    if len(present) == 1:
        op = Op.INSERT if type_code in _WRITES else Op.DELETE
        return [RowChange(table, op, row, None, comment, None, scn) for row in rows]
    changes: list[RowChange] = []
    for before in rows:
        after = _next(rows)
        if _is_another(layout, before, after):
            changes.append(RowChange(table, Op.DELETE, before, None, comment, None, scn))
            changes.append(RowChange(table, Op.INSERT, after, None, comment, None, scn))
        else:
            changes.append(RowChange(table, Op.UPDATE, after, before, comment, None, scn))
    return changes


def _next(rows: Iterator[dict[str, Any]]) -> dict[str, Any]:
    after = next(rows, None)
    if after is None:
        raise ValueError("an update without its after-image")
    return after


def _is_another(layout: RowLayout, before: Row, after: Row) -> bool:
    # Consumers store rows by key: a new key makes another row, and the old one is
    # deleted.
    return any(before[name] != after[name] for name in layout.key)


def _noted_changes(
    layout: RowLayout,
    type_code: int,
    rows: Iterator[dict[str, Any]],
    comment: str | None,
    scn: int,
) -> list[RowChange]:
    """Return changes with notes on absent columns and invalid dates."""
    table = layout.table
    if type_code not in _UPDATES:
        op = Op.INSERT if type_code in _WRITES else Op.DELETE
        images = (_image(layout, row) for row in rows if _is_current(layout, row))
        return [RowChange(table, op, i.row, None, comment, i.notes, scn) for i in images]
    changes: list[RowChange] = []
    for row in rows:
        changes.extend(_noted_update(layout, row, _next(rows), comment, scn))
    return changes


def _noted_update(
    layout: RowLayout, row: Row, changed: Row, comment: str | None, scn: int
) -> tuple[RowChange, ...]:
    table = layout.table
    merged = {
        name: (changed if name in changed else row)[name]
        for name in layout.names
        if name in changed or name in row
    }
    before, after = _image(layout, row), _image(layout, merged)
    was, is_one = _is_current(layout, row), _is_current(layout, merged)
    if not (was and is_one):
        deleted = RowChange(table, Op.DELETE, before.row, None, comment, before.notes, scn)
        inserted = RowChange(table, Op.INSERT, after.row, None, comment, after.notes, scn)
        return (deleted,) * was + (inserted,) * is_one
    # Compared before invalid dates become null: on the server they differ from each other.
    if _is_another(layout, row, merged):
        return (
            RowChange(table, Op.DELETE, before.row, None, comment, before.notes, scn),
            RowChange(table, Op.INSERT, after.row, None, comment, after.notes, scn),
        )
    found = Notes(after.absent, before.absent, after.raw, before.raw)
    notes = found if any(found) else None
    return (RowChange(table, Op.UPDATE, after.row, before.row, comment, notes, scn),)


# The row end of current rows; the second is that of MariaDB 11.5 and later (64-bit).
_FOR_EVER = (
    datetime(2038, 1, 19, 3, 14, 7, 999_999, UTC),
    datetime(2106, 2, 7, 6, 28, 15, 999_999, UTC),
)


def _is_current(layout: RowLayout, row: Row) -> bool:
    if layout.row_end is None:
        return True
    if layout.row_end not in row:
        raise ValueError(f"the row image lacks {layout.row_end}: {_FULL_IMAGE}")
    return row[layout.row_end] in _FOR_EVER


def _image(layout: RowLayout, row: Row) -> _Image:
    """Replace invalid dates with nulls, and note the absent columns."""
    absent: tuple[int, ...] = ()
    if len(row) != len(layout.names):
        own = layout.names[: len(layout.names) - len(layout.hidden)]
        absent = tuple(i for i, name in enumerate(own) if name not in row)
        lacking = [name for name in layout.key if name not in row]
        if lacking:
            raise ValueError(_lacks_key(layout, lacking))
    raw = {name: str(row[name]) for name in layout.dates if isinstance(row.get(name), ZeroDate)}
    if raw or layout.hidden:
        row = {n: None if n in raw else row[n] for n in row if n not in layout.hidden}
    return _Image(row, absent, raw)


def _lacks_key(layout: RowLayout, lacking: Sequence[str]) -> str:
    why = "of the key" if layout.table.key_columns else "and the table has no primary key"
    return f"the row image lacks {', '.join(lacking[:10])}, {why}: {_FULL_IMAGE}"


_FULL_IMAGE = "SET GLOBAL binlog_row_image = FULL, and in every session"


def _open(layout: RowLayout, type_code: int, body: bytes) -> tuple[int, list[_Present]]:
    """Return the offset of the first image, and the columns in each image of a change."""
    reader = ByteReader(body, 8)
    if type_code in _VERSION_2:
        reader.take(reader.number(2) - 2)
    count = reader.packed()
    if count != len(layout.names):
        raise ValueError(f"rows of {count} columns, and the table has {len(layout.names)}")
    images = 2 if type_code in _UPDATES else 1
    complete = (1 << count) - 1
    masks = [reader.number((count + 7) // 8) & complete for _ in range(images)]
    present = [_present(layout, mask) for mask in masks]
    if not present[0].mask:
        # Images of no columns may have no bytes, so their number is not known.
        raise ValueError(_lacks_key(layout, layout.key))
    if not layout.delivers_partial:
        for columns in present:
            if not _is_complete(layout, columns):
                raise ValueError(_absent(layout, columns))
    return reader.position, present


def _present(layout: RowLayout, mask: int) -> _Present:
    if mask == (1 << len(layout.names)) - 1:
        return _Present(mask, layout.names, layout.readers, (len(layout.names) + 7) // 8)
    here = [index for index in range(len(layout.names)) if mask >> index & 1]
    names = [layout.names[index] for index in here]
    readers = [layout.readers[index] for index in here]
    return _Present(mask, names, readers, (len(here) + 7) // 8)


def _is_complete(layout: RowLayout, columns: _Present) -> bool:
    return len(columns.names) == len(layout.names)


def _absent(layout: RowLayout, columns: _Present) -> str:
    names = [name for name in layout.names if name not in columns.names]
    return (
        f"the row image lacks {', '.join(names[:10])}: the session that wrote it did not have "
        f"binlog_row_image=FULL; {_FULL_IMAGE}; or, to get rows without the values that are not "
        'logged, set partial_rows = "deliver"'
    )


def _rows(
    layout: RowLayout, present: Sequence[_Present], body: bytes, start: int
) -> Iterator[dict[str, Any]]:
    """Yield the rows of the images, an update's before and after in turn."""
    at, end = start, len(body)
    for columns in cycle(present):
        if at >= end:
            return
        _, names, readers, null_bytes = columns
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
            raise _unreadable(layout, names[index], error) from _shown(layout, error)
        if at > end:
            raise ValueError("the rows event ends inside a row")
        yield row


_PARTS_OF_JSON = 1


def _partial_rows(
    layout: RowLayout, present: Sequence[_Present], body: bytes, start: int
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a PARTIAL_UPDATE, before and after in turn."""
    reader = ByteReader(body, start)
    while reader.position < len(body):
        before = _partial_image(layout, present[0], reader, 0, {})
        yield before
        options = reader.packed()
        if options & ~_PARTS_OF_JSON:
            raise ValueError(f"unknown row value options {options}")
        differs = 0
        if options:
            count = sum(column.sql_type == "json" for column in layout.table.columns)
            differs = reader.number((count + 7) // 8)
        yield _partial_image(layout, present[1], reader, differs, before)


def _partial_image(
    layout: RowLayout, present: _Present, reader: ByteReader, differs: int, before: Row
) -> dict[str, Any]:
    """Read a row of which the JSON columns in `differs` are differences from `before`."""
    nulls = reader.number(present.null_bytes)
    row: dict[str, Any] = {}
    for index, (name, read) in enumerate(zip(layout.names, layout.readers, strict=True)):
        is_part = False
        if layout.columns[index].sql.name == "json":
            is_part, differs = bool(differs & 1), differs >> 1
        if not present.mask >> index & 1:
            continue
        is_null, nulls = bool(nulls & 1), nulls >> 1
        try:
            if is_null:
                row[name] = None
            elif is_part:
                row[name] = _patched(before, name, reader.take(reader.number(4)))
            else:
                row[name], reader.position = read(reader.data, reader.position)
        except (ValueError, LookupError, ArithmeticError, struct.error) as error:
            raise _unreadable(layout, name, error) from _shown(layout, error)
        if reader.position > len(reader.data):
            raise ValueError("the rows event ends inside a row")
    return row


def _patched(before: Row, name: str, differences: bytes) -> str:
    if name not in before:
        raise ValueError(
            "only parts of a JSON value are logged, and the before-image lacks the value: "
            f"{_FULL_IMAGE}, or binlog_row_value_options = ''"
        )
    if before[name] is None:
        raise ValueError("only parts of a JSON value are logged, and there was no value before")
    return apply_differences(before[name], differences)


def _unreadable(layout: RowLayout, name: str, error: Exception) -> ValueError:
    types = {column.name: column.sql_type for column in layout.table.columns}
    hint = ZERO_DATE_HINT if isinstance(error, ZeroDateError) else ""
    problem = NOT_SHOWN if layout.hides_values else str(error)
    return ValueError(f"column {name!r} ({types.get(name, 'hidden')}): {problem}{hint}")


def _shown(layout: RowLayout, error: Exception) -> Exception | None:
    """Return an error as the cause of another, which a log may have; None if it is not shown."""
    return None if layout.hides_values else error
