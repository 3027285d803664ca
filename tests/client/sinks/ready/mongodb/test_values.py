"""The sink `mongodb`: values and names from hell are documents that are read back equal."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from bson import Decimal128, Int64

from databus.client.sinks.errors import SinkRefusedError
from databus.client.sinks.ready.mongodb.values import fraction_digits, json_document
from tests.client.sinks.ready.mongodb.conftest import Target
from tests.client.sinks.ready.sql.targets import Source

pytestmark = pytest.mark.mongodb

MOMENT = datetime(2026, 2, 28, 23, 59, 59, 999999)
MILLISECOND = datetime(2026, 2, 28, 23, 59, 59, 999000)
DAY = datetime(1000, 1, 1, tzinfo=UTC)
# By SQL type: values, and what is read back where that is another value.
VALUES: dict[str, list[tuple[Any, Any]]] = {
    "tinyint": [(-128, -128), (127, 127)],
    "bigint": [(-(1 << 63), -(1 << 63)), ((1 << 63) - 1, (1 << 63) - 1)],
    "bigint unsigned": [(Decimal((1 << 64) - 1), Decimal128("18446744073709551615"))],
    "double": [(1.5e300, 1.5e300), (-0.0, 0.0), (5e-324, 5e-324)],
    "float": [(0.1, 0.1)],
    "decimal(65,30)": [
        (Decimal("-1." + "9" * 30), Decimal128("-1." + "9" * 30)),
        (Decimal("0E-30"), Decimal128("0E-30")),
    ],
    "decimal(34,2)": [(Decimal("9" * 32 + ".99"), Decimal128("9" * 32 + ".99"))],
    "date": [(date(1000, 1, 1), DAY), (date(9999, 12, 31), datetime(9999, 12, 31, tzinfo=UTC))],
    "datetime": [(datetime(1000, 1, 1), DAY)],
    "datetime(3)": [(MILLISECOND, MILLISECOND.replace(tzinfo=UTC))],
    "datetime(6)": [
        (MOMENT, "2026-02-28T23:59:59.999999"),
        (datetime(1000, 1, 1), "1000-01-01T00:00:00.000000"),
    ],
    "timestamp": [(datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC))],
    "timestamp(6)": [(MOMENT.replace(tzinfo=UTC), "2026-02-28T23:59:59.999999+00:00")],
    "time(6)": [
        (timedelta(hours=838, minutes=59, seconds=59), "838:59:59"),
        (-timedelta(seconds=1, microseconds=1), "-00:00:01.000001"),
    ],
    "varchar(99)": [(one, one) for one in ("", " a ", "$x.$y", "a\0b", "\U0001f600", "\r\n\t\x01")],
    "longtext": [("x" * (1 << 20), "x" * (1 << 20))],
    "json": [
        ('{"a": {"$date": [1, 0.1, null]}, "": true, "x.y": "z"}',
         {"a": {"$date": [1, 0.1, None]}, "": True, "x.y": "z"}),
        ("[18446744073709551615, 0.10000000000000000000000000001]",
         [Decimal128("18446744073709551615"), Decimal128("0.10000000000000000000000000001")]),
        ("null", None),
        ('"text"', "text"),
    ],
    "enum('a','b')": [("a", "a")],
    "bit(64)": [(b"\xff" * 8, b"\xff" * 8)],
    "varbinary(99)": [(b"", b""), (b"\0\xff'\\%", b"\0\xff'\\%")],
    "longblob": [(bytes(range(256)) * 4096, bytes(range(256)) * 4096)],
}  # fmt: skip


@pytest.mark.parametrize("kind", VALUES)
def test_each_value_is_read_back_equal(target: Target, kind: str) -> None:
    source = Source({"id": "int", "v": kind})
    values = [*VALUES[kind], (None, None)]
    target.put(*(source.insert(at, value) for at, (value, _) in enumerate(values)))
    found = {key: one["v"] for key, one in target.documents().items()}
    assert found == {at: wanted for at, (_, wanted) in enumerate(values)}


KEYS: dict[str, list[Any]] = {
    "bigint": [1, -(1 << 63)],
    "bigint unsigned": [Decimal(1), Decimal((1 << 64) - 1)],
    "double": [0.5, -1e300],
    "varchar(99)": ["a", "A", "a ", "", "$x", "ä", "\0", "x" * 3000],
    "varbinary(99)": [b"a", b"A", b"\0", b""],
    "decimal(30,10)": [Decimal("1.5"), Decimal("-3")],
    "date": [date(2000, 1, 1)],
    "datetime(6)": [MOMENT, datetime(2000, 1, 1)],
}


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("kind", KEYS)
def test_a_key_of_any_type_names_its_document(target: Target, kind: str, columns: int) -> None:
    source = Source({"k": kind, "n": "int", "v": "int"}, keys=columns)
    keys = list(enumerate(KEYS[kind]))
    target.put(*(source.insert(key, at, 1) for at, key in keys))
    target.put(*(source.update(key, at, 7, scn=2) for at, key in keys))
    assert [(one["n"], one["v"]) for one in target.documents().values()] == [
        (at, 7) for at, _ in keys
    ]
    target.put(*(source.delete(key, at, 7, scn=3) for at, key in keys[1:]))
    assert [one["n"] for one in target.documents().values()] == [0]


def test_whole_numbers_are_of_64_bits_and_a_key_of_several_columns_is_a_document(
    target: Target,
) -> None:
    source = Source({"b": "int", "a": "int"}, keys=2)
    target.put(source.insert(1, 2))
    query = {"_id": {"a": 2, "b": 1}, "a": {"$type": "long"}, "databus_scn": {"$type": "long"}}
    assert target.client.shop.t.count_documents(query) == 1
    other_order = Source({"a": "int", "b": "int"}, keys=2)
    target.put(other_order.update(2, 1, scn=2))
    assert target.client.shop.t.count_documents({}) == 1


NAMES = ["select", "$x", "a.b", ".", "$", "", "ä", "'", "x:y", "Order", "n" * 60, "$$ROOT"]


def test_names_from_hell_are_fields(target: Target) -> None:
    source = Source({"id": "int"} | dict.fromkeys(NAMES, "varchar(20)"), "shöp.t%s or:der")
    values = [f"${at}" for at in range(len(NAMES))]
    target.put(source.insert(1, *values))
    wanted = {"id": 1, **dict(zip(NAMES, values, strict=True)), "databus_scn": 1}
    assert target.documents("t%s or:der", "shöp") == {1: wanted}


@pytest.mark.parametrize(
    ("columns", "row", "options", "problem"),
    [
        ({"v": "decimal(65,0)"}, Decimal("1" * 35), {}, "column v: a number of 35 digits"),
        ({"v": "json"}, '{"a": 1, "a": 2}', {}, "column v: its JSON has a name twice"),
        ({"v": "json"}, "{", {}, "column v: Expecting"),
        ({"v": "json"}, "NaN", {}, "column v: NaN is no JSON"),
        ({"v": "json"}, "[" * 100 + "]" * 100, {}, "its JSON has more than 99 levels"),
        ({"v": "json"}, "[" * 100_000, {}, "column v: its JSON has more than 99 levels"),
        ({"v": "json"}, '{"a\\u0000b": 1}', {}, "Key names must not contain the NULL"),
        ({"v\0": "int"}, 1, {}, "Key names must not contain the NULL"),
        ({"_id": "int"}, 7, {}, "a column has the name _id: `rename`"),
        ({"databus_scn": "int"}, 7, {}, "a column has the name of scn_field, databus_scn"),
        ({"v": "varchar(9)"}, "\ud800", {}, "surrogates not allowed"),
        ({"v": "longtext"}, "x" * (16 << 20), {}, "its document has 167772.. bytes, of at most"),
        ({"v": "int"}, 1, {"database": "ad{table}", "collection": "x"}, "'adt'|None"),
        ({"v": "int"}, 1, {"database": "Admin"}, "the database Admin is the server's own"),
        ({"v": "int"}, 1, {"database": "a b"}, "'a b' is no name of a database"),
        ({"v": "int"}, 1, {"database": "x" * 64}, "is no name of a database"),
        ({"v": "int"}, 1, {"collection": "system.{table}"}, "is no name of a collection"),
        ({"v": "int"}, 1, {"collection": "a$b"}, "is no name of a collection"),
        ({"v": "int"}, 1, {"collection": "x" * 251}, "is no name of a collection"),
    ],
)  # fmt: skip
def test_what_is_no_document_is_a_refused_row(
    target: Target, columns: dict[str, str], row: Any, options: dict[str, Any], problem: str
) -> None:
    change = Source({"id": "int", **columns}).insert(1, row)
    if "None" in problem:
        target.put(change, **options)  # a name that only looks like one of the server's
        return
    with pytest.raises(SinkRefusedError, match=problem) as refused:
        target.put(change, **options)
    assert refused.value.change is change
    assert target.documents() == {}


def test_a_key_column_with_the_name_id_is_the_id(target: Target) -> None:
    target.put(Source({"_id": "varchar(9)", "v": "int"}).insert("a", 1))
    assert target.documents() == {"a": {"v": 1, "databus_scn": 1}}


def test_what_only_the_server_refuses_is_a_refused_row(target: Target) -> None:
    bad = Source({"$a": "int", "b": "int"}, keys=2).insert(1, 2)
    good = Source({"id": "int"}).insert(5)
    with pytest.raises(SinkRefusedError, match=r"'\$'-prefixed fields.*\(code 52\)") as refused:
        target.put(good, bad)
    assert refused.value.change is bad
    assert list(target.documents()) == [5]


def test_json_of_the_most_levels_is_a_document(target: Target) -> None:
    deepest = "[" * 99 + "]" * 99
    target.put(Source({"id": "int", "v": "json"}).insert(1, deepest))
    assert json.dumps(target.documents()[1]["v"]) == deepest


def test_a_document_of_the_largest_size_is_written(target: Target) -> None:
    source = Source({"id": "int", "v": "longtext"})
    room = (16 << 20) - len("\0" * 4 + "\x12_id\0" + "\0" * 8 + "\x12id\0" + "\0" * 8)
    room -= len("\x02v\0" + "\0" * 5 + "\x12databus_scn\0" + "\0" * 8 + "\0")
    target.put(source.insert(1, "x" * room))
    assert len(target.documents()[1]["v"]) == room
    with pytest.raises(SinkRefusedError, match=r"its document has 16777217 bytes"):
        target.put(source.insert(2, "x" * (room + 1)))


def test_options_choose_other_types(target: Target) -> None:
    columns = {"id": "int", "m": "datetime(6)", "d": "date", "n": "decimal(65,2)", "j": "json"}
    row = (1, MOMENT, date(2000, 1, 1), Decimal("1" * 60 + ".50"), '{"b":1, "a":1}')
    texts = {"dates": "text", "decimals": "text", "json_columns": "text"}
    target.put(Source(columns).insert(*row), **texts)
    wanted = ["2026-02-28T23:59:59.999999", "2000-01-01", "1" * 60 + ".50", '{"b":1, "a":1}']
    assert list(target.documents()[1].values())[1:5] == wanted
    target.put(Source(columns).insert(*row), dates="milliseconds", decimals="text")
    assert target.documents()[1]["m"] == MILLISECOND.replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("sql_type", "digits"),
    [
        ("datetime", 0),
        ("datetime(3)", 3),
        ("timestamp", 0),
        ("timestamp(6)", 6),
        ("timestamp without time zone", 6),
        ("timestamp(0) with time zone", 0),
        ("", 6),
    ],
)
def test_a_type_says_how_many_digits_its_seconds_have(sql_type: str, digits: int) -> None:
    assert fraction_digits(sql_type) == digits


def test_numbers_of_json_keep_all_digits() -> None:
    found = json_document("[1, 1.0, 1e2, -0.1, 123456789012345678.25]")
    assert found == [1, 1.0, 100.0, -0.1, Decimal128("123456789012345678.25")]
    assert type(found[0]) is Int64
    with pytest.raises(ValueError, match="35 digits"):
        json_document("1" * 35)
