"""What makes other rows of a table's rows."""

from __future__ import annotations

import json
from dataclasses import replace

from databus.bootstrap.seeder.row_identity import identity_in, identity_of
from databus.schemas.table import Column, Table
from databus.schemas.table_schema import avro_schema

TABLE = Table(
    "shop.t",
    (
        Column("a", "int", 0, False, 1),
        Column("b", "varchar(9)", 1, False, 0),
        Column("c", "int", 2),
    ),
)


def identity(table: Table) -> object:
    found = identity_in(avro_schema(table))
    assert found == identity_of(table)
    return found


def test_the_key_columns_in_key_order_with_their_types() -> None:
    assert identity(TABLE) == (("b", "varchar(9)"), ("a", "int"))
    wider = replace(TABLE, columns=(*TABLE.columns, Column("d", "int", 3)))
    assert identity(wider) == identity(TABLE)


def test_all_columns_without_a_key() -> None:
    columns = tuple(replace(column, key_position=None) for column in TABLE.columns)
    assert identity(replace(TABLE, columns=columns)) == (
        ("a", "int"),
        ("b", "varchar(9)"),
        ("c", "int"),
    )


def test_a_schema_of_somebody_elses_does_not_say() -> None:
    bare = {"type": "record", "name": "t", "fields": [{"name": "a", "type": "int"}]}
    assert identity_in(json.dumps(bare)) is None
    assert identity_in(json.dumps(bare | {"meta": {"key": ["a"]}})) is None
