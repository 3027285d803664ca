"""Avro schemas made from tables."""

from __future__ import annotations

import json
from typing import Any

import avro.errors
import avro.schema
import pytest

from databus.schemas.avro_meta import field_meta
from databus.schemas.avro_rows import schema_id
from databus.schemas.errors import SchemaError
from databus.schemas.table import Column, Table
from databus.schemas.table_schema import avro_schema


def schema_of(*columns: Column, dialect: str = "mysql", source: str = "shop.t") -> Any:
    return json.loads(avro_schema(Table(source, columns, dialect)))


def type_of(sql_type: str, dialect: str = "mysql", nullable: bool = False) -> Any:
    column = Column("c", sql_type, 0, nullable)
    return schema_of(column, dialect=dialect)["fields"][0]["type"]


def logical(avro_type: str, logical_type: str, **more: int) -> dict[str, Any]:
    return {"type": avro_type, "logicalType": logical_type, **more}


@pytest.mark.parametrize(
    ("sql_type", "expected"),
    [
        ("tinyint(1)", "int"),
        ("smallint(6) unsigned", "int"),
        ("mediumint", "int"),
        ("INT", "int"),
        ("int(10) unsigned", "long"),
        ("int(10) unsigned zerofill", "long"),
        ("bigint(20)", "long"),
        ("bigint(20) unsigned", logical("bytes", "decimal", precision=20, scale=0)),
        ("bigint unsigned", logical("bytes", "decimal", precision=20, scale=0)),
        ("decimal(10,2)", logical("bytes", "decimal", precision=10, scale=2)),
        ("decimal(65, 30) unsigned", logical("bytes", "decimal", precision=65, scale=30)),
        ("numeric(5)", logical("bytes", "decimal", precision=5, scale=0)),
        ("decimal", logical("bytes", "decimal", precision=10, scale=0)),
        ("float", "float"),
        ("double", "double"),
        ("double precision", "double"),
        ("real", "double"),
        ("year(4)", "int"),
        ("bit(9)", "bytes"),
        ("enum('a','b(','c)')", "string"),
        ("set('unsigned','b')", "string"),
        ("char(3)", "string"),
        ("varchar(200)", "string"),
        ("longtext", "string"),
        ("json", "string"),
        ("uuid", "string"),
        ("inet6", "string"),
        ("binary(16)", "bytes"),
        ("varbinary(3)", "bytes"),
        ("mediumblob", "bytes"),
        ("point", "bytes"),
        ("geometrycollection", "bytes"),
        ("time", logical("long", "time-micros")),
        ("time(6)", logical("long", "time-micros")),
    ],
)
def test_mysql_types(sql_type: str, expected: Any) -> None:
    assert type_of(sql_type) == expected
    assert type_of(sql_type, nullable=True) == ["null", expected]


@pytest.mark.parametrize(
    ("sql_type", "expected"),
    [
        ("date", logical("int", "date")),
        ("datetime(6)", logical("long", "local-timestamp-micros")),
        ("timestamp", logical("long", "timestamp-micros")),
    ],
)
def test_mysql_dates_are_nullable_whatever_the_column_says(sql_type: str, expected: Any) -> None:
    assert type_of(sql_type) == type_of(sql_type, nullable=True) == ["null", expected]


ANY = ["null", "long", "double", "string", "bytes"]


@pytest.mark.parametrize(
    ("sql_type", "expected"),
    [
        ("INTEGER", "long"),
        ("tinyint", "long"),
        ("CHARINT", "long"),  # SQLite's first rule wins
        ("VARCHAR(20)", "string"),
        ("clob", "string"),
        ("BLOB", "bytes"),
        ("REAL", "double"),
        ("double precision", "double"),
        ("float", "double"),
        ("DECIMAL(10,2)", ANY),
        ("datetime", ANY),
        ("boolean", ANY),
        ("any", ANY),
        ("", ANY),
    ],
)
def test_sqlite_types_follow_their_affinity(sql_type: str, expected: Any) -> None:
    assert type_of(sql_type, "sqlite") == expected
    nullable = expected if expected == ANY else ["null", expected]
    assert type_of(sql_type, "sqlite", nullable=True) == nullable


def test_meta_keeps_what_the_table_says() -> None:
    schema = schema_of(
        Column("order id", "int", 0, False, 1),
        Column("shop", "char(3)", 1, False, 0),
        Column("note", "text", 2),
        Column("sum", "decimal(9,4)", 3),
        source="shop.orders",
    )
    assert schema["meta"] == "source=shop.orders;dialect=mysql;key=shop,order id;"
    assert [field["meta"] for field in schema["fields"]] == [
        "column=order id;position=0;sqlType=int;key=1;",
        "column=shop;position=1;sqlType=char(3);key=0;",
        "column=note;position=2;sqlType=text;",
        "column=sum;position=3;sqlType=decimal(9,4);precision=9;scale=4;",
    ]
    assert (schema["namespace"], schema["name"]) == ("shop", "orders")


def test_a_nullable_field_defaults_to_null_and_another_has_no_default() -> None:
    fields = schema_of(Column("a", "int", 0, True), Column("b", "int", 1, False))["fields"]
    assert fields[0]["default"] is None
    assert "default" not in fields[1]


def test_names_that_avro_does_not_allow_are_escaped_and_stay_different() -> None:
    columns = [
        Column(name, "int", at)
        for at, name in enumerate(["a b", "a-b", "a_b", "1st", "größe", "", "ok", "a_b_2"])
    ]
    schema = schema_of(*columns, source="my-shop.1.order lines")
    names = [field["name"] for field in schema["fields"]]
    assert names == ["a_b", "a_b_2", "a_b_3", "_1st", "gr__e", "_", "ok", "a_b_2_2"]
    assert [field_meta(field)["column"] for field in schema["fields"]] == [c.name for c in columns]
    assert (schema["namespace"], schema["name"]) == ("my_shop._1", "order_lines")


def test_the_same_table_gives_the_same_compact_text() -> None:
    one, other = (Table("t", (Column("é", "int", 0, False, 0),)) for _ in range(2))
    assert avro_schema(one) == avro_schema(other)
    assert avro_schema(one) == (
        '{"type":"record","name":"t","fields":[{"name":"_","type":"int",'
        '"meta":"column=\\u00e9;position=0;sqlType=int;key=0;"}],'
        '"meta":"source=t;dialect=mysql;key=\\u00e9;"}'
    )


def test_the_avro_project_accepts_the_schema() -> None:
    columns = ["bigint unsigned", "decimal(5,2)", "date", "time", "datetime", "timestamp", "text"]
    table = Table("shop.t", tuple(Column(f"c{at}", t, at) for at, t in enumerate(columns)))
    with pytest.warns(avro.errors.IgnoredLogicalType, match="local-timestamp-micros"):
        parsed = avro.schema.parse(avro_schema(table))
    assert [field["name"] for field in json.loads(str(parsed))["fields"]] == [
        c.name for c in table.columns
    ]


@pytest.mark.parametrize("nullable", [False, True])
def test_a_column_may_bring_its_own_type(nullable: bool) -> None:
    day = logical("int", "date")
    column = Column("d", "moon day", 0, nullable, avro_type=json.dumps(day))
    (field,) = schema_of(column, dialect="lunar")["fields"]
    assert field["type"] == (["null", day] if nullable else day)
    assert field_meta(field)["sqlType"] == "moon day"


def _decimal(precision: int, scale: int) -> str:
    return json.dumps(logical("bytes", "decimal", precision=precision, scale=scale))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Column("c", "decimal(10,2)", 0), Column("c", "decimal(11,2)", 0)),
        (Column("c", "decimal(10,2)", 0), Column("c", "decimal(10,3)", 0)),
        # The SQL type says it in no case of a type of the column's own.
        (
            Column("c", "money", 0, avro_type=_decimal(9, 2)),
            Column("c", "money", 0, avro_type=_decimal(9, 3)),
        ),
        (Column("c", "int", 0, nullable=True), Column("c", "int", 0, nullable=False)),
        (Column("c", "enum('a','b')", 0), Column("c", "enum('a','b','c')", 0)),
        (Column("c", "varchar(5)", 0), Column("c", "varchar(6)", 0)),
        (Column("a-b", "int", 0), Column("a b", "int", 0)),
        (Column("c", "int", 0), Column("c", "int", 0, key_position=0)),
    ],
    ids=["precision", "scale", "own type", "null", "member", "length", "name", "key"],
)
def test_a_change_of_one_property_alone_gives_another_id(one: Column, other: Column) -> None:
    ids = {schema_id(avro_schema(Table("shop.t", (column,)))) for column in (one, other)}
    assert len(ids) == 2


@pytest.mark.parametrize("sql_type", ["hyperloglog", "", "(3)"])
def test_an_unknown_mysql_type_names_the_column(sql_type: str) -> None:
    with pytest.raises(SchemaError, match=r"shop\.t, column 'c'.*has no Avro type"):
        type_of(sql_type)


def test_a_table_that_has_no_schema_is_refused() -> None:
    with pytest.raises(SchemaError, match="without columns"):
        avro_schema(Table("t", ()))
    with pytest.raises(SchemaError, match="unknown dialect 'oracle'"):
        avro_schema(Table("t", (Column("a", "int", 0),), "oracle"))
