"""The sink `clickhouse`: values and names from hell, and errors that say which row is at fault."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from struct import pack
from typing import Any

import pytest

from databus.client.sinks.errors import SinkError, SinkRefusedError
from databus.client.sinks.ready.clickhouse.names import identifier, listed, literal
from tests.client.sinks.clickhouse_server import PrivateClickHouse
from tests.client.sinks.ready.clickhouse.targets import columns, rows, write
from tests.client.sinks.ready.sql.targets import Source

pytest_plugins = ["tests.client.sinks.clickhouse_fixtures"]

WIDE = Decimal("1" * 35 + "." + "9" * 30)
LAST = datetime(2299, 12, 31, 23, 59, 59, 999999)
TEXTS = [
    "",
    " a ",
    "%s :x ? \\ ' \" ` {}",
    "\U0001f600\U00020000",
    "\r\n\t\x01\0\x7f",
    "\\N",
    "NULL",
]
# By SQL type: the type that is made, an expression that shows a value, and values with what it is.
VALUES: dict[str, tuple[str, str, list[tuple[Any, Any]]]] = {
    "tinyint": ("Int8", "v", [(-128, -128), (127, 127)]),
    "tinyint unsigned": ("UInt8", "v", [(255, 255)]),
    "smallint": ("Int16", "v", [(-32768, -32768)]),
    "mediumint unsigned": ("UInt32", "v", [((1 << 24) - 1, (1 << 24) - 1)]),
    "int": ("Int32", "v", [(-(1 << 31), -(1 << 31)), ((1 << 31) - 1, (1 << 31) - 1)]),
    "int unsigned": ("UInt32", "v", [((1 << 32) - 1, (1 << 32) - 1)]),
    "bigint": ("Int64", "toString(v)", [(at, str(at)) for at in (-(1 << 63), (1 << 63) - 1)]),
    "bigint unsigned": (
        "UInt64",
        "toString(v)",
        [(Decimal((1 << 64) - 1), str((1 << 64) - 1))],
    ),
    "year": ("UInt16", "v", [(1901, 1901), (2155, 2155)]),
    "double": (
        "Float64",
        "lower(hex(v))",
        [
            (one, pack("<d", one).hex())
            for one in (1.5e300, -0.0, 5e-324, 0.1, math.inf, -math.inf, math.nan)
        ],
    ),
    "float": (
        "Float32",
        "lower(hex(v))",
        [(one, pack("<f", one).hex()) for one in (0.1, -1.5, 3.4e38)],
    ),
    "decimal(65,30)": (
        "Decimal(65, 30)",
        "toString(v)",
        [(WIDE, str(WIDE)), (Decimal(f"-{WIDE}"), f"-{WIDE}"), (Decimal("0E-30"), "0")],
    ),
    "decimal(38,0)": ("Decimal(38, 0)", "toString(v)", [(Decimal("9" * 38), "9" * 38)]),
    "decimal(10,2)": ("Decimal(10, 2)", "toString(v)", [(Decimal("-0.01"), "-0.01")]),
    "date": (
        "Date32",
        "toString(v)",
        [(one, str(one)) for one in (date(1900, 1, 1), date(1970, 1, 1), date(2299, 12, 31))],
    ),
    "datetime(6)": (
        "DateTime64(6, 'UTC')",
        "toString(v)",
        [
            (LAST, "2299-12-31 23:59:59.999999"),
            (datetime(1900, 1, 1), "1900-01-01 00:00:00.000000"),
            (datetime(1969, 12, 31, 23, 59, 59, 999999), "1969-12-31 23:59:59.999999"),
        ],
    ),
    "timestamp(6)": (
        "DateTime64(6, 'UTC')",
        "toString(v)",
        [(datetime(2026, 2, 28, 1, 2, 3, 4, UTC), "2026-02-28 01:02:03.000004")],
    ),
    "time(6)": (
        "String",
        "v",
        [
            (timedelta(hours=838, minutes=59, seconds=59), "838:59:59"),
            (-timedelta(seconds=1, microseconds=1), "-00:00:01.000001"),
        ],
    ),
    "varchar(99)": ("String", "v", [(one, one) for one in TEXTS]),
    "longtext": ("String", "v", [("x" * (1 << 20), "x" * (1 << 20))]),
    "json": ("String", "v", [('{"a": "\\u0000"}', '{"a": "\\u0000"}')]),
    "enum('a','b')": ("String", "v", [("a", "a")]),
    "bit(64)": ("String", "hex(v)", [(b"\xff" * 8, "FF" * 8), (bytes(8), "00" * 8)]),
    "varbinary(99)": (
        "String",
        "lower(hex(v))",
        [(one, one.hex()) for one in (b"", b"\0\xff'\\%\n\t")],
    ),
    "longblob": (
        "String",
        "lower(hex(v))",
        [(bytes(range(256)) * 99, (bytes(range(256)) * 99).hex())],
    ),
}


@pytest.mark.parametrize("kind", VALUES)
def test_each_value_comes_back_unchanged(clickhouse: PrivateClickHouse, kind: str) -> None:
    source = Source({"id": "int", "v": kind})
    made, shown, values = VALUES[kind]
    given = [*values, (None, None)]
    write(clickhouse, [source.insert(at, value) for at, (value, _) in enumerate(given)])
    assert columns(clickhouse) == {"id": "Int32", "v": f"Nullable({made})"}
    held = dict(rows(clickhouse, what=f"id, {shown} AS v"))
    assert held == {at: wanted for at, (_, wanted) in enumerate(given)}


def test_a_column_is_nullable_where_the_sources_is(clickhouse: PrivateClickHouse) -> None:
    source = Source({"id": "int", "k": "varchar(9)", "v": "int"}, keys=2)
    write(clickhouse, [source.insert(1, "a", None)])
    assert columns(clickhouse) == {"id": "Int32", "k": "String", "v": "Nullable(Int32)"}


@pytest.mark.parametrize(
    ("kind", "value", "told"),
    [
        (
            "date",
            date(1899, 12, 31),
            "1899-12-31 is not in the range of Date32, 1900-01-01 to 2299",
        ),
        ("date", date(9999, 12, 31), "a column of type String takes every date"),
        ("datetime(6)", datetime(1000, 1, 1), "not in the range of DateTime64, 1900-01-01"),
        ("datetime(6)", datetime(9999, 12, 31), "9999-12-31 00:00:00 is not in the range"),
    ],
)
def test_a_date_that_clickhouse_would_clamp_is_refused_and_its_row_is_named(
    clickhouse: PrivateClickHouse, kind: str, value: Any, told: str
) -> None:
    source = Source({"id": "int", "v": kind})
    bad = source.insert(2, value)
    with pytest.raises(SinkRefusedError, match=told) as refused:
        write(clickhouse, [source.insert(1, None), bad])
    assert refused.value.change is bad
    assert "shop.t, column v, key {'id': 2}" in str(refused.value)
    # As the text says.
    clickhouse.run("ALTER TABLE shop.t MODIFY COLUMN v Nullable(String)")
    write(clickhouse, [bad])
    assert rows(clickhouse) == [(2, str(value))]


@pytest.mark.parametrize("kind", ["varchar(99)", "varbinary(99)", "decimal(30,10)", "datetime(6)"])
def test_a_key_of_any_type_names_its_row(clickhouse: PrivateClickHouse, kind: str) -> None:
    keys: dict[str, list[Any]] = {
        "varchar(99)": ["a", "A", "a ", "\U0001f600", "%s", "ä", "a\\", "\0"],
        "varbinary(99)": [b"a", b"A", b"\0", b"\xff"],
        "decimal(30,10)": [Decimal("1.5"), Decimal("-3")],
        "datetime(6)": [LAST, datetime(2000, 1, 1)],
    }
    source = Source({"k": kind, "n": "int", "v": "int"}, keys=2)
    given = list(enumerate(keys[kind]))
    write(clickhouse, [source.insert(key, at, at) for at, key in given])
    write(clickhouse, [source.update(key, at, 7, scn=2) for at, key in given])
    assert rows(clickhouse, what="v") == [(7,)] * len(given)
    write(clickhouse, [source.delete(key, at, 7, scn=3) for at, key in given[1:]])
    assert rows(clickhouse, what="n, v") == [(0, 7)]


NAMES = [
    *("select", "FINAL", "Order", "databus_scn", "is_deleted", "a.b", "x:y", "n" * 60),
    *("a b", "a%b", "?", "ä", "'", '"', "a`b", "a\\b", "\t", "\U0001f600"),
]


def test_names_from_hell_are_quoted(clickhouse: PrivateClickHouse) -> None:
    source = Source({"%s `i\\d": "int"} | dict.fromkeys(NAMES, "varchar(20)"), "shop.t%s or:d'er")
    row = (1, *(f"value {at}" for at in range(len(NAMES))))
    write(clickhouse, [source.insert(*row), source.insert(2, *row[1:])])
    write(clickhouse, [source.update(1, "new", *row[2:], scn=2), source.delete(2, *row[1:], scn=2)])
    assert rows(clickhouse, "t%s or:d'er") == [(1, "new", *row[2:])]
    write(clickhouse, [source.made("truncate", scn=3)])
    assert rows(clickhouse, "t%s or:d'er") == []


def test_a_list_of_names_is_read_as_the_server_shows_it() -> None:
    for names in (["a"], ["a b", "c"], ["a`b", "a\\b", "a, b", "'"]):
        assert listed(", ".join(map(identifier, names))) == names
        assert listed(f"({', '.join(map(identifier, names))})") == names
    assert listed("id, `a b`, intDiv(x") == ["id", "a b", "intDiv(x"]
    assert literal("a'b\\c\0") == "'a\\'b\\\\c\\0'"


@pytest.mark.parametrize("name", ["_databus_version", "_databus_deleted"])
def test_a_column_that_is_named_as_the_sinks_own_is_refused(
    clickhouse: PrivateClickHouse, name: str
) -> None:
    source = Source({"id": "int", name: "int"})
    with pytest.raises(SinkError, match=f"a column {name}, as the sink's own is named: leave it"):
        write(clickhouse, [source.insert(1, 1)])


def test_a_large_row_is_written_whole(clickhouse: PrivateClickHouse) -> None:
    source = Source({"id": "int", "v": "longblob"})
    write(clickhouse, [source.insert(1, b"\xff" * (20 << 20)), source.insert(2, b"")])
    assert rows(clickhouse, what="id, length(v)") == [(1, 20 << 20), (2, 0)]
