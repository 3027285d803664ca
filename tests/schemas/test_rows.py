"""Rows to Avro bytes and back, for each SQL type."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from hashlib import md5
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, strategies as st

from databus.schemas.avro_rows import RowCodec, row_codec, schema_id
from databus.schemas.errors import IncompatibleSchemaError, ProtocolError, RowError, SchemaError
from databus.schemas.table import Column, Table
from databus.schemas.table_schema import avro_schema


def ints(bits: int, signed: bool = True) -> st.SearchStrategy[int]:
    return (
        st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)
        if signed
        else st.integers(0, 2**bits - 1)
    )


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    largest = 10**precision - 1
    return st.integers(-largest, largest).map(lambda n: Decimal(n).scaleb(-scale))


TEXT = st.text(max_size=20)
BYTES = st.binary(max_size=20)
MYSQL = {
    "tinyint": ints(8),
    "smallint unsigned": ints(16, signed=False),
    "int": ints(32),
    "int unsigned": ints(32, signed=False),
    "bigint": ints(64),
    "bigint unsigned": ints(64, signed=False).map(Decimal),
    "decimal(10,2)": decimals(10, 2),
    "decimal(65,30)": st.integers(-(10**28), 10**28).map(lambda n: Decimal(n) / 10**10),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "date": st.dates(),
    "time(6)": st.integers(-838 * 3_600_000_000, 838 * 3_600_000_000),
    "datetime(6)": st.datetimes(),
    "timestamp(6)": st.datetimes(timezones=st.just(UTC)),
    "year": st.integers(1901, 2155),
    "bit(12)": st.binary(min_size=2, max_size=2),
    "enum('a','b')": st.sampled_from("ab"),
    "set('a','b')": st.sampled_from(["", "a", "a,b"]),
    "json": TEXT,
    "varchar(20)": TEXT,
    "uuid": st.uuids().map(str),
    "blob": BYTES,
    "point": BYTES,
}
SQLITE = {
    "INTEGER": ints(64),
    "REAL": st.floats(allow_nan=False),
    "TEXT": TEXT,
    "BLOB": BYTES,
    "NUMERIC": st.none() | ints(64) | st.floats(allow_nan=False) | TEXT | BYTES,
}


TWO_COLUMNS = avro_schema(
    Table(
        "shop.t",
        (Column("a", "int", 0, nullable=False), Column("b", "int", 1, nullable=False)),
    )
)


def codec_for(sql_type: str, nullable: bool, dialect: str = "mysql") -> RowCodec:
    column = Column("c", sql_type, 0, nullable)
    return row_codec(avro_schema(Table("shop.t", (column,), dialect)))


@pytest.mark.parametrize("nullable", [False, True])
@pytest.mark.parametrize(
    ("dialect", "sql_type"), [("mysql", t) for t in MYSQL] + [("sqlite", t) for t in SQLITE]
)
def test_each_type_comes_back_as_it_was(dialect: str, sql_type: str, nullable: bool) -> None:
    values = (MYSQL if dialect == "mysql" else SQLITE)[sql_type]
    codec = codec_for(sql_type, nullable, dialect)

    @given(values | st.none() if nullable else values)
    def check(value: Any) -> None:
        (back,) = codec.decode(codec.encode({"c": value})).values()
        assert back == value
        assert type(back) is type(value)

    check()


def test_a_double_that_is_no_number_comes_back() -> None:
    codec = codec_for("double", nullable=True)
    assert math.isnan(codec.decode(codec.encode({"c": math.nan}))["c"])


def test_the_bytes_are_those_of_the_avro_specification() -> None:
    table = Table(
        "shop.t",
        (
            Column("id", "bigint", 0, False, 0),
            Column("name", "varchar(9)", 1),
            Column("score", "double", 2, False),
            Column("price", "decimal(5,2)", 3, False),
            Column("at", "timestamp", 4),
        ),
    )
    row = {
        "id": -64,
        "name": "hi",
        "score": 0.5,
        "price": Decimal("1.28"),
        "at": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
    }
    expected = (
        bytes([127])  # zigzag of -64
        + bytes([2, 4])
        + b"hi"  # branch 1, length 2
        + struct.pack("<d", 0.5)
        + bytes([4, 0, 128])  # length 2, 128 in two's complement
        + bytes([2, 0x80, 0x89, 0x7A])  # branch 1, zigzag of 1,000,000
    )
    codec = RowCodec(avro_schema(table))
    assert codec.encode(row) == expected
    assert codec.decode(expected) == row


@pytest.mark.parametrize(
    ("sql_type", "value"),
    [
        ("int", 1 << 31),
        ("int", 1.5),
        ("int", "12"),
        ("int", None),
        ("int", True),
        ("bigint", 1 << 63),
        ("bigint", 1 << 70),
        ("bigint", Decimal(5)),
        ("bigint unsigned", 5),
        ("decimal(4,2)", Decimal("1.234")),
        ("decimal(4,2)", Decimal("123.45")),
        ("decimal(4,2)", Decimal("NaN")),
        ("decimal(4,2)", 5),
        ("double", "x"),
        ("double", None),
        ("float", Decimal(1)),
        ("varchar(5)", 5),
        ("varchar(5)", b"x"),
        ("varchar(5)", "\udc80"),
        ("blob", "text"),
        ("date", "today"),
        ("datetime", datetime(2024, 1, 1, tzinfo=UTC)),
        ("timestamp", datetime(2024, 1, 1)),
        ("timestamp", 5),
        ("time", 1.5),
    ],
)
@pytest.mark.parametrize("nullable", [False, True])
def test_a_value_that_does_not_fit_names_its_column(
    sql_type: str, value: Any, nullable: bool
) -> None:
    if nullable and value is None:
        value = object()
    table = Table(
        "shop.t", (Column("id", "int", 0, False, 0), Column("c d", sql_type, 1, nullable))
    )
    with pytest.raises(RowError, match=r"shop\.t, column 'c d'") as caught:
        row_codec(avro_schema(table)).encode({"id": 1, "c d": value})
    assert caught.value.column == "c d"


@given(
    st.dictionaries(
        st.sampled_from(["id", "c"]),
        st.none() | ints(80) | st.floats() | TEXT | BYTES | st.decimals() | st.datetimes(),
    )
)
def test_whatever_the_row_holds_only_row_errors_come_out(row: dict[str, Any]) -> None:
    table = Table("shop.t", (Column("id", "int", 0, False, 0), Column("c", "decimal(6,3)", 1)))
    codec = row_codec(avro_schema(table))
    try:
        data = codec.encode(row)
    except RowError:
        return
    assert codec.decode(data) == row


def test_a_column_missing_or_too_many_is_refused_and_not_taken_for_null() -> None:
    codec = codec_for("int", nullable=True)
    with pytest.raises(RowError, match="'c': is not in the row"):
        codec.encode({})
    with pytest.raises(RowError, match="'d': is in the row and not in"):
        codec.encode({"c": 1, "d": 2})


@pytest.mark.parametrize(
    ("dialect", "sql_type"), [("mysql", t) for t in MYSQL] + [("sqlite", t) for t in SQLITE]
)
@pytest.mark.parametrize("nullable", [True, False])
def test_an_absent_column_is_null_in_the_bytes_or_else_zero(
    dialect: str, sql_type: str, nullable: bool
) -> None:
    codec = codec_for(sql_type, nullable, dialect)
    encoded = codec.encode({}, [0])
    assert codec.decode(encoded, [0]) == {}
    (value,) = codec.decode(encoded).values()
    avro_type = json.loads(codec.text)["fields"][0]["type"]
    if isinstance(avro_type, list):
        assert value is None
    elif isinstance(value, date):
        assert value.toordinal() == date(1970, 1, 1).toordinal()
    else:
        assert not value
    assert encoded == (b"\0" if isinstance(avro_type, list) else zero_bytes(avro_type))


def zero_bytes(avro_type: Any) -> bytes:
    """Return the zero of a type in Avro's bytes; a decimal's has one byte of digits."""
    if isinstance(avro_type, dict) and avro_type["logicalType"] == "decimal":
        return b"\2\0"
    return bytes({"float": 4, "double": 8}.get(str(avro_type), 1))


def test_a_column_that_is_missing_and_not_said_to_be_absent_is_refused() -> None:
    codec = RowCodec(TWO_COLUMNS)
    with pytest.raises(RowError, match="'b': is not in the row"):
        codec.encode({}, [0])
    with pytest.raises(RowError, match="'a': is said to be absent, and is in the row"):
        codec.encode({"a": 1, "b": 2}, [0])
    for position in (-1, 2):
        with pytest.raises(RowError, match="there is none"):
            codec.encode({"a": 1}, [position])
        with pytest.raises(ProtocolError, match="there is none"):
            codec.decode(codec.encode({"a": 1, "b": 2}), [position])


def test_positions_of_absent_columns_are_those_of_the_writer() -> None:
    definition = json.loads(TWO_COLUMNS)
    definition["fields"].reverse()
    reader = RowCodec.resolving(TWO_COLUMNS, json.dumps(definition))
    written = RowCodec(TWO_COLUMNS).encode({"b": 2}, [0])
    assert reader.decode(written, [0]) == {"b": 2}
    del definition["fields"][1]
    assert RowCodec.resolving(TWO_COLUMNS, json.dumps(definition)).decode(written, [0]) == {"b": 2}


def test_rows_go_by_the_names_of_the_columns() -> None:
    table = Table(
        "shop.t", (Column("a b", "int", 0), Column("a-b", "int", 1), Column("x", "int", 2))
    )
    codec = RowCodec(avro_schema(table))
    row = {"a b": 1, "a-b": 2, "x": 3}
    assert codec.decode(codec.encode(row)) == row
    assert codec.source == "shop.t"


def test_any_mapping_is_a_row() -> None:
    codec = codec_for("int", nullable=False)
    row: Mapping[str, Any] = MappingProxyType({"c": 5})
    assert codec.decode(codec.encode(row)) == {"c": 5}


def test_a_timestamp_of_another_zone_is_the_same_moment() -> None:
    codec = codec_for("timestamp", nullable=False)
    moment = datetime(2024, 1, 1, 3, tzinfo=timezone(timedelta(hours=3)))
    assert codec.decode(codec.encode({"c": moment}))["c"] == datetime(2024, 1, 1, tzinfo=UTC)


def test_a_hand_made_schema_keeps_its_times_of_day() -> None:
    text = json.dumps(
        {
            "type": "record",
            "name": "r",
            "fields": [{"name": "t", "type": {"type": "long", "logicalType": "time-micros"}}],
        }
    )
    codec = RowCodec(text)
    time_of_day = datetime(2024, 1, 1, 3, 4, 5, 6).time()
    assert codec.decode(codec.encode({"t": time_of_day})) == {"t": time_of_day}
    assert codec.source == "r"


def test_a_reader_gets_the_rows_of_an_older_writer_in_its_own_shape() -> None:
    old = Table("shop.t", (Column("id", "int", 0, False, 0), Column("gone", "text", 1)))
    new = Table("shop.t", (Column("id", "bigint", 0, False, 0), Column("novel", "text", 1)))
    data = RowCodec(avro_schema(old)).encode({"id": 1, "gone": "x"})
    codec = RowCodec.resolving(avro_schema(old), avro_schema(new))
    assert codec.decode(data) == {"id": 1, "novel": None}


def test_schemas_that_cannot_be_resolved_are_incompatible() -> None:
    old = Table("shop.t", (Column("id", "int", 0, False, 0),))
    new = Table("shop.t", (Column("id", "text", 0, False, 0),))
    data = RowCodec(avro_schema(old)).encode({"id": 1})
    with pytest.raises(IncompatibleSchemaError):
        RowCodec.resolving(avro_schema(old), avro_schema(new)).decode(data)


EVERY_TYPE = Table(
    "shop.all", tuple(Column(f"c{at}", sql_type, at) for at, sql_type in enumerate(MYSQL))
)


@given(st.binary(max_size=120))
def test_random_bytes_are_a_row_or_a_protocol_error(data: bytes) -> None:
    codec = row_codec(avro_schema(EVERY_TYPE))
    try:
        row = codec.decode(data)
    except ProtocolError:
        return
    assert row.keys() == {column.name for column in EVERY_TYPE.columns}


@given(st.data())
def test_a_cut_row_is_a_protocol_error(data: st.DataObject) -> None:
    codec = row_codec(avro_schema(EVERY_TYPE))
    row = {f"c{at}": data.draw(values) for at, values in enumerate(MYSQL.values())}
    encoded = codec.encode(row)
    assert codec.decode(encoded) == row
    for wrong in (encoded[: data.draw(st.integers(0, len(encoded) - 1))], encoded + b"\0"):
        with pytest.raises(ProtocolError):
            codec.decode(wrong)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '"int"',
        '{"type": "record"}',
        '{"type": "record", "name": "r"}',
        '{"type": "record", "name": "r", "fields": 3}',
        '{"type": "record", "name": "r", "fields": [3]}',
        '{"type": "record", "name": "r", "fields": [{"name": "a"}]}',
        '{"type": "record", "name": "r", "fields": [{"name": "a", "type": "novel"}]}',
    ],
)
def test_a_text_that_is_no_record_schema_is_refused(text: str) -> None:
    with pytest.raises(SchemaError):
        RowCodec(text)


def test_the_id_of_a_schema_is_the_md5_of_its_normal_form() -> None:
    text = '{ "type": "record", "name": "R", "fields": [], "é": "\\u00e9", "number": 1 }'
    form = '{"type":"record","name":"R","fields":[],"é":"é"}'
    assert schema_id(text) == schema_id(form) == md5(form.encode()).digest()


def test_a_text_that_avro_cannot_read_has_the_md5_of_itself_as_id() -> None:
    assert schema_id("é") == md5("é".encode()).digest()
    assert schema_id("").hex() == "d41d8cd98f00b204e9800998ecf8427e"


def test_a_date_is_not_mistaken_for_a_moment() -> None:
    codec = codec_for("date", nullable=False)
    assert codec.decode(codec.encode({"c": date(1000, 1, 1)})) == {"c": date(1000, 1, 1)}
