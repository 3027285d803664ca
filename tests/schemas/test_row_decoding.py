"""The compiled decoder of rows gives what fastavro gives, and of damaged bytes the same errors."""

from __future__ import annotations

import gc
import json
import os
from datetime import date
from decimal import Decimal
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, strategies as st

from databus.schemas.avro_rows import RowCodec, row_codec
from databus.schemas.errors import DatabusError
from databus.schemas.rows import row_decoding
from databus.schemas.rows.row_decoding import plan_columns
from databus.schemas.table import Column, Table
from databus.schemas.table_schema import avro_schema
from tests.schemas.odd_schemas import odd_schemas
from tests.schemas.table_schemas import table_schemas
from tests.schemas.test_rows import MYSQL, SQLITE

_LONG = (1 << 63) - 1
_LOGICAL = {
    "int": ("date", "time-millis"),
    "long": (
        *("time-micros", "timestamp-millis", "timestamp-micros"),
        *("local-timestamp-millis", "local-timestamp-micros", "unheard-of"),
    ),
    "string": ("uuid",),
    "bytes": ("decimal",),
}
HAND_MADE = json.dumps(
    {
        "type": "record",
        "name": "r",
        "fields": [
            {"name": "kind", "type": {"type": "enum", "name": "kinds", "symbols": ["A", "B"]}},
            {"name": "again", "type": ["null", "kinds"]},
            {"name": "four", "type": {"type": "fixed", "name": "four", "size": 4}},
            {
                "name": "amount",
                "type": {
                    **{"type": "fixed", "name": "amount", "size": 3},
                    **{"logicalType": "decimal", "precision": 6, "scale": 2},
                },
            },
            {"name": "is", "type": ["boolean", "null", "long", "string"]},
            *(
                {
                    "name": f"{kind}_{logical.replace('-', '_')}",
                    "type": {"type": kind, "logicalType": logical, "precision": 5, "scale": 2},
                }
                for kind, names in _LOGICAL.items()
                for logical in names
            ),
        ],
    }
)


def outcome(codec: RowCodec, data: bytes, *, is_compiled: bool) -> str:
    """Return the row with the types of its values, or the error."""
    try:
        return repr(codec.decode_from(data, 0) if is_compiled else codec._read(data))
    except DatabusError as error:
        return f"{type(error).__name__}: {error}"


def check(codec: RowCodec, data: bytes) -> None:
    compiled = outcome(codec, data, is_compiled=True)
    assert compiled == outcome(codec, data, is_compiled=False), data.hex()


def zigzag(number: int) -> bytes:
    number = (number << 1) ^ (number >> 63)
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


@pytest.mark.parametrize("nullable", [False, True])
@pytest.mark.parametrize(
    ("dialect", "sql_type"), [("mysql", t) for t in MYSQL] + [("sqlite", t) for t in SQLITE]
)
def test_each_type_is_decoded_without_fastavro(dialect: str, sql_type: str, nullable: bool) -> None:
    values = (MYSQL if dialect == "mysql" else SQLITE)[sql_type]
    column = Column("c", sql_type, 0, nullable)
    codec = RowCodec(avro_schema(Table("shop.t", (column,), dialect)))

    @given(values | st.none() if nullable else values)
    def same(value: Any) -> None:
        data = codec.encode({"c": value})
        decode = row_decoding.decode_from(codec._schema, ("c",), lambda _: pytest.fail("left"))
        assert repr(decode(b"before" + data, 6)) == repr(codec._read(data))

    same()


@given(st.integers(-_LONG - 1, _LONG))
def test_numbers_of_each_logical_type_are_the_same(number: int) -> None:
    for kind in ("int", "long"):
        for logical in _LOGICAL[kind]:
            field = {"name": "f", "type": {"type": kind, "logicalType": logical}}
            codec = row_codec(json.dumps({"type": "record", "name": "r", "fields": [field]}))
            check(codec, zigzag(number))


@given(st.binary(max_size=20), st.integers(1, 40), st.integers(0, 12))
def test_decimals_of_any_precision_are_the_same(data: bytes, precision: int, scale: int) -> None:
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": precision}
    decimal["scale"] = min(scale, precision)
    fields = [{"name": "f", "type": decimal}]
    codec = RowCodec(json.dumps({"type": "record", "name": "r", "fields": fields}))
    check(codec, zigzag(len(data)) + data)


def test_a_decimal_of_no_amount_keeps_its_places() -> None:
    codec = RowCodec(avro_schema(Table("t", (Column("c", "decimal(10,2)", 0, False),))))
    assert str(codec.decode(codec.encode({"c": Decimal("0.00")}))["c"]) == "0.00"


def test_schemas_by_hand_are_covered_unless_they_nest() -> None:
    assert plan_columns(RowCodec(HAND_MADE)._schema) is not None
    nested = {"type": "record", "name": "r", "fields": []}
    for inner in ({**nested, "name": "in"}, {"type": "array", "items": "int"}, ["null", "r"]):
        text = json.dumps({**nested, "fields": [{"name": "f", "type": inner}]})
        assert plan_columns(RowCodec(text)._schema) is None


def test_a_nested_row_is_decoded_by_fastavro() -> None:
    inner = {"type": "record", "name": "in", "fields": [{"name": "x", "type": "int"}]}
    fields = [{"name": "f", "type": inner}, {"name": "g", "type": {"type": "map", "values": "int"}}]
    codec = RowCodec(json.dumps({"type": "record", "name": "r", "fields": fields}))
    row = {"f": {"x": 1}, "g": {"a": 2}}
    assert codec.decode(codec.encode(row)) == row
    check(codec, b"\x02\x00\x00")


def test_without_the_compiled_module_rows_are_the_same() -> None:
    text = avro_schema(Table("t", (Column("a b", "int", 0, False), Column("c", "text", 1))))
    row = {"a b": 1, "c": "é"}
    data = RowCodec(text).encode(row)
    with patch.object(row_decoding, "is_compiled", False):
        codec = RowCodec(text)
    assert codec.decode(data) == codec.decode_from(b"xx" + data, 2) == row


def test_an_offset_outside_the_bytes_is_an_error() -> None:
    codec = RowCodec(HAND_MADE)
    for offset in (-1, 7):
        with pytest.raises(DatabusError):
            codec.decode_from(b"123", offset)


def test_rows_cost_the_garbage_collector_nothing() -> None:
    codec = RowCodec(avro_schema(Table("t", (Column("a", "int", 0), Column("b", "datetime", 1)))))
    row = codec.decode(codec.encode({"a": 7, "b": None}))
    assert not gc.is_tracked(row)


def test_dates_are_those_of_python_for_all_of_400_years_and_at_both_ends() -> None:
    field = {"name": "f", "type": {"type": "int", "logicalType": "date"}}
    text = json.dumps({"type": "record", "name": "r", "fields": [field]})
    decode = RowCodec(text).decode_from
    epoch, last = date(1970, 1, 1).toordinal(), date.max.toordinal()
    for number in (
        *range(1, 400),
        *range(700_000, 700_000 + 146_098),
        *range(last - 400, last + 1),
    ):
        assert decode(zigzag(number - epoch), 0) == {"f": date.fromordinal(number)}


@pytest.mark.parametrize("count", [1, 2, 5, 6, 30, 31, 400])
def test_values_have_their_names_in_tables_of_any_width(count: int) -> None:
    names = [f"c{number}" for number in range(count)]
    fields = [{"name": name, "type": ["null", "int"]} for name in names]
    codec = RowCodec(json.dumps({"type": "record", "name": "r", "fields": fields}))
    rows = [{name: at if at % 3 else None for at, name in enumerate(names, n)} for n in range(3)]
    decoded = [codec.decode(codec.encode(row)) for row in rows]
    assert [[*row.items()] for row in decoded] == [[*row.items()] for row in rows]


def test_where_no_place_is_known_a_value_is_put_by_its_name() -> None:
    codec = RowCodec(avro_schema(Table("t", (Column("a", "int", 0, False),))))
    plans = plan_columns(codec._schema)
    assert plans is not None
    decoder = row_decoding.RowDecoder(("a", "a"), plans * 2, codec._read)
    assert decoder.decode(codec.encode({"a": 1}) + codec.encode({"a": 2})) == {"a": 2}


def test_what_is_done_to_a_row_is_not_done_to_the_next_one() -> None:
    codec = RowCodec(avro_schema(Table("t", (Column("a", "int", 0), Column("b", "text", 1)))))
    data = codec.encode({"a": 1, "b": "x"})
    first = codec.decode(data)
    first |= {"a": [first], "new": 2}
    del first["b"]
    assert gc.is_tracked(first)
    assert codec.decode(data) == {"a": 1, "b": "x"}


def test_damaged_rows_are_the_same_rows_or_the_same_errors() -> None:
    seed = int(os.environ.get("DATABUS_SEED", Random().randrange(1 << 32)))
    print(f"seed {seed}; repeat with DATABUS_SEED={seed}")
    chosen = Random(seed)
    texts = [HAND_MADE, *table_schemas(), *odd_schemas()]
    codecs = [codec for text in texts if (codec := _covered(text)) is not None]
    assert len(codecs) > 200
    for _ in range(20_000):
        codec = chosen.choice(codecs)
        check(codec, _damaged(_bytes_for(codec, chosen), chosen))


def _covered(text: str) -> RowCodec | None:
    try:
        codec = row_codec(text)
    except DatabusError:
        return None
    return None if plan_columns(codec._schema) is None else codec


def _bytes_for(codec: RowCodec, chosen: Random) -> bytes:
    """Return bytes that are often a row: a short value for each column."""
    parts = []
    for _ in codec.written_columns:
        size = chosen.choice((0, 1, 1, 2, 4, 8, 9))
        parts += [
            zigzag(chosen.choice((0, 1))) if chosen.random() < 0.5 else b"",
            zigzag(chosen.choice((size, chosen.randrange(-_LONG, _LONG)))),
            chosen.choice((b"a", b"\0", b"\xc3\xa9", bytes([chosen.randrange(256)]))) * size,
        ]
    return b"".join(parts)


def _damaged(data: bytes, chosen: Random) -> bytes:
    kind = chosen.randrange(4)
    place = chosen.randrange(len(data) + 1)
    if kind == 0:
        return data[:place]
    if kind == 1:
        return data[:place] + chosen.randbytes(3) + data[place:]
    if kind == 2:
        return data[:place] + b"\xff" * 11 + data[place:]
    return data
