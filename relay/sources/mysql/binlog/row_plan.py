"""Chooses the compiled step that writes each column of a table, for `_decoder.pyx`. Pure.

The readers of `rows/values.py` define each value; a step writes the same value as Avro
without creating a Python object. A type without a step is converted by its reader, value
by value. The old temporal types cannot be converted in this way: a table with one of them
is read in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pymysqlreplication.constants import FIELD_TYPE as T

from databus.relay.sources.mysql.binlog._decoder import RowPlan
from databus.relay.sources.mysql.rows.changes import PackedColumn, RowLayout
from databus.relay.sources.mysql.rows.charsets import byte_table
from databus.relay.sources.mysql.rows.columns import COMPRESSED_BLOB, COMPRESSED_VARCHAR, VECTOR
from databus.relay.sources.mysql.rows.decimals import decimal_size
from databus.relay.sources.source import TableEncoder
from databus.schemas.table import Table

_INT_SIZES = {T.TINY: 1, T.SHORT: 2, T.INT24: 3, T.LONG: 4, T.LONGLONG: 8}
# Bytes without the fraction.
_TEMPORAL = {T.TIME2: ("time", 3), T.DATETIME2: ("datetime", 5), T.TIMESTAMP2: ("timestamp", 4)}
UTF8 = frozenset({"utf8mb4", "utf8mb3", "utf8"})
_LONG_STEPS = frozenset({"int", "uint", "uint64", "year"})
_TEXT_STEPS = _LONG_STEPS | {"utf8", "table", "enum", "set", "bytes", "bits", "padded", "uuid"}

Step = dict[str, Any]


def plan_of(layout: RowLayout, encoder: TableEncoder) -> RowPlan | None:
    """Return the plan by which the decoder writes a table's rows; None if only Python can."""
    if layout.row_end is not None:
        return None  # the decoder does not separate current rows from history rows
    steps = [_step(column) for column in layout.columns]
    if None in steps:
        return None
    columns = []
    for column, step in zip(layout.table.columns, steps, strict=True):
        assert step is not None
        named = {"name": column.name, "nullable": column.nullable}
        columns.append({**step, **named, "zero_is_null": column.name in layout.dates})
    key, key_columns = choose_key(layout.table, columns)
    return RowPlan(
        columns,
        src_id=encoder.src_id,
        digest=encoder.digest,
        key=key,
        key_columns=key_columns,
        make_key=key_from_avro(encoder),
        delivers_partial=layout.delivers_partial,
    )


def choose_key(table: Table, columns: Sequence[Step]) -> tuple[str, list[int]]:
    """Return the kind of the rows' key, and its columns."""
    places = [column.position for column in table.key_columns]
    steps = {columns[place]["step"] for place in places}
    # Without a primary key, the key is a digest of the whole row: made in Python.
    if not places:
        return "made", list(range(len(columns)))
    if len(places) == 1 and steps <= _LONG_STEPS:
        return "long", places
    return "text" if steps <= _TEXT_STEPS else "made", places


def key_from_avro(encoder: TableEncoder) -> Callable[[bytes], bytes]:
    """Return the function that makes the key of a row that is written already."""

    def make(avro: bytes) -> bytes:
        key = encoder.key_of(encoder.codec.decode(avro))
        assert isinstance(key, bytes)
        return key

    return make


def _step(column: PackedColumn) -> Step | None:
    logged, sql = column.logged, column.sql
    code, length = logged.type_code, logged.length
    if code in _INT_SIZES:
        if not sql.is_unsigned:
            return {"step": "int", "size": _INT_SIZES[code]}
        return {"step": "uint64" if code == T.LONGLONG else "uint", "size": _INT_SIZES[code]}
    if code in _TEMPORAL:
        name, size = _TEMPORAL[code]
        return {"step": name, "size": size + (length + 1) // 2, "digits": length}
    if code in (T.ENUM, T.SET):
        members = [member.encode() for member in sql.members]
        return {"step": "enum" if code == T.ENUM else "set", "size": length, "members": members}
    if code == T.NEWDECIMAL:
        precision, scale = length >> 8, length & 0xFF
        size = decimal_size(precision, scale)
        return {"step": "decimal", "size": size, "precision": precision, "scale": scale}
    if code in (T.STRING, T.VAR_STRING):
        return _fixed_step(column)
    return _PLAIN[code](length) if code in _PLAIN else _variable_step(column)


_PLAIN: dict[int, Callable[[int], Step]] = {
    T.FLOAT: lambda length: {"step": "copied", "size": length},
    T.DOUBLE: lambda length: {"step": "copied", "size": length},
    T.YEAR: lambda _: {"step": "year", "size": 1},
    T.BIT: lambda length: {"step": "bits", "size": (length + 7) // 8},
    T.DATE: lambda _: {"step": "date", "size": 3},
    T.NEWDATE: lambda _: {"step": "date", "size": 3},
    T.GEOMETRY: lambda length: {"step": "bytes", "width": length},
    VECTOR: lambda length: {"step": "bytes", "width": length},
}


def _fixed_step(column: PackedColumn) -> Step:
    length = column.logged.length
    width = 2 if length > 255 else 1
    if column.charset not in (None, "binary"):
        return _text_step(column, width)
    if column.sql.name == "uuid":
        return {"step": "uuid", "width": width}
    if column.sql.name in ("inet4", "inet6"):
        return _converted(column, width)
    return {"step": "padded", "width": width, "size": length}


def _variable_step(column: PackedColumn) -> Step | None:
    code, length = column.logged.type_code, column.logged.length
    is_varchar = code in (T.VARCHAR, COMPRESSED_VARCHAR)
    width = (2 if length > 255 else 1) if is_varchar else length
    if code in (COMPRESSED_VARCHAR, COMPRESSED_BLOB, T.JSON):
        return _converted(column, width)
    if code not in (T.VARCHAR, T.BLOB):
        return None
    if column.charset in (None, "binary"):
        return {"step": "bytes", "width": width}
    return _text_step(column, width)


def _text_step(column: PackedColumn, width: int) -> Step:
    charset = column.charset or ""
    if charset in UTF8:
        return {"step": "utf8", "width": width}
    # Only single-byte sets have a table; texts of the others are decoded in Python.
    table = byte_table(charset)
    if table is None:
        return _converted(column, width)
    return {"step": "table", "width": width, "table": utf8_table(table)}


def utf8_table(table: str) -> bytes:
    """Return four bytes for each byte of the set: the size in UTF-8 (0 = none), and the text."""
    packed = bytearray()
    for character in table:
        # U+FFFE stands for a byte that the set does not define.
        encoded = b"" if character == "\ufffe" else character.encode()
        packed += bytes([len(encoded)]) + encoded.ljust(3, b"\0")
    return bytes(packed)


def _converted(column: PackedColumn, width: int) -> Step:
    read = column.read

    def convert(data: bytes) -> bytes:
        value, _ = read(data, 0)
        return value.encode() if isinstance(value, str) else bytes(value)

    return {"step": "converted", "width": width, "convert": convert}
