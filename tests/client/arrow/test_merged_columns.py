"""The columns that hold the rows of several schema versions."""

from __future__ import annotations

from databus.client.arrow.arrow_types import stored_type
from databus.client.arrow.merged_columns import merged_columns
from databus.schemas.columns.avro_columns import AvroColumn, Kind
from tests.client.spark.arrow.made_events import version


def test_the_newest_versions_columns_come_first_and_then_the_dropped_ones() -> None:
    versions = [
        version(2, {"b": "bigint", "new": "int"}),
        version(1, {"old": "int", "b": "int", "older": "double"}),
    ]
    newest, dropped = merged_columns(versions)
    assert [(column.name, column.kind) for column in newest] == [
        ("b", Kind.LONG),
        ("new", Kind.INT),
    ]
    assert [column.name for column in dropped] == ["old", "older"]


def test_a_decimal_has_as_many_digits_as_every_version_needs() -> None:
    versions = [version(1, {"a": "bigint"}), version(2, {"a": "decimal(10,4)"})]
    ((column,), _) = merged_columns(versions)
    assert str(stored_type(column)) == "decimal128(23, 4)"


def test_a_column_is_read_as_text_if_asked() -> None:
    ((column,), _) = merged_columns([version(1, {"a": "date"})], ["a"])
    assert column == AvroColumn("a", Kind.STRING, 0, 0, column.branches, column.sql_type)
