"""Spark's types of rows and changes, from the versions of a table's schema."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from databus.client.spark.arrow.row_types import (
    KEY,
    SQL_TYPE,
    WriterSchema,
    arrow_schema,
    changes_schema,
    check_text_columns,
    choose_layout,
    row_schema,
)
from databus.schemas.columns.avro_columns import columns_of
from databus.schemas.errors import SchemaError, SettingsError
from databus.schemas.table import Column, Table
from databus.schemas.table_schema import avro_schema

SOURCE = "shop.t"


def version(
    number: int, *columns: tuple[str, str], source: str = SOURCE, dialect: str = "mysql"
) -> WriterSchema:
    """Make a schema version of columns (name, SQL type); the first one is the key."""
    made = tuple(
        Column(name, sql_type, place, place > 0, None if place else 0)
        for place, (name, sql_type) in enumerate(columns)
    )
    return WriterSchema(source, 40, number, avro_schema(Table(source, made, dialect)))


def foreign(*fields: tuple[str, Any]) -> WriterSchema:
    """Make a schema as another project's relay may have it: without `meta`."""
    record = {
        "type": "record",
        "name": "t",
        "fields": [{"name": name, "type": avro_type} for name, avro_type in fields],
    }
    return WriterSchema(SOURCE, 40, 1, json.dumps(record))


def types_of(row: StructType) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in row}


@pytest.mark.parametrize(
    ("sql_type", "expected"),
    [
        ("tinyint(1)", "int"),
        ("int", "int"),
        ("int unsigned", "bigint"),
        ("bigint", "bigint"),
        ("bigint unsigned", "decimal(20,0)"),
        ("decimal(10,2)", "decimal(10,2)"),
        ("decimal(38,10)", "decimal(38,10)"),
        ("decimal(39,10)", "string"),
        ("decimal(65,30)", "string"),
        ("float", "float"),
        ("double", "double"),
        ("date", "date"),
        ("time(6)", "bigint"),
        ("datetime(6)", "timestamp_ntz"),
        ("timestamp", "timestamp"),
        ("year", "int"),
        ("bit(9)", "binary"),
        ("enum('a')", "string"),
        ("set('a')", "string"),
        ("json", "string"),
        ("uuid", "string"),
        ("varchar(9)", "string"),
        ("longtext", "string"),
        ("varbinary(9)", "binary"),
        ("blob", "binary"),
        ("point", "binary"),
    ],
)
def test_each_mysql_type_has_its_spark_type(sql_type: str, expected: str) -> None:
    row = row_schema([version(1, ("id", "int"), ("c", sql_type))])
    assert types_of(row)["c"] == expected
    assert row["c"].metadata[SQL_TYPE] == sql_type
    assert all(field.nullable for field in row)


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ("INTEGER", "bigint"),
        ("TEXT", "string"),
        ("BLOB", "binary"),
        ("REAL", "double"),
        ("NUMERIC", "string"),
        ("", "string"),
    ],
)
def test_each_sqlite_affinity_has_its_spark_type(declared: str, expected: str) -> None:
    row = row_schema([version(1, ("id", "INTEGER"), ("c", declared), dialect="sqlite")])
    assert types_of(row)["c"] == expected


def test_fields_say_their_place_in_the_key() -> None:
    columns = (
        Column("b", "int", 0, False, 1),
        Column("note", "text", 1),
        Column("a", "int", 2, False, 0),
    )
    row = row_schema([WriterSchema(SOURCE, 40, 1, avro_schema(Table(SOURCE, columns)))])
    assert {field.name: field.metadata.get(KEY) for field in row} == {"b": 1, "note": None, "a": 0}


def test_names_are_those_of_the_table_not_those_that_avro_allows() -> None:
    row = row_schema([version(1, ("order id", "int"), ("naïve", "int"), ("größe", "int"))])
    assert row.names == ["order id", "naïve", "größe"]


def test_the_newest_order_comes_first_and_dropped_columns_after_it() -> None:
    versions = [
        version(1, ("id", "int"), ("x", "int"), ("y", "text"), ("z", "date")),
        version(2, ("id", "int"), ("z", "date"), ("w", "int")),
        version(3, ("id", "int"), ("w", "int"), ("v", "int"), ("z", "date")),
    ]
    assert row_schema(versions).names == ["id", "w", "v", "z", "x", "y"]
    assert row_schema(versions[::-1]) == row_schema(versions)


def test_a_dropped_column_is_no_part_of_the_key() -> None:
    row = row_schema([version(1, ("old", "int")), version(2, ("id", "int"))])
    assert [field.metadata.get(KEY) for field in row] == [0, None]
    assert row.names == ["id", "old"]


def test_a_name_in_another_case_is_the_same_column() -> None:
    row = row_schema(
        [version(1, ("id", "int"), ("Note", "int")), version(2, ("ID", "bigint"), ("note", "int"))]
    )
    assert types_of(row) == {"ID": "bigint", "note": "int"}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("int", "bigint", "bigint"),
        ("bigint", "int", "bigint"),
        ("float", "double", "double"),
        ("int", "double", "double"),
        ("int", "decimal(5,2)", "decimal(12,2)"),
        ("bigint", "bigint unsigned", "decimal(20,0)"),
        ("decimal(5,2)", "decimal(10,4)", "decimal(10,4)"),
        ("decimal(5,4)", "decimal(10,0)", "decimal(14,4)"),
        ("decimal(40,2)", "decimal(60,4)", "string"),
        ("decimal(40,2)", "varchar(9)", "string"),
        ("char(1)", "json", "string"),
        ("binary(1)", "blob", "binary"),
    ],
)
def test_a_type_that_holds_both_versions_is_found(old: str, new: str, expected: str) -> None:
    row = row_schema([version(1, ("id", "int"), ("c", old)), version(2, ("id", "int"), ("c", new))])
    assert types_of(row)["c"] == expected
    assert row["c"].metadata[SQL_TYPE] == new


INCOMPATIBLE = [
    ("int", "varchar(9)"),
    ("bigint", "double"),
    ("bigint", "time"),
    ("date", "datetime"),
    ("datetime", "timestamp"),
    ("text", "blob"),
    ("decimal(38,0)", "decimal(38,38)"),
    ("decimal(10,2)", "decimal(65,30)"),
]


@pytest.mark.parametrize(("old", "new"), INCOMPATIBLE)
def test_a_change_that_no_type_holds_is_refused_and_can_be_had_as_text(old: str, new: str) -> None:
    versions = [
        version(1, ("id", "int"), ("c", old)),
        version(2, ("id", "int")),
        version(3, ("id", "int"), ("c", new)),
    ]
    with pytest.raises(SchemaError) as refused:
        row_schema(versions)
    text = str(refused.value)
    assert text.startswith("shop.t, column 'c': schema version 1 has ")
    assert f"({old}) and version 3 has " in text
    assert f"({new}): no type holds both" in text
    assert "columnsAsText=c" in text
    for name in ("c", "C", "shop.t.c"):
        assert types_of(row_schema(versions, [name]))["c"] == "string"
    with pytest.raises(SchemaError, match="no type holds both"):
        row_schema(versions, ["shop.other.c", "id"])


def test_a_column_as_text_that_no_source_has_is_refused() -> None:
    schemas = [version(1, ("id", "int"), ("c", "int"))]
    check_text_columns(schemas, ["C", "shop.t.id"])
    with pytest.raises(SettingsError, match=r"no column 'd'; the columns are id, c"):
        check_text_columns(schemas, ["c", "d"])


def test_unions_and_types_of_other_relays_are_read() -> None:
    schema = foreign(
        ("a", ["string", "null"]),
        ("b", "boolean"),
        ("c", {"type": "long"}),
        ("d", ["null", "string", "long"]),
    )
    assert types_of(row_schema([schema])) == {
        "a": "string",
        "b": "boolean",
        "c": "bigint",
        "d": "string",
    }
    assert columns_of(schema)[0].branches == ("string", "null")


@pytest.mark.parametrize(
    "avro_type",
    [
        {"type": "array", "items": "int"},
        {"type": "long", "logicalType": "timestamp-millis"},
        {"type": "enum", "name": "e", "symbols": ["a"]},
        ["null", "int", {"type": "map", "values": "int"}],
        ["null", "int", "boolean"],
        "null",
        [],
        {"type": "fixed", "name": "f", "size": 2, "logicalType": "decimal", "precision": 2},
    ],
)
def test_a_type_that_is_no_columns_is_refused_by_name(avro_type: Any) -> None:
    with pytest.raises(SchemaError, match=r"shop\.t, column 'c': its type .* in schema version 1"):
        row_schema([foreign(("c", avro_type))])


@pytest.mark.parametrize("text", ["", "[]", '{"fields": 1}', '{"fields": [{"name": "a"}]}'])
def test_what_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(SchemaError, match=r"shop\.t: schema version 7 is not a record schema"):
        row_schema([WriterSchema(SOURCE, 40, 7, text)])


def test_two_names_that_spark_cannot_tell_apart_are_refused() -> None:
    with pytest.raises(
        SchemaError, match="columns 'a' and 'A' of schema version 1 differ only in case"
    ):
        row_schema([foreign(("a", "int"), ("A", "int"))])


def test_a_row_of_no_version_has_no_type() -> None:
    with pytest.raises(ValueError, match="at least one schema version"):
        row_schema([])


ORDERS = row_schema([version(1, ("id", "int"), ("note", "text"))])
ITEMS = row_schema([version(1, ("id", "int"), ("price", "decimal(5,2)"))])
CHANGE = (
    "struct<op:string,scn:bigint,index:int,time:timestamp,physical_source:string,source:string,"
    "schema_version:int,as_of:bigint,gtid:string"
)


def test_changes_of_one_source_have_its_columns_and_then_what_happened() -> None:
    schema = changes_schema({"shop.orders": ORDERS})
    row = "id:int,note:string"
    assert schema.simpleString() == f"struct<{row},_databus:{CHANGE},before:struct<{row}>>>"


def test_before_images_can_be_left_out() -> None:
    schema = changes_schema({"shop.orders": ORDERS}, before_images=False)
    assert schema["_databus"].dataType.simpleString() == CHANGE + ">"


def test_changes_of_different_sources_have_a_struct_each() -> None:
    by_source = {"shop.orders": ORDERS, "shop.items": ITEMS}
    assert choose_layout(by_source) == "structs"
    rows = "shop.orders:struct<id:int,note:string>,shop.items:struct<id:int,price:decimal(5,2)>"
    expected = f"struct<{rows},_databus:{CHANGE},before:struct<{rows}>>>"
    assert changes_schema(by_source).simpleString() == expected


def test_changes_of_sources_with_equal_columns_share_them() -> None:
    other = row_schema([version(1, ("id", "int"), ("note", "varchar(9)"), source="shop.b")])
    by_source = {"shop.a": ORDERS, "shop.b": other}
    assert choose_layout(by_source) == "columns"
    assert changes_schema(by_source).names == ["id", "note", "_databus"]
    assert changes_schema(by_source, "structs").names == ["shop.a", "shop.b", "_databus"]


KEYLESS = StructType.fromJson(
    {**ORDERS.jsonValue(), "fields": [{**f, "metadata": {}} for f in ORDERS.jsonValue()["fields"]]}
)
SHORT = row_schema([version(1, ("id", "int"))])


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (ITEMS, "column note string where shop.b has column price decimal"),
        (SHORT, "column note string where shop.b has no more columns"),
        (KEYLESS, r"column id int \(key column 1\) where shop.b has column id int"),
    ],
)
def test_columns_cannot_be_shared_by_sources_that_differ(
    other: StructType, difference: str
) -> None:
    by_source = {"shop.a": ORDERS, "shop.b": other}
    assert choose_layout(by_source) == "structs"
    with pytest.raises(SettingsError, match=f"layout=columns .*shop.a has {difference}"):
        changes_schema(by_source, "columns")


def test_a_table_with_a_column_of_our_name_needs_structs() -> None:
    row = row_schema([version(1, ("id", "int"), ("_DATABUS", "int"))])
    with pytest.raises(SettingsError, match=r"shop\.t has a column '_DATABUS' itself") as caught:
        changes_schema({SOURCE: row})
    assert "read it with option layout=structs" in str(caught.value)
    assert "such a table cannot be followed into a target" in str(caught.value)
    assert changes_schema({SOURCE: row}, "structs").names == [SOURCE, "_databus"]


def test_the_arrow_schema_has_no_large_types_and_instants_in_utc() -> None:
    row = row_schema([version(1, ("id", "int"), ("at", "timestamp"), ("on", "datetime"))])
    schema = arrow_schema(changes_schema({SOURCE: row}))
    assert schema.field("at").type == pa.timestamp("us", tz="UTC")
    assert schema.field("on").type == pa.timestamp("us")
    change = schema.field("_databus").type
    assert change.field("op").type == pa.string()
    assert change.field("time").type == pa.timestamp("us", tz="UTC")
    assert all(field.nullable for field in [*schema, *change, *change.field("before").type])
