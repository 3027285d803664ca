"""The compiled columns of rows: the bytes that Python writes, of any row of MySQL."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, tzinfo
from decimal import Decimal
from functools import cache
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings, strategies as st

from databus.relay.serving.protobuf import bytes_field
from databus.relay.serving.ptubes import packets
from databus.relay.serving.ptubes.rows._row_columns import message_fields
from databus.relay.serving.ptubes.rows.columns import RowColumns
from databus.schemas.errors import ProtocolError
from databus.schemas.table import Column, Table
from databus.schemas.table_schema import avro_schema

# New York and Lord Howe have times that are twice there, and times that are not there.
ZONES = [
    UTC,
    None,
    *map(ZoneInfo, ("Asia/Shanghai", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata")),
]
TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
BEGIN, END = datetime(1900, 1, 1), datetime(2200, 1, 1)
TIMES = st.datetimes(BEGIN, END) | st.builds(
    lambda minutes: datetime(2024, 3, 10) + timedelta(minutes=minutes), st.integers(0, 400_000)
)
DAY_US = 86_400_000_000
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "tinyint": st.integers(-128, 127),
    "int(10) unsigned": st.integers(0, (1 << 32) - 1),
    "bigint": st.integers(-(1 << 63), (1 << 63) - 1),
    "bigint unsigned": st.integers(0, (1 << 64) - 1).map(Decimal),
    "year": st.integers(0, 2155),
    "float": st.floats(width=32),
    "double": st.floats(),
    "decimal(20,5)": st.decimals(-(10**14), 10**14, places=5),
    "char(20)": TEXTS,
    "varchar(20)": TEXTS,
    "json": TEXTS,
    "binary(4)": st.binary(min_size=4, max_size=4),
    "varbinary(20)": st.binary(max_size=20),
    "longblob": st.binary(max_size=300),
    "bit(12)": st.binary(min_size=2, max_size=2),
    "enum('a','it''s','ü')": st.sampled_from(["a", "it's", "ü", ""]),
    "set('a','b','c')": st.sampled_from(["", "a", "a,c", "a,b,c"]),
    "date": TIMES.map(datetime.date),
    "datetime(6)": TIMES,
    "timestamp(3)": TIMES.map(lambda at: at.replace(tzinfo=UTC)),
    "time(3)": st.integers(-(839 * 3600 * 10**3), 839 * 3600 * 10**3).map(lambda ms: ms * 1000),
    "time": st.sampled_from([0, DAY_US - 10**6, DAY_US, -(10**6)]),
}
NAMES = {f"c{at}": sql_type for at, sql_type in enumerate(VALUES)}
TABLE = Table(
    "shop.t",
    tuple(
        Column(name, sql_type, at, key_position=0 if at == 1 else None)
        for at, (name, sql_type) in enumerate(NAMES.items())
    ),
)
TEXT = avro_schema(TABLE)
ROWS = st.fixed_dictionaries(
    {name: st.none() | VALUES[sql_type] for name, sql_type in NAMES.items()}
)


@cache
def writer(zone: tzinfo | None) -> RowColumns:
    """Return a zone's, made when a test asks: every process of a run collects all tests."""
    return RowColumns(TEXT, zone)


@settings(max_examples=400)
@given(row=ROWS, zone=st.sampled_from(ZONES), tag=st.sampled_from([1, 2]))
def test_any_row_is_written_alike(row: dict[str, Any], zone: tzinfo | None, tag: int) -> None:
    columns = writer(zone)
    data = columns.codec.encode(row)
    expected = columns.map_fields(tag, columns.codec.decode(data))
    assert columns.row_fields(tag, data, (), {}) == expected


def test_rows_are_written_by_compiled_code_but_for_dates_beyond_the_known_ones() -> None:
    columns = writer(None)
    row: dict[str, Any] = dict.fromkeys(NAMES)
    at = next(name for name, sql_type in NAMES.items() if sql_type == "date")
    for day, is_known in ((date(1902, 1, 1), True), (date(1901, 12, 31), False)):
        data = columns.codec.encode(row | {at: day})
        assert (columns._compiled.map_fields(2, data) is not None) == is_known


def test_notes_on_a_row_are_pythons_to_write() -> None:
    columns = RowColumns(TEXT, UTC)
    row: dict[str, Any] = dict.fromkeys(NAMES)
    data = columns.codec.encode(row)
    raw = {"c17": "0000-00-00"}
    assert columns.row_fields(2, data, (3,), raw) == columns.map_fields(
        2, {name: None for name in NAMES if name != "c3"}, raw
    )


@given(row=ROWS, end=st.integers(0, 2000), goes_on=st.booleans())
def test_bytes_that_end_early_or_go_on_are_pythons_to_refuse(
    row: dict[str, Any], end: int, goes_on: bool
) -> None:
    columns = writer(UTC)
    data = columns.codec.encode(row)
    damaged = data + b"\0" if goes_on else data[: min(end, len(data) - 1)]
    assert columns._compiled.map_fields(2, damaged) is None
    with pytest.raises(ProtocolError):
        columns.row_fields(2, damaged, (), {})


@given(
    parts=st.tuples(*[st.binary(max_size=300)] * 4),
    time_ms=st.integers(0, (1 << 63) - 1),
    event_type=st.sampled_from([1, 2, 3]),
)
def test_events_and_lists_of_them_are_written_alike(
    parts: tuple[bytes, ...], time_ms: int, event_type: int
) -> None:
    table, place, row, rest = parts
    assert packets.row_event(table, place, time_ms, event_type, row, rest) == (
        packets.event_message(table, place, time_ms, event_type, row, rest=rest)
    )
    assert message_fields(3, list(parts)) == b"".join(bytes_field(3, one) for one in parts)
