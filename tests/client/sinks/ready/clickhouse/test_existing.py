"""The sink `clickhouse` uses a table that is there already, or says what it lacks."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from databus.client.sinks.errors import SinkError, SinkRefusedError
from databus.client.sinks.ready.clickhouse.types import fits, held_type
from databus.schemas.columns.avro_columns import columns_of
from tests.client.sinks.clickhouse_server import PrivateClickHouse
from tests.client.sinks.ready.clickhouse.targets import rows, write
from tests.client.sinks.ready.sql.targets import Source

pytest_plugins = ["tests.client.sinks.clickhouse_fixtures"]

T = Source({"id": "int", "v": "varchar(9)"})
OWN = "_databus_version UInt128, _databus_deleted UInt8"
ENGINE = "ENGINE = ReplacingMergeTree(_databus_version, _databus_deleted) ORDER BY id"


def test_a_table_with_columns_of_its_own_and_other_types_is_used(
    clickhouse: PrivateClickHouse,
) -> None:
    clickhouse.run(
        f"CREATE TABLE shop.t (more Int8 DEFAULT 7, v LowCardinality(Nullable(String)), {OWN}, "
        f"id Int64, twice Int64 MATERIALIZED id * 2) {ENGINE} PARTITION BY id % 2"
    )
    write(clickhouse, [T.insert(1, "a"), T.insert(2, None), T.delete(3, "")])
    write(clickhouse, [T.update(1, "b", scn=2)])
    held = rows(clickhouse, what="toInt32(id), v, more, toInt32(twice)")
    assert held == [(1, "b", 7, 2), (2, None, 7, 4)]


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        (f"(id Int32, {OWN}) {ENGINE}", "was there and lacks v, which rows of shop.t have"),
        (
            "(id Int32, v String) ENGINE = MergeTree ORDER BY id",
            "lacks _databus_version, _databus_d",
        ),
        (
            f"(id Int32, v String, {OWN}) ENGINE = MergeTree ORDER BY id",
            "its engine is MergeTree ORDER BY id.*: the sink needs ReplacingMergeTree",
        ),
        (
            f"(id Int32, v String, {OWN}) {ENGINE.replace(', _databus_deleted', '')}",
            r"the sink needs ReplacingMergeTree\(_databus_version, _databus_deleted\)",
        ),
        (
            f"(id Int32, v String, {OWN}) {ENGINE.replace('BY id', 'BY (id, v)')}",
            "is sorted by id, v: rows are replaced by ORDER BY, which must be id",
        ),
        (f"(id Int8, v String, {OWN}) {ENGINE}", "has id as Int8, and rows of shop.t need Int32"),
        (f"(id Int32, v FixedString(9), {OWN}) {ENGINE}", r"v as FixedString\(9\), .* need String"),
        (
            f"(id Int32, v String, {OWN.replace('128', '64')}) {ENGINE}",
            "_databus_version is UInt64, not UInt128",
        ),
    ],
)
def test_it_is_said_what_a_table_lacks(
    clickhouse: PrivateClickHouse, statement: str, told: str
) -> None:
    clickhouse.run(f"CREATE TABLE shop.t {statement}")
    with pytest.raises(SinkError, match=told):
        write(clickhouse, [T.insert(1, "a")])
    assert clickhouse.rows("SELECT count() FROM shop.t") == [(0,)]


def test_a_null_in_a_column_without_it_is_refused(clickhouse: PrivateClickHouse) -> None:
    clickhouse.run(f"CREATE TABLE shop.t (id Int32, v String, {OWN}) {ENGINE}")
    bad = T.insert(2, None)
    with pytest.raises(
        SinkRefusedError, match="it is NULL, and the column is String: make it N"
    ) as refused:
        write(clickhouse, [T.insert(1, "a"), bad])
    assert refused.value.change is bad


@pytest.mark.parametrize(
    ("kind", "held", "is_fine"),
    [
        ("int", "Int32", True),
        ("int", "Int64", True),
        ("int", "UInt64", False),
        ("int unsigned", "Int64", True),
        ("int unsigned", "Int32", False),
        ("bigint unsigned", "UInt64", True),
        ("bigint unsigned", "Decimal(20, 0)", True),
        ("bigint unsigned", "Decimal(19, 0)", False),
        ("decimal(10,2)", "Decimal(10, 2)", True),
        ("decimal(10,2)", "Decimal(18, 4)", True),
        ("decimal(10,2)", "Decimal(10, 3)", False),
        ("decimal(10,2)", "Decimal(10, 1)", False),
        ("decimal(10,2)", "Float64", False),
        ("float", "Float64", True),
        ("double", "Float32", False),
        ("date", "Date", True),
        ("date", "DateTime64(6, 'UTC')", False),
        ("datetime", "DateTime64(6, 'UTC')", True),
        ("datetime", "DateTime64(6)", False),
        ("datetime", "DateTime64(6, 'Europe/Vienna')", False),
        ("datetime", "DateTime64(3, 'UTC')", False),
        ("timestamp", "DateTime64(9, 'Europe/Vienna')", True),
        ("timestamp", "DateTime", False),
        ("varchar(9)", "LowCardinality(Nullable(String))", True),
        ("varchar(9)", "Enum8('a' = 1)", False),
        ("blob", "FixedString(9)", False),
    ],
)
def test_a_type_fits_if_it_has_all_values(kind: str, held: str, *, is_fine: bool) -> None:
    (_, column) = columns_of(Source({"id": "int", "v": kind}).schema)
    assert fits(held_type(held), column) is is_fine
    assert fits(held_type("String"), column)


@pytest.mark.parametrize(
    ("kind", "held", "value", "shown"),
    [
        ("bigint unsigned", "Decimal(20, 0)", Decimal((1 << 64) - 1), str((1 << 64) - 1)),
        ("decimal(10,2)", "Decimal(18, 4)", Decimal("-1.5"), "-1.5"),
        ("decimal(10,2)", "String", Decimal("-1.50"), "-1.50"),
        ("double", "String", 0.1, "0.1"),
        ("int", "Int256", -5, "-5"),
        ("date", "Date", datetime(2149, 6, 6).date(), "2149-06-06"),
        (
            "timestamp(6)",
            "DateTime64(9, 'Europe/Vienna')",
            datetime(2026, 7, 1, 12, 0, 0, 1, UTC),
            "2026-07-01 14:00:00.000001000",
        ),
    ],
)
def test_a_wider_type_has_the_same_value(
    clickhouse: PrivateClickHouse, kind: str, held: str, value: Any, shown: str
) -> None:
    clickhouse.run(f"CREATE TABLE shop.t (id Int32, v {held}, {OWN}) {ENGINE}")
    source = Source({"id": "int", "v": kind})
    write(clickhouse, [source.insert(1, value), source.delete(2, value)])
    assert rows(clickhouse, what="id, toString(v)") == [(1, shown)]


def test_a_narrower_range_of_dates_refuses_the_row(clickhouse: PrivateClickHouse) -> None:
    clickhouse.run(f"CREATE TABLE shop.t (id Int32, v Date, {OWN}) {ENGINE}")
    source = Source({"id": "int", "v": "date"})
    with pytest.raises(SinkRefusedError, match="1969-12-31 is not in the range of Date, 1970-01"):
        write(clickhouse, [source.insert(1, datetime(1969, 12, 31).date())])
