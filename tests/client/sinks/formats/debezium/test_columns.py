"""Columns as Debezium's MySQL connector sends them, against the tables of its documentation."""

from __future__ import annotations

import io
import json
from base64 import b64decode
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from hypothesis import given, strategies as st

from databus.client.sinks.contract import Change
from databus.client.sinks.errors import SinkRefusedError
from databus.client.sinks.formats.debezium.envelope import DebeziumFormat
from databus.client.sinks.formats.message import AvroMessage, Message
from tests.client.sinks.changes import made, mysql_schema

WITH_SCHEMAS = DebeziumFormat(converter="json-schemas")
POINT = bytes.fromhex("000000000101000000000000000000f03f0000000000000040")


def change_of(sql_type: str, value: Any) -> Change:
    return replace(made("insert", 1, v=value), schema=mysql_schema(v=sql_type))


def sent(sql_type: str, value: Any, form: DebeziumFormat = WITH_SCHEMAS) -> tuple[Any, Any]:
    """Return the schema and the value of a column."""
    message = form(change_of(sql_type, value), 0)
    assert isinstance(message, Message)
    found = json.loads(message.value)
    if form.converter == "json":
        return None, found["after"]["v"]
    after = next(one for one in found["schema"]["fields"] if one["field"] == "after")
    schema = next(one for one in after["fields"] if one["field"] == "v")
    del schema["field"]
    return schema, found["payload"]["after"]["v"]


def plain(kind: str) -> dict[str, Any]:
    return {"type": kind, "optional": True}


def named(kind: str, name: str, **parameters: str) -> dict[str, Any]:
    held = {"parameters": parameters} if parameters else {}
    return {**plain(kind), "name": f"io.debezium.{name}", "version": 1, **held}


@pytest.mark.parametrize(
    ("sql_type", "value", "schema", "wanted"),
    [
        ("tinyint(4)", -5, plain("int16"), -5),
        ("tinyint(3) unsigned", 200, plain("int16"), 200),
        ("smallint(6)", -5, plain("int16"), -5),
        ("smallint(5) unsigned", 60000, plain("int32"), 60000),
        ("mediumint(9)", 5, plain("int32"), 5),
        ("int(11)", 5, plain("int32"), 5),
        ("int(10) unsigned", 4294967295, plain("int64"), 4294967295),
        ("bigint(20)", -5, plain("int64"), -5),
        ("bigint(20) unsigned", Decimal(5), plain("int64"), 5),
        ("float", 1.5, plain("float"), 1.5),
        ("double", 1.5, plain("double"), 1.5),
        ("varchar(20)", "héllo", plain("string"), "héllo"),
        ("longtext", "x", plain("string"), "x"),
        ("blob", b"\x00\xff", plain("bytes"), "AP8="),
        ("bit(1)", b"\x01", plain("boolean"), True),
        ("bit(1)", b"\x00", plain("boolean"), False),
        # Little-endian: the lowest bits are in the first byte.
        ("bit(12)", b"\x0f\x01", named("bytes", "data.Bits", length="12"), "AQ8="),
        ("json", '{"a": 1}', named("string", "data.Json"), '{"a": 1}'),
        ("year(4)", 2026, named("int32", "time.Year"), 2026),
        ("enum('a','it''s')", "a", named("string", "data.Enum", allowed="a,it's"), "a"),
        ("set('a','b')", "a,b", named("string", "data.EnumSet", allowed="a,b"), "a,b"),
        ("date", date(1970, 1, 2), named("int32", "time.Date"), 1),
        ("date", date(1969, 12, 31), named("int32", "time.Date"), -1),
        (
            "time(6)",
            timedelta(hours=17, minutes=51, seconds=4, microseconds=777777),
            named("int64", "time.MicroTime"),
            64264777777,
        ),
        ("time", timedelta(hours=-1), named("int64", "time.MicroTime"), -3600000000),
        # From "Temporal types" of its documentation.
        (
            "datetime",
            datetime(2018, 6, 20, 6, 37, 3),
            named("int64", "time.Timestamp"),
            1529476623000,
        ),
        (
            "datetime(3)",
            datetime(2018, 6, 20, 6, 37, 3, 5000),
            named("int64", "time.Timestamp"),
            1529476623005,
        ),
        (
            "datetime(6)",
            datetime(2018, 6, 20, 6, 37, 3, 5001),
            named("int64", "time.MicroTimestamp"),
            1529476623005001,
        ),
        (
            "timestamp",
            datetime(2018, 6, 20, 13, 37, 3, tzinfo=UTC),
            named("string", "time.ZonedTimestamp"),
            "2018-06-20T13:37:03Z",
        ),
        (
            "timestamp(6)",
            datetime(2018, 6, 20, 13, 37, 3, 500000, tzinfo=UTC),
            named("string", "time.ZonedTimestamp"),
            "2018-06-20T13:37:03.5Z",
        ),
        ("uuid", "123e4567-e89b-12d3-a456-426655440000", plain("string"), None),
    ],
)
def test_a_column_has_the_type_and_the_value_of_the_connector(
    sql_type: str, value: Any, schema: Any, wanted: Any
) -> None:
    wanted = value if sql_type == "uuid" else wanted
    assert sent(sql_type, value) == (schema, wanted)
    assert sent(sql_type, value, DebeziumFormat()) == (None, wanted)
    assert sent(sql_type, None) == (schema, None)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (Decimal("123.45"), "MDk="),  # 12345, as in Kafka Connect's documentation of Decimal
        (Decimal("-1.28"), "gA=="),
        (Decimal("0.00"), "AA=="),
    ],
)
def test_a_decimal_is_its_unscaled_number_with_its_scale_and_precision(
    value: Decimal, wanted: str
) -> None:
    schema, found = sent("decimal(10,2)", value)
    assert schema == {
        **plain("bytes"),
        "name": "org.apache.kafka.connect.data.Decimal",
        "version": 1,
        "parameters": {"scale": "2", "connect.decimal.precision": "10"},
    }
    assert found == wanted


def test_decimals_are_text_or_doubles_if_they_are_asked_for() -> None:
    value = Decimal("1.50")
    text, double = (replace(WITH_SCHEMAS, decimals=kind) for kind in ("string", "double"))
    assert sent("decimal(10,2)", value, text) == (plain("string"), "1.50")
    assert sent("decimal(10,2)", value, double) == (plain("double"), 1.5)


def test_a_point_has_its_coordinates_and_any_shape_its_wkb() -> None:
    wkb = "AQEAAAAAAAAAAADwPwAAAAAAAABA"  # of POINT(1 2)
    schema, found = sent("point", POINT)
    assert (schema["name"], found) == (
        "io.debezium.data.geometry.Point",
        {"x": 1.0, "y": 2.0, "wkb": wkb, "srid": None},
    )
    schema, found = sent("geometry", b"\xe6\x10\x00\x00" + POINT[4:])
    assert (schema["name"], found) == (
        "io.debezium.data.geometry.Geometry",
        {"wkb": wkb, "srid": 4326},
    )


def test_microseconds_are_never_lost() -> None:
    change = change_of("datetime(6)", datetime(2018, 6, 20, 6, 37, 3, 5001))
    with pytest.raises(SinkRefusedError, match="v has microseconds") as refused:
        DebeziumFormat(datetimes="millis")(change, 0)
    assert refused.value.change is change


def test_an_unsigned_number_that_is_no_int64_is_refused_where_there_are_schemas() -> None:
    largest = Decimal(2**64 - 1)
    assert sent("bigint(20) unsigned", largest, DebeziumFormat()) == (None, 2**64 - 1)
    with pytest.raises(SinkRefusedError, match="v = 18446744073709551615 is larger than an int64"):
        sent("bigint(20) unsigned", largest)


@given(st.integers(-(10**65) + 1, 10**65 - 1), st.integers(1, 30))
def test_a_precise_decimal_is_javas_shortest_number(digits: int, scale: int) -> None:
    value = Decimal((digits < 0, tuple(map(int, str(abs(digits)))), -scale))
    found = b64decode(sent(f"decimal(65,{scale})", value)[1])
    assert int.from_bytes(found, "big", signed=True) == digits
    shorter = found[1:]
    assert not shorter or int.from_bytes(shorter, "big", signed=True) != digits


@given(st.datetimes())
def test_moments_are_read_back(moment: datetime) -> None:
    _, micros = sent("datetime(6)", moment)
    assert datetime(1970, 1, 1) + timedelta(microseconds=micros) == moment
    _, told = sent("timestamp(6)", moment.replace(tzinfo=UTC))
    assert datetime.fromisoformat(told) == moment.replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("sql_type", "value", "wanted"),
    [
        ("decimal(10,2)", Decimal("123.45"), Decimal("123.45")),
        ("smallint(6)", -5, -5),
        ("bit(12)", b"\x0f\x01", b"\x01\x0f"),
        ("datetime(3)", datetime(2018, 6, 20, 6, 37, 3, 5000), 1529476623005),
        ("point", POINT, {"x": 1.0, "y": 2.0, "wkb": POINT[4:], "srid": None}),
        ("json", "null", "null"),
    ],
)
def test_the_same_values_are_in_avro(sql_type: str, value: Any, wanted: Any) -> None:
    message = DebeziumFormat(converter="avro")(change_of(sql_type, value), 0)
    assert isinstance(message, AvroMessage)
    assert message.value is not None
    schema = json.loads(message.value.schema)
    found: Any = fastavro.schemaless_reader(io.BytesIO(message.value.data), schema, None)
    assert found["after"]["v"] == wanted
