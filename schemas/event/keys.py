"""The key of an event, which identifies the row.

A primary key of one integer column is a long key. Any other primary key is a byte string: the text
forms of its columns, joined by `,`. Each `,` and `\\` in a value is escaped by `\\`, so that
("1","23") differs from ("12","3"). A table without a primary key uses the digest of the whole row.

Text forms: NULL is `\\N`, and bytes are `\\x` and their hex digits; no escaped text looks like
these. A decimal has no exponent. Dates and times are ISO 8601, those with a zone in UTC.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from hashlib import md5
from typing import Any

from databus.schemas.errors import RowError
from databus.schemas.table import Column, Table

_MICROSECOND = timedelta(microseconds=1)
_SMALLEST_LONG, _LARGEST_LONG = -(1 << 63), (1 << 63) - 1

Row = Mapping[str, Any]


def event_key(table: Table, row: Row) -> int | bytes:
    """Return the key of `row`; raises RowError if a key column is missing.

    For many rows of one table, use `key_maker(table)`.
    """
    return key_maker(table)(row)


def text_key(source: str, columns: tuple[str, ...], row: Row) -> bytes:
    """Return the byte key that these columns make, whatever the table's key is.

    Raises RowError if one is missing.
    """
    return _joined(source, columns, row)


@lru_cache(maxsize=4096)
def key_maker(table: Table) -> Callable[[Row], int | bytes]:
    """Return the function that makes the keys of a table's rows."""
    columns = table.key_columns
    if len(columns) == 1:
        return _single_key(table.source, columns[0])
    if columns:
        names = tuple(column.name for column in columns)
        return lambda row: _joined(table.source, names, row)
    names = tuple(column.name for column in table.columns)
    return lambda row: _row_digest(table.source, names, row)


def _single_key(source: str, column: Column) -> Callable[[Row], int | bytes]:
    name = column.name
    # Values of an unsigned BIGINT are decimals, because they may exceed a signed long.
    is_big = column.sql_type.startswith("bigint")

    def single(row: Row) -> int | bytes:
        try:
            value = row[name]
        except KeyError:
            raise RowError(source, name, "is part of the key and is not in the row") from None
        if is_big and isinstance(value, Decimal):
            value = int(value)
        if isinstance(value, int) and _SMALLEST_LONG <= value <= _LARGEST_LONG:
            return int(value)
        return _text(source, name, value)

    return single


def _joined(source: str, names: tuple[str, ...], row: Row) -> bytes:
    try:
        return b",".join([_text(source, name, row[name]) for name in names])
    except KeyError as error:
        name = str(error.args[0])
        raise RowError(source, name, "is part of the key and is not in the row") from None


def _row_digest(source: str, names: tuple[str, ...], row: Row) -> bytes:
    joined = _joined(source, names, row)
    return md5(joined, usedforsecurity=False).hexdigest().encode()


def _text(source: str, column: str, value: Any) -> bytes:
    if isinstance(value, str):
        try:
            return value.replace("\\", "\\\\").replace(",", "\\,").encode()
        except UnicodeEncodeError as error:
            raise RowError(source, column, f"is not valid text: {error}") from error
    if isinstance(value, bytes | bytearray | memoryview):
        return b"\\x" + bytes(value).hex().encode()
    text = _plain_text(value)
    if text is None:
        raise RowError(source, column, f"a {type(value).__name__} cannot be part of a key")
    return text.encode()


def _plain_text(value: Any) -> str | None:
    """Return the text form of what needs no escape."""
    if value is None:
        return "\\N"
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, datetime):
        return (value.astimezone(UTC) if value.tzinfo else value).isoformat()
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, timedelta):  # as a client has an SQL TIME; a relay has its microseconds
        return repr(value // _MICROSECOND)
    return repr(value) if isinstance(value, int | float) else None
