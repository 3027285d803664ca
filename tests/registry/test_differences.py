from __future__ import annotations

import json
from typing import Any

import pytest

from databus.registry.differences import differences, is_compatible
from databus.schemas.errors import SchemaError
from databus.schemas.table import Column, Table
from databus.schemas.table_schema import avro_schema

ID = Column("id", "int", 0, nullable=False, key_position=0)
PRICE = Column("price", "int", 1)


def text(*columns: Column) -> str:
    return avro_schema(Table("shop.orders", columns))


def record(*fields: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "orders", "fields": fields})


def told(old: str, new: str) -> list[tuple[str, str, str]]:
    return [tuple(one) for one in differences(old, new)]  # type: ignore[misc]


def test_columns_that_come_and_go_are_told_in_the_databases_words() -> None:
    assert told(text(ID), text(ID, PRICE)) == [("added", "price", "price int null")]
    assert told(text(ID, PRICE), text(ID)) == [("removed", "price", "price int null")]


def test_another_type_is_told_with_the_one_before() -> None:
    wider = Column("price", "bigint", 1)
    assert told(text(ID, PRICE), text(ID, wider)) == [
        ("changed", "price", "int null → bigint null")
    ]
    must = Column("price", "int", 1, nullable=False)
    assert told(text(ID, PRICE), text(ID, must)) == [("changed", "price", "int null → int")]


def test_another_key_is_told() -> None:
    keyed = Column("price", "int", 1, key_position=1)
    assert told(text(ID, PRICE), text(ID, keyed)) == [("key", "id, price", "(id) → (id, price)")]
    without = Column("id", "int", 0, nullable=False)
    assert told(text(ID), text(without)) == [("key", "", "(id) → no key")]


def test_only_an_alias_makes_a_rename() -> None:
    old = record({"name": "cost", "type": "int"})
    assert told(old, record({"name": "price", "type": "long", "aliases": ["cost"]})) == [
        ("renamed", "price", "cost → price"),
        ("changed", "price", "int → long"),
    ]
    assert [kind for kind, _, _ in told(old, record({"name": "price", "type": "int"}))] == [
        "added",
        "removed",
    ]


def test_the_same_columns_in_another_order_are_no_difference() -> None:
    one, two = {"name": "a", "type": "int"}, {"name": "b", "type": {"type": "bytes"}}
    assert told(record(one, two), record(two, one)) == []


def test_what_a_reader_cannot_read_is_not_compatible() -> None:
    old, narrow = record({"name": "a", "type": "long"}), record({"name": "a", "type": "int"})
    assert not is_compatible(old, narrow)
    assert is_compatible(narrow, old)


def test_what_is_no_record_is_refused() -> None:
    with pytest.raises(SchemaError):
        differences("{", record())
    with pytest.raises(SchemaError):
        differences(record(), '"int"')
