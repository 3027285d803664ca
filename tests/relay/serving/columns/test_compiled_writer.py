"""The compiled writer writes what Python writes, for any row."""

from __future__ import annotations

from datetime import UTC, date, datetime, tzinfo
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings, strategies as st

from databus.relay.serving.columns.column_writer import ColumnWriter
from databus.schemas.avro_rows import row_codec
from databus.schemas.errors import ProtocolError
from databus.schemas.event.metadata import Notes, Op
from databus.schemas.table import Column, Table
from databus.schemas.table_schema import avro_schema


def _decimals(digits: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**digits - 1
    return st.integers(-most, most).map(lambda number: Decimal(f"{number}E-{scale}"))


_MOMENTS = st.datetimes(datetime(1970, 1, 1, 0, 0, 1), datetime(2038, 1, 19, 3, 14, 7))
_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
TYPES: dict[str, st.SearchStrategy[Any]] = {
    "tinyint unsigned": st.integers(0, 255),
    "smallint unsigned": st.integers(0, 65535),
    "mediumint unsigned": st.integers(0, 2**24 - 1),
    "int": st.integers(-(2**31), 2**31 - 1),
    "int unsigned": st.integers(0, 2**32 - 1),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "bigint unsigned": st.integers(0, 2**64 - 1).map(Decimal),
    "decimal(10,2)": _decimals(10, 2),
    "decimal(65,30)": _decimals(65, 30),
    "decimal(20,0)": _decimals(20, 0),
    "float": st.floats(width=32),
    "double": st.floats(),
    "bit(10)": st.binary(min_size=2, max_size=2),
    "bit(64)": st.binary(min_size=8, max_size=8),
    "varchar(20)": _TEXTS,
    "binary(4)": st.binary(min_size=4, max_size=4),
    "blob": st.binary(max_size=20),
    "enum('a','b','')": st.sampled_from(["a", "b", ""]),
    "set('a','b','ñ')": st.sampled_from(["", "a", "a,ñ", "a,b,ñ"]),
    "date": st.dates(date(1, 1, 1), date(9999, 12, 31)),
    "time": st.integers(-3020399, 3020399).map(lambda seconds: seconds * 1_000_000),
    "time(3)": st.integers(-3020399_000, 3020399_000).map(lambda millis: millis * 1000),
    "time(6)": st.integers(-3020399_000000, 3020399_000000),
    "datetime": st.datetimes().map(lambda one: one.replace(microsecond=0)),
    "datetime(6)": st.datetimes(),
    "timestamp": _MOMENTS.map(lambda one: one.replace(tzinfo=UTC)),
    "timestamp(3)": _MOMENTS.map(lambda one: one.replace(tzinfo=UTC)),
    "year": st.one_of(st.just(0), st.integers(1901, 2155)),
    "json": _TEXTS,
    "point": st.binary(max_size=25),
}
COLUMNS = tuple(
    Column(f"c{at}", sql_type, at, at > 0, 0 if at == 0 else None)
    for at, sql_type in enumerate(TYPES)
)
TEXT = avro_schema(Table("shop.t", COLUMNS))
CODEC = row_codec(TEXT)
ZONES: tuple[tzinfo, ...] = (UTC, ZoneInfo("America/New_York"), ZoneInfo("Asia/Kolkata"))
ROWS = st.fixed_dictionaries(
    {
        f"c{at}": values if at == 0 else st.one_of(st.none(), values)
        for at, values in enumerate(TYPES.values())
    }
)


def both(
    writer: ColumnWriter, op: Op, row: bytes, before: bytes | None, notes: Notes
) -> tuple[bytes | None, bytes]:
    """Return what compiled code writes, and what Python writes."""
    numbers = {one: number for number, one in enumerate(Op)}
    told = notes.absent, notes.before_absent, dict(notes.raw), dict(notes.before_raw)
    compiled = writer.compiled.row_data(numbers[op], row, before, *told)
    return compiled, writer.python_row_data(op, row, before, notes)


@settings(max_examples=300, deadline=None)
@given(
    ROWS,
    st.one_of(st.none(), ROWS),
    st.sampled_from([Op.INSERT, Op.UPDATE, Op.DELETE, Op.SNAPSHOT]),
    st.sampled_from(ZONES),
)
def test_any_row_is_written_alike(
    row: dict[str, Any], before: dict[str, Any] | None, op: Op, zone: tzinfo
) -> None:
    writer = ColumnWriter(TEXT, zone)
    former = None if before is None else CODEC.encode(before)
    compiled, python = both(writer, op, CODEC.encode(row), former, Notes())
    assert compiled == python


@settings(max_examples=100, deadline=None)
@given(ROWS, ROWS, st.sets(st.integers(1, len(TYPES) - 1)), st.sets(st.integers(1, 5)))
def test_columns_left_out_and_texts_without_a_value_are_written_alike(
    row: dict[str, Any], before: dict[str, Any], absent: set[int], raw: set[int]
) -> None:
    for name in [f"c{at}" for at in absent]:
        del row[name]
    for name in [f"c{at}" for at in raw]:
        before[name] = None
    notes = Notes(tuple(sorted(absent)), (), {}, {f"c{at}": "0000-00-00" for at in raw})
    writer = ColumnWriter(TEXT)
    data = CODEC.encode(row, notes.absent), CODEC.encode(before)
    compiled, python = both(writer, Op.UPDATE, *data, notes)
    assert compiled == python


@settings(max_examples=100, deadline=None)
@given(ROWS, st.integers(0, 400), st.booleans())
def test_bytes_that_end_early_or_go_on_are_pythons_to_refuse(
    row: dict[str, Any], end: int, goes_on: bool
) -> None:
    data = CODEC.encode(row)
    damaged = data + b"\0" if goes_on else data[: min(end, len(data) - 1)]
    writer = ColumnWriter(TEXT)
    assert writer.compiled.row_data(0, damaged, None, (), (), {}, {}) is None
    with pytest.raises(ProtocolError):
        writer.row_data(Op.INSERT, damaged)


def test_a_source_that_is_not_mysql_has_types_and_texts_by_avro() -> None:
    columns = tuple(Column(name, "", at) for at, name in enumerate("abc"))
    text = avro_schema(Table("t", columns, "sqlite"))
    row: dict[str, Any] = {"a": 5, "b": "x", "c": 1.5}
    writer = ColumnWriter(text)
    compiled, python = both(writer, Op.INSERT, row_codec(text).encode(row), None, Notes())
    assert compiled == python
    assert b"1.5" in python
