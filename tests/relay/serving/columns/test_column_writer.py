"""RowData of rows: which columns are listed, and what is said of them."""

from __future__ import annotations

from typing import Any

from databus.relay.serving.columns.column_writer import ColumnWriter
from databus.relay.serving.protobuf import read_fields, signed
from databus.schemas.avro_rows import row_codec
from databus.schemas.event.metadata import Notes, Op
from databus.schemas.table import Column, Table
from databus.schemas.table_schema import avro_schema

TEXT = avro_schema(
    Table(
        "shop.t",
        (
            Column("id", "int", 0, False, 0),
            Column("small", "tinyint unsigned", 1),
            Column("day", "date", 2),
        ),
    )
)
CODEC = row_codec(TEXT)
WRITER = ColumnWriter(TEXT)
NAMES = {1: "index", 2: "type", 3: "name", 4: "key", 5: "updated", 6: "null", 8: "value"}


def columns(data: bytes, field: int) -> list[dict[str, Any]]:
    return [column(value) for number, value in read_fields(data) if number == field]


def column(data: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number, value in read_fields(data):
        if number in NAMES:
            shown = value.decode() if isinstance(value, bytes) else signed(value)
            found[NAMES[number]] = shown
    return found


def row(**values: Any) -> dict[str, Any]:
    return {"id": 1, "small": None, "day": None} | values


def test_an_insert_lists_all_columns_as_updated() -> None:
    data = WRITER.row_data(Op.INSERT, CODEC.encode(row(small=200)))
    assert columns(data, 1) == []
    first, second, third = columns(data, 2)
    assert first == {
        "index": 0, "type": 4, "name": "id", "key": 1, "updated": 1, "null": 0, "value": "1",
    }  # fmt: skip
    assert (second["type"], second["value"]) == (5, "200")
    assert (third["type"], third["null"]) == (91, 1)
    assert "value" not in third


def test_an_update_tells_what_differs() -> None:
    before, after = CODEC.encode(row()), CODEC.encode(row(small=3))
    data = WRITER.row_data(Op.UPDATE, after, before)
    assert [one["updated"] for one in columns(data, 1)] == [0, 0, 0]
    assert [one["updated"] for one in columns(data, 2)] == [0, 1, 0]


def test_a_delete_lists_the_row_before() -> None:
    data = WRITER.row_data(Op.DELETE, CODEC.encode(row()))
    assert len(columns(data, 1)) == 3
    assert columns(data, 2) == []


def test_an_update_without_the_row_before_has_its_key() -> None:
    data = WRITER.row_data(Op.UPDATE, CODEC.encode(row(small=3)))
    assert [one["name"] for one in columns(data, 1)] == ["id"]
    assert [one["updated"] for one in columns(data, 2)] == [1, 1, 1]


def test_columns_that_were_not_logged_are_left_out() -> None:
    before = CODEC.encode({"id": 1}, (1, 2))
    data = WRITER.row_data(Op.UPDATE, CODEC.encode(row()), before, Notes((2,), (1, 2)))
    assert [one["name"] for one in columns(data, 1)] == ["id"]
    assert [(one["name"], one["updated"]) for one in columns(data, 2)] == [("id", 0), ("small", 1)]


def test_a_text_that_the_schema_has_no_value_for_is_the_value() -> None:
    zero = {"day": "0000-00-00"}
    data = WRITER.row_data(Op.UPDATE, CODEC.encode(row()), CODEC.encode(row()), Notes(raw=zero))
    *_, day = columns(data, 2)
    assert (day["value"], day["null"], day["updated"]) == ("0000-00-00", 0, 1)
