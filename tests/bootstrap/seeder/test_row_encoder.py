"""A scanned row's event is the relay's, but for its metadata."""

from __future__ import annotations

from decimal import Decimal

import pytest

from databus.bootstrap.seeder.row_encoder import RowEvents
from databus.schemas.avro_rows import row_codec, schema_id
from databus.schemas.errors import RowError
from databus.schemas.event.event import Opcode, Part
from databus.schemas.event.metadata import EventMetadata, Op, decode_metadata
from databus.schemas.event.v2 import decode
from databus.schemas.table import Column, Table
from databus.schemas.table_schema import avro_schema

ORDERS = Table(
    "shop.orders",
    (Column("id", "int", 0, False, 0), Column("price", "decimal(8,2)", 1)),
)
PEOPLE = Table(
    "shop.people",
    (Column("name", "varchar(40)", 0, False, 0), Column("land", "char(2)", 1, False, 1)),
)
ROW = {"id": 7, "price": Decimal("1.50")}


def test_the_event_has_the_row_the_key_and_the_scn() -> None:
    (stored,) = RowEvents(ORDERS, 40, 1000, 5_000).encode([ROW])
    assert stored[:3] == (1000, 7, False)
    event, end = decode(stored.event)
    assert end == len(stored.event)
    assert event[:6] == (1000, 5_000, 40, 0, 7, Opcode.UPSERT)
    text = avro_schema(ORDERS)
    assert event.payload == Part(row_codec(text).encode(ROW), schema_id(text))


def test_the_metadata_says_that_it_is_how_the_row_stands() -> None:
    rows = [{"id": number, "price": None} for number in range(200)]
    for index, stored in enumerate(RowEvents(ORDERS, 40, 1000, 5_000).encode(rows)):
        metadata = decode(stored.event)[0].metadata
        assert metadata is not None
        assert decode_metadata(metadata.data) == EventMetadata(Op.SNAPSHOT, row_index=index)


def test_a_key_of_several_columns_is_a_byte_string() -> None:
    (stored,) = RowEvents(PEOPLE, 41, 1000, 5_000).encode([{"name": "Ann, B", "land": "NZ"}])
    assert stored.key == b"Ann\\, B,NZ"


def test_a_row_that_does_not_fit_is_an_error_with_its_column() -> None:
    with pytest.raises(RowError, match="column 'price'"):
        RowEvents(ORDERS, 40, 1000, 5_000).encode([{"id": 1, "price": "much"}])
