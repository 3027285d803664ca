"""The hash of a row, by key and by columns: the numbers of docs/formats/partitions.md."""

from __future__ import annotations

import re
from collections import Counter
from datetime import date
from typing import Any

import pytest
from hypothesis import given, strategies as st

from databus.schemas.avro_rows import RowCodec, row_codec, schema_id
from databus.schemas.errors import InvalidParameterError, SchemaNotFoundError
from databus.schemas.event.event import Event, Opcode, Part
from databus.schemas.event.keys import event_key, text_key
from databus.schemas.event.metadata import EventMetadata, Notes, Op, encode_metadata, metadata_part
from databus.schemas.filters import key_hash
from databus.schemas.partitions.row_hashes import RowHasher, RowHashes, hash_of_columns
from databus.schemas.table import Column, Table
from databus.schemas.table_schema import avro_schema
from tests.schemas.partitions.vectors import VECTORS, Vector
from tests.schemas.test_rows import MYSQL
from tools.repository import ROOT

PAGE = ROOT / "docs" / "formats" / "partitions.md"
ROW = re.compile(r"\| `(.+)` \| (.+) \| `(.+)` \| (\d+) \| (\d+) \| (\d+) \|")
ORDERS = Table(
    "shop.orders",
    (
        Column("id", "bigint", 0, nullable=False, key_position=0),
        Column("customer_id", "int", 1),
        Column("note", "varchar(20)", 2),
    ),
)
TEXT = avro_schema(ORDERS)
CODEC = row_codec(TEXT)
BY_CUSTOMER = ("customer_id",)


def table_of(vector: Vector) -> Table:
    columns = [
        Column(f"c{number}", sql_type, number, nullable=True, key_position=number)
        for number, sql_type in enumerate(vector.sql_types)
    ]
    return Table("shop.t", tuple(columns))


def order(customer: int | None, before: int | None = None, notes: Notes | None = None) -> Event:
    """Return an update of order 7; `before` is the customer before it."""
    row = {"id": 7, "customer_id": customer, "note": "n"}
    former = None if before is None else CODEC.encode({**row, "customer_id": before})
    metadata = encode_metadata(EventMetadata(Op.UPDATE, before=former, notes=notes))
    payload = Part(CODEC.encode(row), schema_id(TEXT))
    return Event(9, 1, 1, 0, 7, Opcode.UPSERT, payload, metadata_part(metadata))


def schema_text(wanted: bytes) -> str:
    if wanted != schema_id(TEXT):
        raise SchemaNotFoundError(wanted.hex())
    return TEXT


def test_the_page_has_the_numbers_that_are_computed() -> None:
    listed = ROW.findall(PAGE.read_text(encoding="utf-8"))
    computed = []
    for vector in VECTORS:
        table = table_of(vector)
        by = tuple(column.name for column in table.columns)
        row = dict(zip(by, vector.values, strict=True))
        # As it comes back from the bytes of an event.
        row = row_codec(avro_schema(table)).decode(row_codec(avro_schema(table)).encode(row))
        row_hash = hash_of_columns("shop.t", by, row)
        assert row_hash == key_hash(event_key(table, row)), "the same by key and by columns"
        text = text_key("shop.t", by, row).decode() or " "
        numbers = (str(row_hash), str(row_hash % 32), str(row_hash % 48))
        computed.append((", ".join(vector.sql_types), vector.shown, text, *numbers))
    assert listed == computed


@pytest.mark.parametrize("sql_type", MYSQL)
def test_the_hash_by_a_column_is_that_of_the_key_that_it_would_be(sql_type: str) -> None:
    table = Table("shop.t", (Column("c", sql_type, 0, key_position=0),))
    codec = row_codec(avro_schema(table))

    @given(MYSQL[sql_type])
    def check(value: Any) -> None:
        row = codec.decode(codec.encode({"c": value}))
        assert hash_of_columns("shop.t", ("c",), row) == key_hash(event_key(table, row))

    check()


@given(st.lists(st.none() | st.text(max_size=4), min_size=1, max_size=3), st.data())
def test_the_texts_of_two_keys_are_equal_only_if_the_keys_are(
    values: list[str | None], data: st.DataObject
) -> None:
    others = data.draw(st.lists(st.none() | st.text(max_size=4), min_size=1, max_size=3))
    texts = []
    for key in (values, others):
        row = {f"c{number}": value for number, value in enumerate(key)}
        texts.append(text_key("shop.t", tuple(row), row))
    # One empty text is no key of several columns; the number of columns is the table's.
    if len(values) == len(others):
        assert (texts[0] == texts[1]) is (values == others)


@pytest.mark.parametrize("partitions", [2, 11, 16, 32, 48, 64])
def test_keys_that_follow_each_other_spread_evenly(partitions: int) -> None:
    days = [date.fromordinal(730_000 + day).isoformat().encode() for day in range(20_000)]
    for keys in (range(100_000), range(7_000_000_000, 7_001_000_000, 10), days):
        counts = Counter(key_hash(key) % partitions for key in keys)
        assert len(counts) == partitions
        assert max(counts.values()) <= 1.15 * len(keys) / partitions


def test_an_event_by_key_has_the_hash_of_its_key() -> None:
    assert key_hash(42) == key_hash(b"42") == 841265288


def test_a_row_is_hashed_by_the_columns_named() -> None:
    hasher = RowHasher(BY_CUSTOMER, schema_text)
    assert hasher.hashes(order(42)) == RowHashes(key_hash(42))
    assert hasher.hashes(order(None)) == RowHashes(key_hash(b"\\N"))
    both = RowHasher(("note", "customer_id"), schema_text)
    assert both.hashes(order(42)).row == key_hash(b"n,42")


def test_an_update_with_the_row_before_it_has_both_hashes() -> None:
    hasher = RowHasher(BY_CUSTOMER, schema_text)
    assert hasher.hashes(order(42, before=41)).each == (key_hash(42), key_hash(41))


def test_a_column_that_was_not_logged_is_refused_with_a_way_on() -> None:
    hasher = RowHasher(BY_CUSTOMER, schema_text)
    with pytest.raises(InvalidParameterError, match=r"customer_id.*binlog_row_image = FULL"):
        hasher.hashes(order(None, notes=Notes(absent=(1,))))
    with pytest.raises(InvalidParameterError, match="customer_id"):
        hasher.hashes(order(3, before=0, notes=Notes(before_absent=(1,))))
    assert hasher.hashes(order(3, before=0, notes=Notes(before_absent=(2,)))).each


def test_a_column_that_the_table_does_not_have_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match="no such column; it has id, customer_id, note"):
        RowHasher(("customer",), schema_text).hashes(order(1))


def test_a_row_of_an_unknown_schema_is_not_guessed() -> None:
    event = order(1)
    assert event.payload is not None
    strange = event._replace(payload=event.payload._replace(digest=bytes(16)))
    with pytest.raises(SchemaNotFoundError):
        RowHasher(BY_CUSTOMER, schema_text).hashes(strange)


def test_rows_of_an_altered_table_keep_their_partition() -> None:
    wider = Table("shop.orders", (Column("c", "bigint", 0, nullable=False),))
    codec: RowCodec = row_codec(avro_schema(wider))
    row = codec.decode(codec.encode({"c": 42}))
    assert hash_of_columns("shop.orders", ("c",), row) == key_hash(42)
