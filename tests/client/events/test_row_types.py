"""Rows as objects of an application's own class, and keys by column."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
from pydantic import BaseModel

from databus.client.dispatcher.data_window import DataWindow
from databus.client.events.data_event import DataEvent
from databus.client.events.row_types import into
from databus.client.machines.position import Position
from databus.client.puller.buffer_items import ReadWindow
from databus.client.puller.window_decoder import WindowDecoder
from databus.client.subscription import RegisteredSchema, Subscription, bind
from databus.schemas.avro_rows import RowCodec, schema_id
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import RowError, SchemaError
from databus.schemas.event.event import Event, Opcode, Part
from databus.schemas.table import Column, Table
from databus.schemas.table_schema import avro_schema
from tests.client.shop import emptied, order, read, window

ROW = {"id": 7, "item": "tea", "note": None}


@dataclass
class Order:
    id: int
    item: str
    tags: list[str] = field(default_factory=list)
    total: int = field(init=False, default=3)


class OrderTuple(NamedTuple):
    item: str
    id: int
    state: str = "new"


class OrderModel(BaseModel):
    id: str | int
    item: str


def test_a_dataclass_gets_its_columns_and_its_defaults() -> None:
    assert into(Order, ROW, "shop.orders") == Order(7, "tea")


def test_a_named_tuple_gets_them_by_name_and_not_by_place() -> None:
    assert into(OrderTuple, ROW, "shop.orders") == OrderTuple("tea", 7, "new")


def test_a_pydantic_model_checks_the_values() -> None:
    assert into(OrderModel, ROW, "shop.orders") == OrderModel(id=7, item="tea")
    with pytest.raises(RowError, match=r"column 'item': .* valid string: OrderModel needs it"):
        into(OrderModel, {"id": 7, "item": None}, "shop.orders")


@pytest.mark.parametrize("row_type", [Order, OrderTuple])
def test_a_field_without_a_value_is_an_error_that_names_the_column(row_type: type) -> None:
    with pytest.raises(RowError, match=r"shop\.orders.*item"):
        into(row_type, {"id": 7}, "shop.orders")


def test_another_class_is_refused() -> None:
    with pytest.raises(TypeError, match=r"a dataclass, a NamedTuple or a pydantic model"):
        into(dict, ROW, "shop.orders")


def test_an_event_makes_the_object_of_its_row() -> None:
    (event,) = DataWindow(read(7, order(7, 4, "milk"))).events
    assert event.into(Order) == Order(4, "milk")


def test_a_key_has_its_columns_by_name() -> None:
    taken, gone = DataWindow(read(7, order(7, 4), emptied(7))).events
    assert (taken.key, taken.wire_key) == ({"id": 4}, 4)
    assert (gone.key, gone.wire_key) == ({}, b"")


def event_of(text: str, row: dict[str, object], key: int | bytes) -> DataEvent:
    codec = RowCodec(text)
    made = Event(7, 1007, 40, 0, key, Opcode.UPSERT, Part(codec.encode(row), schema_id(text)), None)
    decoder = WindowDecoder(1 << 20)
    schema = RegisteredSchema(40, 1, text)
    decoder.use(bind(Subscription(("shop.lines",)), {"shop.lines": 40}, [schema]))
    decoder.begin(Position(Checkpoint.flexible()))
    (item,) = decoder.receive(window(7, made))
    assert isinstance(item, ReadWindow)
    (event,) = DataWindow(item).events
    return event


LINES = Table(
    "shop.lines",
    (
        Column("line", "int", 0, key_position=1),
        Column("a,b c", "varchar(9)", 1, key_position=0),
        Column("note", "text", 2),
    ),
)


def test_a_key_of_several_columns_is_in_the_order_of_the_key() -> None:
    row = {"line": 3, "a,b c": r"x,\y", "note": "n"}
    event = event_of(avro_schema(LINES), row, rb"x\,\\y,3")
    assert list(event.key.items()) == [("a,b c", r"x,\y"), ("line", 3)]
    assert repr(event).startswith("<DataEvent update shop.lines key=b'")


def test_the_key_of_a_table_without_one_is_the_row() -> None:
    table = Table("shop.lines", (Column("line", "int", 0), Column("note", "text", 1)))
    row = {"line": 3, "note": "n"}
    assert event_of(avro_schema(table), row, b"3,n").key == row


def test_a_key_that_no_schema_names_is_an_error_and_not_a_guess() -> None:
    text = '{"type":"record","name":"lines","fields":[{"name":"line","type":"int"}]}'
    event = event_of(text, {"line": 3}, 3)
    with pytest.raises(SchemaError, match="wire_key"):
        _ = event.key
    assert event.wire_key == 3
