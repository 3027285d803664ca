"""Rows as Ptubes' columns: the text of each MySQL type, as its clients know it."""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from databus.relay.serving.columns.column_plan import AS_NEEDED
from databus.relay.serving.columns.texts import java_double, java_float, time_text
from databus.relay.serving.ptubes.rows.columns import RowColumns
from databus.relay.serving.ptubes.rows.value_texts import geometry_text
from databus.schemas.table import Column, Table
from databus.schemas.table_schema import avro_schema
from tests.relay.serving.ptubes.stock import fields_of, one

SHANGHAI = ZoneInfo("Asia/Shanghai")
NANOS = {"nanos": "123456000"}
POINT = bytes(4) + b"\x01" + struct.pack("<I2d", 1, 1.0, 2.5)

# type, value, sqlType, text, props
CASES: list[tuple[str, Any, int, str | None, dict[str, str]]] = [
    ("tinyint", -1, 4, "-1", {}),
    ("smallint unsigned", 65535, 4, "65535", {}),
    ("mediumint", 5, 4, "5", {}),
    ("year", 2026, 4, "2026", {}),
    ("int(10) unsigned", 4294967295, -5, "4294967295", {}),
    ("bigint", -(1 << 63), -5, str(-(1 << 63)), {}),
    ("bigint unsigned", Decimal((1 << 64) - 1), -5, str((1 << 64) - 1), {}),
    ("float", 1.100000023841858, 6, "1.1", {}),
    ("double", 1e10, 8, "1.0E10", {}),
    ("decimal(10,2)", Decimal("-1.50"), 3, "-1.50", {}),
    ("char(3)", "ä", 1, "ä", {}),
    ("varchar(9)", "x", 12, "x", {}),
    ("json", '{"a": 1}', 12, '{"a": 1}', {}),
    ("point", POINT, 12, "POINT (1 2.5)", {}),
    ("date", date(2026, 11, 28), 91, "1795795200000", {}),
    ("time(6)", 3_723_123_456, 92, "-25076877", NANOS),
    ("time", -1_000_000, 92, "-28801000", {"nanos": "0", "fmtDate": "-00:00:01"}),
    (
        "time(3)",
        -45_296_789_000,
        92,
        "-74096789",
        {"nanos": "211000000", "fmtDate": "-12:34:56.789"},
    ),
    ("datetime(6)", datetime(2026, 11, 28, 1, 2, 3, 123456), 93, "1795798923123", NANOS),
    ("timestamp", datetime(2026, 11, 28, tzinfo=UTC), 93, "1795824000000", {"nanos": "0"}),
    ("binary(2)", b"\xff\x00", -2, "\xff\x00", {}),
    ("varbinary(2)", b"a", -3, "a", {}),
    ("longblob", b"\x80", -4, "\x80", {}),
    ("bit(8)", b"\x05", -7, "\x05", {}),
    ("enum('a','it''s')", "it's", 1111, "2", {}),
    ("enum('a','b\\nc')", "b\nc", 1111, "2", {}),
    ("double", 5e-324, 8, "4.9E-324", {}),
    ("set('a','b','c')", "a,c", 1111, "5", {}),
    ("varchar(9)", None, 12, None, {}),
]


def columns_of(sql_type: str, value: Any, raw: dict[str, str] | None = None) -> dict[int, Any]:
    table = Table("shop.t", (Column("c", sql_type, 0, key_position=0),))
    columns = RowColumns(avro_schema(table), SHANGHAI)
    row = columns.codec.decode(columns.codec.encode({"c": value}))
    (entry,) = fields_of(columns.map_fields(2, row, raw or {}))[2]
    assert one(fields_of(entry), 1) == b"c"
    return fields_of(one(fields_of(entry), 2))


def props_of(column: dict[int, Any]) -> dict[str, str]:
    pairs = [fields_of(pair) for pair in column.get(7, [])]
    return {one(pair, 1).decode(): one(pair, 2).decode() for pair in pairs}


@pytest.mark.parametrize(("sql_type", "value", "number", "text", "props"), CASES)
def test_a_type_has_the_clients_number_text_and_props(
    sql_type: str, value: Any, number: int, text: str | None, props: dict[str, str]
) -> None:
    column = columns_of(sql_type, value)
    assert one(column, 2) & 0xFFFFFFFF == number & 0xFFFFFFFF
    assert one(column, 6) == (text is None)
    assert one(column, 8, b"").decode() == (text or "")
    assert props_of(column) == props
    assert one(column, 10).decode() == sql_type.partition("(")[0].split(" ")[0].upper()
    assert (one(column, 1), one(column, 4), one(column, 3)) == (0, 1, b"c")


def test_a_zero_date_has_its_own_text() -> None:
    column = columns_of("date", None, {"c": "0000-00-00"})
    assert one(column, 6) == 0
    assert props_of(column) == {"fmtDate": "0000-00-00"}


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (1.0, "1.0"),
        (100.0, "100.0"),
        (0.001, "0.001"),
        (0.00012, "1.2E-4"),
        (9999999.0, "9999999.0"),
        (1e7, "1.0E7"),
        (123456789.5, "1.234567895E8"),
        (1.5e300, "1.5E300"),
        (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
    ],
)
def test_doubles_are_written_as_java_writes_them(number: float, text: str) -> None:
    assert java_double(number) == text


def test_floats_have_the_shortest_text_that_means_them() -> None:
    numbers = [struct.unpack("f", struct.pack("f", one))[0] for one in (0.1, 3.4e38, 16777216.0)]
    assert list(map(java_float, numbers)) == ["0.1", "3.4E38", "1.6777216E7"]


def test_geometries_are_well_known_text_and_others_bytes() -> None:
    line = b"\x01" + struct.pack("<2I4d", 2, 2, 0, 0, 1.5, -1)
    assert geometry_text(bytes(4) + line) == "LINESTRING (0 0, 1.5 -1)"
    ring = struct.pack("<I6d", 3, 0, 0, 1, 0, 0, 0)
    polygon = b"\x01" + struct.pack("<2I", 3, 1) + ring
    assert geometry_text(bytes(4) + polygon) == "POLYGON ((0 0, 1 0, 0 0))"
    several = b"\x01" + struct.pack("<2I", 4, 2) + POINT[4:] * 2
    assert geometry_text(bytes(4) + several) == "MULTIPOINT ((1 2.5), (1 2.5))"
    mixed = b"\x01" + struct.pack("<2I", 7, 2) + POINT[4:] + line
    expected = "GEOMETRYCOLLECTION (POINT (1 2.5), LINESTRING (0 0, 1.5 -1))"
    assert geometry_text(bytes(4) + mixed) == expected
    for wrong in (
        b"",
        b"\xff" * 30,
        POINT[:-1],
        bytes(4) + b"\x01" + struct.pack("<2I", 2, 1 << 31),
    ):
        assert geometry_text(wrong) == wrong.decode("latin-1")


def test_times_beyond_a_day_are_written_as_mysql_writes_them() -> None:
    assert time_text(-(838 * 3600 + 59 * 60 + 59) * 1_000_000, AS_NEEDED) == "-838:59:59"
    assert time_text(25 * 3_600_000_000 + 5, AS_NEEDED) == "25:00:00.000005"
