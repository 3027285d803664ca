"""Chooses the compiled step that writes each selected column, for `_text_rows.pyx`. Pure.

The conversions of `scan/columns.py` define each value; a step writes the same value as Avro
without creating a Python object. A type without a step is converted there, value by value.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from databus.relay.sources.mysql.binlog.row_plan import (
    UTF8,
    Step,
    choose_key,
    key_from_avro,
    utf8_table,
)
from databus.relay.sources.mysql.rows.charsets import byte_table
from databus.relay.sources.mysql.rows.columns import (
    SqlType,
    has_unknown_members,
    parse_sql_type,
)
from databus.relay.sources.mysql.scan._text_rows import RowPlan
from databus.relay.sources.mysql.scan.columns import INTS, TEXTS, Convert, SelectedColumn
from databus.relay.sources.source import TableEncoder

_MOST_DIGITS = 18  # of a decimal that the compiled step reads
_MOST_PLANS = 256
_PLAIN: dict[str, Step] = {
    "year": {"step": "year"},
    "time": {"step": "time"},
    "float": {"step": "copied", "size": 4},
    "double": {"step": "copied", "size": 8},
    "date": {"step": "date"},
    "datetime": {"step": "datetime"},
    "timestamp": {"step": "timestamp"},
}


@lru_cache(maxsize=_MOST_PLANS)
def plan_of(columns: tuple[SelectedColumn, ...], encoder: TableEncoder) -> RowPlan:
    """Return the plan by which the texts of these columns are written."""
    steps = [
        {
            **_step(selected),
            "name": column.name,
            "nullable": column.nullable,
            "zero_is_null": selected.zero_dates_are_null,
        }
        for selected, column in zip(columns, encoder.table.columns, strict=True)
    ]
    key, key_columns = choose_key(encoder.table, steps)
    return RowPlan(
        steps,
        src_id=encoder.src_id,
        digest=encoder.digest,
        key=key,
        key_columns=key_columns,
        make_key=key_from_avro(encoder),
        delivers_partial=False,
    )


def _step(column: SelectedColumn) -> Step:
    if column.convert is None:
        return {"step": "bytes"}
    sql = parse_sql_type(column.defined.sql_type)
    if sql.name in INTS:
        return _integer(sql)
    if sql.name in TEXTS:
        return _text(column)
    if has_unknown_members(sql):
        return _text(column)
    if sql.name in ("enum", "set"):
        # The members' numbers are read with eight bytes, whatever their size in the log.
        members = [member.encode() for member in sql.members]
        return {"step": sql.name, "size": 8, "members": members}
    if sql.name == "decimal":
        return _decimal(sql)
    return _PLAIN.get(sql.name) or _converted(column.convert)


def _integer(sql: SqlType) -> Step:
    return {"step": "uint64" if sql.is_unsigned and sql.name == "bigint" else "int"}


def _text(column: SelectedColumn) -> Step:
    charset = column.defined.charset or ""
    if charset in UTF8:
        return {"step": "utf8"}
    table = byte_table(charset)
    return _converted(column.convert) if table is None else _by_table(table)


def _by_table(table: str) -> Step:
    return {"step": "table", "table": utf8_table(table)}


def _decimal(sql: SqlType) -> Step:
    precision, scale = _digits(sql.arguments)
    if precision <= _MOST_DIGITS:
        return {"step": "decimal", "precision": precision, "scale": scale}
    return {"step": "converted", "convert": _unscaled}


def _digits(arguments: Sequence[int]) -> tuple[int, int]:
    precision, scale = (*arguments, *(10, 0)[len(arguments) :])
    return precision, scale


def _unscaled(raw: bytes) -> bytes:
    """Return a decimal's unscaled number, as `put_decimal` writes it."""
    number = int(raw.replace(b".", b""))
    return number.to_bytes((abs(number).bit_length() + 8) // 8, "big", signed=True)


def _converted(convert: Convert | None) -> Step:
    assert convert is not None, "a column of bytes"

    def write(raw: bytes) -> bytes:
        value = convert(raw)
        return value.encode() if isinstance(value, str) else bytes(value)

    return {"step": "converted", "convert": write}
