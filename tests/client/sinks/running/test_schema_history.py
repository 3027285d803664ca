"""A sink knows all versions of a schema, as rows of it come."""

from __future__ import annotations

from typing import Any

from databus.client.sinks.rules.changes import TableRule, schema_of
from databus.client.sinks.running.schema_history import SchemaHistory
from databus.schemas.columns.avro_columns import WriterSchema, columns_of
from databus.schemas.table import Column, Table
from databus.schemas.table_change import TableChange, change_of, shape_id, with_change
from databus.schemas.table_schema import avro_schema
from databus.testing import change, make_window

RULE = TableRule(columns={"id", "note"}, names={"note": "text"})


def version(number: int, *names: str, before: str = "", **changed: Any) -> WriterSchema:
    columns = [Column("id", "int", 0, nullable=False, key_position=0)]
    columns += [Column(name, "int", at) for at, name in enumerate(names, 1)]
    text = avro_schema(Table("shop.t", tuple(columns)))
    if before:
        text = with_change(text, TableChange(number, shape_id(before), **changed))
    return WriterSchema("shop.t", 1, number, text)


def test_it_has_the_versions_of_the_windows_that_were_read() -> None:
    history = SchemaHistory(lambda _source: RULE)
    assert list(history.of("shop.t")) == []
    history.take(make_window(change("shop.t", {"id": 1, "note": "x", "price": 5}), scn=1))
    (found,) = history.of("shop.t")
    assert [one.name for one in columns_of(found)] == ["id", "text"]


def test_a_version_tells_what_it_did_to_the_columns_that_the_sink_takes() -> None:
    first = version(1, "memo")
    added = {"note": 7, "price": 8}
    second = version(2, "memo", "note", "price", before=first.text, added=added)
    third = version(3, "note", "cost", before=second.text, renamed={"cost": "price"})
    rule = TableRule(without={"price", "cost"}, names={"note": "text"})
    taken = [schema_of(one, rule) for one in (first, second, third)]
    changes = [None if one is None else change_of(one.text) for one in taken]
    assert [None if one is None else one.added for one in changes] == [None, {"text": 7}, {}]
    assert [None if one is None else one.renamed for one in changes] == [None, {}, {}]


def test_the_default_of_a_masked_column_is_not_told() -> None:
    first = version(1, "a")
    second = version(2, "a", "note", before=first.text, added={"note": 7})
    hidden = schema_of(second, TableRule(masks={"note": str}, texts=frozenset({"note"})))
    assert hidden is not None
    assert "7" not in hidden.text.partition("change=")[2].partition("added")[2]
    change = change_of(hidden.text)
    assert change is not None
    assert change.added == {}


def test_a_renamed_column_that_the_sink_renames_too_keeps_its_values() -> None:
    first = version(1, "a", "b")
    second = version(2, "z", "y", before=first.text, renamed={"z": "a", "y": "b"})
    taken = schema_of(second, TableRule(names={"a": "A", "y": "Y"}, without={"b"}))
    assert taken is not None
    change = change_of(taken.text)
    assert change is not None
    assert change.renamed == {"z": "A"}  # the other one was not in the target
