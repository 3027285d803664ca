"""The partition of a row in Spark is the one that relays and clients compute."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from pyspark.sql import DataFrame, SparkSession

from databus.client.spark.arrow.row_partitions import partition_column
from databus.client.spark.arrow.row_types import WriterSchema, arrow_schema, row_schema
from databus.schemas.avro_rows import row_codec
from databus.schemas.errors import SettingsError
from databus.schemas.event.keys import event_key
from databus.schemas.filters import key_hash
from databus.schemas.partitions.row_hashes import hash_of_columns
from databus.schemas.table import Column, Table
from databus.schemas.table_schema import avro_schema
from tests.schemas.partitions.vectors import VECTORS
from tests.schemas.test_rows import MYSQL

ROWS = 60
PARTITIONS = 1009  # so many that equal partitions are equal hashes


def table_of(*sql_types: str) -> Table:
    columns = [
        Column(f"c {number}", sql_type, number, nullable=True, key_position=number)
        for number, sql_type in enumerate(sql_types)
    ]
    return Table("shop.t", tuple(columns))


def frame_of(spark: SparkSession, table: Table, rows: list[dict[str, Any]]) -> DataFrame:
    schema = row_schema([WriterSchema("shop.t", 1, 1, avro_schema(table))])
    made = pa.Table.from_pylist(
        [{name: shown(row[name], schema[name].dataType) for name in schema.names} for row in rows],
        schema=arrow_schema(schema),
    )
    # A DataFrame from Arrow has no metadata, where the key is.
    return spark.createDataFrame(made).to(schema)


def shown(value: Any, data_type: Any) -> Any:
    """Return a value as Spark has it: a decimal with too many digits is a string."""
    is_text = data_type.simpleString() == "string" and value is not None
    return format(value, "f") if is_text and not isinstance(value, str) else value


def partitions_of(frame: DataFrame, by: list[str] | None = None) -> list[int]:
    found = frame.coalesce(1).select(partition_column(frame, PARTITIONS, by).alias("p")).collect()
    return [row.p for row in found]


def test_every_type_has_the_same_partition_as_in_python(spark: SparkSession) -> None:
    # In one job: of each type a column, in each row values of all types.
    table = table_of(*MYSQL)
    names = [column.name for column in table.columns]
    values = st.fixed_dictionaries(
        {name: st.none() | kind for name, kind in zip(names, MYSQL.values(), strict=True)}
    )
    codec = row_codec(avro_schema(table))

    rows: list[dict[str, Any]] = []

    @settings(max_examples=ROWS, suppress_health_check=list(HealthCheck), deadline=None)
    @given(values)
    def collect(row: dict[str, Any]) -> None:
        rows.append(codec.decode(codec.encode(row)))

    collect()
    frame = frame_of(spark, table, rows)
    columns = [
        partition_column(frame, PARTITIONS, [name]).alias(f"p{at}") for at, name in enumerate(names)
    ]
    whole = partition_column(frame, PARTITIONS).alias("whole")
    for row, found in zip(rows, frame.coalesce(1).select(*columns, whole).collect(), strict=True):
        for at, name in enumerate(names):
            assert found[f"p{at}"] == hash_of_columns("t", (name,), row) % PARTITIONS, name
        assert found.whole == key_hash(event_key(table, row)) % PARTITIONS
    for name in names:
        assert len({row[name] for row in rows}) > 1, name


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_the_numbers_of_the_page(spark: SparkSession, zone: str) -> None:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        by_types: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        for vector in VECTORS:
            names = [f"c {number}" for number in range(len(vector.sql_types))]
            row = dict(zip(names, vector.values, strict=True))
            by_types.setdefault(vector.sql_types, []).append(row)
        for types, rows in by_types.items():
            table = table_of(*types)
            expected = [key_hash(event_key(table, row)) % PARTITIONS for row in rows]
            assert partitions_of(frame_of(spark, table, rows)) == expected, types
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(before))


def test_columns_are_hashed_in_the_order_in_which_they_are_named(spark: SparkSession) -> None:
    table = table_of("int", "varchar(9)")
    frame = frame_of(spark, table, [{"c 0": 1, "c 1": "2"}])
    assert partitions_of(frame, ["c 1", "c 0"]) == [key_hash(b"2,1") % PARTITIONS]
    assert partitions_of(frame) == [key_hash(b"1,2") % PARTITIONS]


def test_what_cannot_be_hashed_is_refused(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(1, [2])], "a int, b array<int>")
    with pytest.raises(SettingsError, match="no key columns"):
        partition_column(frame, 8)
    with pytest.raises(SettingsError, match="'c' is not in the batch"):
        partition_column(frame, 8, ["c"])
    with pytest.raises(SettingsError, match="'b' is a array<int>"):
        partition_column(frame, 8, ["b"])
    with pytest.raises(SettingsError, match="1 to 32768"):
        partition_column(frame, 0, ["a"])
