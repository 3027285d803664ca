"""The compiled hash of rows: what it decides is what Python decides."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, strategies as st

from databus.relay.ring import event_selector
from databus.relay.ring._core import PartitionRule, Plan, RingData
from databus.relay.ring.event_selector import EventSelector, SelectedEvents, select_events
from databus.relay.ring.selection import Selection
from databus.schemas.avro_rows import row_codec, schema_id
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import InvalidParameterError, ProtocolError
from databus.schemas.event.control import end_of_period
from databus.schemas.event.event import WHOLE_TABLE_KEY, Event, Opcode, Part
from databus.schemas.event.keys import event_key
from databus.schemas.event.metadata import (
    METADATA_DIGEST,
    EventMetadata,
    Notes,
    Op,
    encode_metadata,
    metadata_part,
)
from databus.schemas.event.v2 import encode
from databus.schemas.filters import PartitionFilter, filters_to_json, key_hash, parse_filters
from databus.schemas.partitions.key_layout import key_layout
from databus.schemas.partitions.row_hashes import RowHasher
from databus.schemas.table import Column, Table
from databus.schemas.table_schema import avro_schema
from tests.schemas.partitions.vectors import VECTORS
from tests.schemas.test_rows import MYSQL, SQLITE

PARTITIONS = 7
FROM_PYTHON = [
    date(1, 1, 1),
    datetime(1, 1, 1, 0, 0, 0, 1),
    datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 59, 999_999),
    Decimal("-99999999.99"),
]


class Events:
    """Events one after another, as the selector reads them; compiled or not."""

    def __init__(self, events: Sequence[Event], compiled: bool) -> None:
        self.data = b"".join(map(encode, events))
        self.capacity_bytes = len(self.data)
        self.core = RingData(self.data, 0, len(self.data), False) if compiled else None

    def copy_out(self, position: int, length: int) -> bytes:
        return self.data[position : position + length]


def selected(events: Sequence[Event], wanted: PartitionFilter, text: str, compiled: bool) -> bytes:
    """Return the bytes of the events that pass, of those given and an EOP."""
    events = [*events, end_of_period(99, 1)]
    asked = Selection("shop", Checkpoint.flexible(), filters={1: wanted})
    selector = EventSelector(asked, None, lambda _: text)
    held, data, position = Events(events, compiled), b"", 0
    end = len(held.data)
    while position < end:
        found: SelectedEvents = select_events(held, position, end, end, selector, (-1, 0), end)
        data, position = data + found.data, found.position
    return data


@st.composite
def tables(draw: st.DrawFn) -> tuple[Table, dict[str, st.SearchStrategy[Any]]]:
    """Return a table with columns of any type, and strategies for the values of its columns."""
    dialect = draw(st.sampled_from(["mysql", "sqlite"]))
    types = MYSQL if dialect == "mysql" else SQLITE
    chosen = draw(st.lists(st.sampled_from(sorted(types)), min_size=1, max_size=5))
    columns, values = [], {}
    for number, sql_type in enumerate(chosen):
        nullable = draw(st.booleans())
        column = Column(f"c{number}", sql_type, number, nullable, 0 if number == 0 else None)
        columns.append(column)
        values[column.name] = types[sql_type] | st.none() if nullable else types[sql_type]
    return Table("shop.t", tuple(columns), dialect), values


@st.composite
def changes(draw: st.DrawFn) -> tuple[Table, list[Event]]:
    """Return a table and events of its rows, each with an EOP behind it."""
    table, values = draw(tables())
    codec, digest = row_codec(avro_schema(table)), schema_id(avro_schema(table))
    rows = st.fixed_dictionaries(values)
    events: list[Event] = []
    for scn in range(1, draw(st.integers(1, 4)) + 1):
        row, former = draw(rows), draw(st.none() | rows)
        metadata = None
        if draw(st.booleans()):
            before = None if former is None else codec.encode(former)
            # A note about a raw value says nothing of the partition, but is read by Python.
            notes = draw(st.none() | st.just(Notes(raw={"c0": "0000-00-00"})))
            fields = EventMetadata(
                draw(st.sampled_from([Op.INSERT, Op.UPDATE, Op.DELETE])),
                gtid=draw(st.none() | st.just("0-1-77")),
                server_id=draw(st.integers(0, 1 << 32)),
                offset=scn << 20,
                row_index=draw(st.integers(0, 99)),
                before=before,
                comment=draw(st.none() | st.just("c")),
                notes=notes,
            )
            metadata = metadata_part(encode_metadata(fields))
        payload = Part(codec.encode(row), digest)
        opcode = draw(st.sampled_from([Opcode.UPSERT, Opcode.DELETE]))
        events.append(Event(scn, 1, 1, 0, event_key(table, row), opcode, payload, metadata))
        events.append(end_of_period(scn, 1))
    return table, events


@given(changes(), st.data())
def test_both_select_the_rows_of_the_partitions_wanted(
    made: tuple[Table, list[Event]], data: st.DataObject
) -> None:
    table, events = made
    names = [column.name for column in table.columns]
    by = tuple(data.draw(st.permutations(names)))[: data.draw(st.integers(0, len(names)))]
    wanted = PartitionFilter(
        PARTITIONS, data.draw(st.frozensets(st.integers(0, PARTITIONS - 1), min_size=1)), by
    )
    text = avro_schema(table)
    hasher = RowHasher(by, lambda _: text)
    expected = b""
    for event in [*events, end_of_period(99, 1)]:
        hashes: tuple[int, ...] = (key_hash(event.key),) if not by else ()
        if by and not event.is_control:
            hashes = hasher.hashes(event).each
        if event.is_control or any(one % PARTITIONS in wanted.wanted for one in hashes):
            expected += encode(event)
    assert selected(events, wanted, text, compiled=False) == expected
    assert selected(events, wanted, text, compiled=True) == expected


def decided(sql_types: Sequence[str], values: Sequence[Any]) -> int | None:
    """Return the partition of a row that compiled code finds alone; None if it leaves it."""
    columns = tuple(Column(f"c{n}", sql_type, n) for n, sql_type in enumerate(sql_types))
    by = tuple(column.name for column in columns)
    text = avro_schema(Table("shop.t", columns))
    payload = Part(row_codec(text).encode(dict(zip(by, values, strict=True))), schema_id(text))
    data = encode(Event(1, 1, 1, 0, 1, Opcode.UPSERT, payload, None))
    core, found = RingData(data, 0, len(data), False), []
    for partition in range(PARTITIONS):
        rule = PartitionRule(PARTITIONS, [partition], len(by), METADATA_DIGEST)
        layout = key_layout(text, by)
        assert layout is not None
        rule.learn(schema_id(text), layout)
        plan = Plan(None, {1: rule}, wants_ddl=False)
        position, _, _, taken, *_ = core.select(0, len(data), len(data), plan, -1, 0, len(data))
        if position == 0:
            return None
        found += [partition] if taken else []
    (partition,) = found
    return partition


@pytest.mark.parametrize("vector", VECTORS, ids=str)
def test_compiled_code_hashes_all_but_what_it_names(vector: Any) -> None:
    found = decided(vector.sql_types, vector.values)
    wide = vector.values[0] in (Decimal((1 << 64) - 1), Decimal(10**30))
    if vector.sql_types[0] in ("float", "double") or wide:
        assert found is None
        return
    table = Table(
        "shop.t",
        tuple(Column(f"c{n}", t, n, key_position=n) for n, t in enumerate(vector.sql_types)),
    )
    row = {f"c{n}": value for n, value in enumerate(vector.values)}
    assert found == key_hash(event_key(table, row)) % PARTITIONS


@pytest.mark.parametrize("value", FROM_PYTHON, ids=str)
def test_the_ends_of_what_python_has_are_hashed(value: Any) -> None:
    sql_type = "decimal(10,2)"
    if isinstance(value, date):
        sql_type = "datetime(6)" if isinstance(value, datetime) else "date"
    if isinstance(value, datetime) and value.tzinfo:
        sql_type = "timestamp(6)"
    text = avro_schema(Table("shop.t", (Column("c", sql_type, 0),)))
    hasher = RowHasher(("c",), lambda _: text)
    payload = Part(row_codec(text).encode({"c": value}), schema_id(text))
    event = Event(1, 1, 1, 0, 1, Opcode.UPSERT, payload, None)
    assert decided([sql_type], [value]) == hasher.hashes(event).row % PARTITIONS


def test_the_removal_of_all_rows_is_for_every_partition() -> None:
    gone = Event(1, 1, 1, 0, WHOLE_TABLE_KEY, Opcode.DELETE, None, None)
    text = avro_schema(Table("shop.t", (Column("c", "int", 0),)))
    for compiled in (True, False):
        for by in ((), ("c",)):
            wanted = PartitionFilter(PARTITIONS, frozenset((3,)), by)
            assert selected([gone], wanted, text, compiled).startswith(encode(gone))


def test_a_schema_is_learned_once_and_then_no_row_is_read_by_python() -> None:
    table = Table("shop.t", (Column("id", "int", 0, key_position=0), Column("c", "int", 1)))
    text = avro_schema(table)
    codec, digest = row_codec(text), schema_id(text)
    events = [
        Event(
            *(n + 1, 1, 1, 0, n, Opcode.UPSERT, Part(codec.encode({"id": n, "c": n}), digest), None)
        )
        for n in range(100)
    ]
    wanted = PartitionFilter(PARTITIONS, frozenset((3,)), ("c",))
    taken = [one for one in events if key_hash(one.key) % PARTITIONS == 3]
    expected = b"".join(map(encode, [*taken, end_of_period(99, 1)]))
    with patch.object(event_selector, "_select_copy", side_effect=AssertionError):
        assert selected(events, wanted, text, compiled=True) == expected


def test_a_row_that_does_not_have_the_column_is_refused_either_way() -> None:
    text = avro_schema(Table("shop.t", (Column("c", "int", 0),)))
    payload = Part(row_codec(text).encode({"c": 1}), schema_id(text))
    event = Event(1, 1, 1, 0, 1, Opcode.UPSERT, payload, None)
    for compiled in (True, False):
        with pytest.raises(InvalidParameterError, match="no such column"):
            selected([event], PartitionFilter(2, frozenset((0,)), ("d",)), text, compiled)


def test_damaged_rows_are_left_to_python_whatever_is_damaged() -> None:
    text = avro_schema(Table("shop.t", (Column("c", "varchar(9)", 0), Column("d", "int", 1))))
    data = row_codec(text).encode({"c": "abcdef", "d": 5})
    metadata = metadata_part(encode_metadata(EventMetadata(Op.UPDATE, before=data)))
    event = Event(1, 1, 1, 0, 1, Opcode.UPSERT, Part(data, schema_id(text)), metadata)
    plain = encode(event)
    wanted = PartitionFilter(2, frozenset((0, 1)), ("c", "d"))
    rule = PartitionRule(2, [0, 1], 2, METADATA_DIGEST)
    rule.learn(schema_id(text), key_layout(text, wanted.by) or ())
    plan = Plan(None, {1: rule}, wants_ddl=False)
    for at in range(len(plain)):
        for flipped in (0x01, 0x80, 0xFF):
            broken = bytearray(plain)
            broken[at] ^= flipped
            core = RingData(bytes(broken), 0, len(plain), False)
            try:
                core.select(0, len(plain), len(plain), plan, -1, 0, len(plain))
            except ProtocolError:
                continue


def test_a_filter_by_columns_needs_to_find_schemas() -> None:
    filters = {1: PartitionFilter(2, frozenset((0,)), ("c",))}
    asked = Selection("shop", Checkpoint.flexible(), filters=filters)
    with pytest.raises(InvalidParameterError, match="cannot be looked up here"):
        EventSelector(asked, None)
    assert parse_filters(filters_to_json(filters)) == filters
