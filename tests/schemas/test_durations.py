"""An SQL TIME as a timedelta, as clients have it, beside its microseconds."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, strategies as st

from databus.schemas.avro_rows import RowCodec, row_codec
from databus.schemas.errors import RowError
from databus.schemas.event.json import json_value
from databus.schemas.partitions.row_hashes import hash_of_columns
from databus.schemas.rows.row_decoding import is_compiled
from databus.schemas.table import Column, Table
from databus.schemas.table_change import TableChange, renewed, shape_id, step, with_change
from databus.schemas.table_schema import avro_schema
from databus.testing import change, make_window

COLUMNS = (
    Column("id", "int", 0, nullable=False, key_position=0),
    Column("lasts", "time(6)", 1),
    Column("waits", "time", 2, nullable=False),
    Column("at", "timestamp(6)", 3),
)
TEXT = avro_schema(Table("shop.calls", COLUMNS))
NUMBERS, DURATIONS = row_codec(TEXT), row_codec(TEXT, has_durations=True)
MICROS = st.integers(-838 * 3_600_000_000, 838 * 3_600_000_000)


def test_compiled_code_is_there() -> None:
    assert is_compiled


@given(lasts=st.none() | MICROS, waits=MICROS)
def test_both_codecs_read_the_same_bytes(lasts: int | None, waits: int) -> None:
    row = {"id": 1, "lasts": lasts, "waits": waits, "at": None}
    spans = {
        "id": 1,
        "lasts": None if lasts is None else timedelta(microseconds=lasts),
        "waits": timedelta(microseconds=waits),
        "at": None,
    }
    data = NUMBERS.encode(row)
    assert DURATIONS.encode(spans) == data
    assert DURATIONS.decode(data) == DURATIONS._read(data) == spans
    assert DURATIONS.with_numbers.decode(data) == NUMBERS.decode(data) == row


def test_a_value_of_the_other_kind_does_not_fit() -> None:
    row: dict[str, Any] = {"id": 1, "lasts": None, "waits": 5, "at": None}
    with pytest.raises(RowError, match="waits"):
        DURATIONS.encode(row | {"waits": "00:00:05"})
    with pytest.raises(RowError, match="lasts"):
        NUMBERS.encode(row | {"lasts": timedelta(seconds=5)})


def test_an_older_row_is_read_in_the_readers_schema_too() -> None:
    newer = avro_schema(Table("shop.calls", (*COLUMNS, Column("note", "text", 4))))
    codec = RowCodec.resolving(TEXT, newer, has_durations=True)
    data = NUMBERS.encode({"id": 1, "lasts": -1, "waits": 5_000_000, "at": None})
    assert codec.decode(data) == {
        "id": 1,
        "lasts": timedelta(microseconds=-1),
        "waits": timedelta(seconds=5),
        "at": None,
        "note": None,
    }


@given(micros=MICROS)
def test_a_row_is_of_the_same_partition_for_relay_and_client(micros: int) -> None:
    by = ("lasts", "id")
    relay = hash_of_columns("shop.calls", by, {"id": 1, "lasts": micros})
    span = timedelta(microseconds=micros)
    assert hash_of_columns("shop.calls", by, {"id": 1, "lasts": span}) == relay


def test_in_json_it_is_a_number_of_microseconds_as_from_a_relay() -> None:
    assert json_value({"lasts": timedelta(hours=-1)}) == {"lasts": -3_600_000_000}


def test_a_new_time_of_a_table_is_of_the_kind_of_the_others() -> None:
    added = Column("since", "time", 4)
    newer = avro_schema(Table("shop.calls", (*COLUMNS, added)))
    text = with_change(newer, TableChange(5, shape_id(TEXT), added={"since": 1_000_000}))
    span = timedelta(seconds=1)
    row = {"id": 1, "lasts": span, "waits": timedelta(0), "at": None}
    assert step(TEXT, text).row(row) == row | {"since": span}
    numbers = {"id": 1, "lasts": 2, "waits": 0, "at": None}
    assert renewed(numbers, [step(TEXT, text)]) == numbers | {"since": 1_000_000}


def test_a_table_of_arrow_has_its_microseconds() -> None:
    window = make_window(change("shop.calls", {"id": 1, "lasts": timedelta(seconds=2)}))
    assert window.to_arrow()["lasts"].to_pylist() == [2_000_000]
    assert window.to_pylist() == [{"id": 1, "lasts": timedelta(seconds=2)}]
