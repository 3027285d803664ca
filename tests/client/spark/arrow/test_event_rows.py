"""Rows that stay events: `unpacked` reads the same rows as reading them at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from databus.client.spark.arrow import unpacked_events
from databus.client.spark.arrow.event_batches import EventBatches
from databus.client.spark.arrow.event_rows import EVENT, events_schema
from databus.client.spark.arrow.row_types import WriterSchema, arrow_schema
from databus.client.spark.arrow.unpacked_events import unpacked
from databus.schemas.errors import ProtocolError, RowError, SchemaError, SchemaNotFoundError
from databus.schemas.event.control import end_of_period
from databus.schemas.event.event import Event
from databus.schemas.event.metadata import Notes, Op
from tests.client.spark.arrow.made_events import (
    EXTREMES,
    OLD,
    ONE,
    ROW,
    SOURCE,
    TIME_NS,
    WAYS,
    make_columns,
    order,
    read,
    read_by,
    row_event,
    truncate,
    version,
    wire,
)

TWO = version(2, {"id": "bigint", "note": "varchar(9)", "more": "int"})
EVENTS = arrow_schema(events_schema())


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    with read_by(request.param):
        yield request.param


def packed(*events: Event, schemas: Any = (ONE,), **options: Any) -> pa.Table:
    """Return the events as a task of layout `events` reads them."""
    batches = EventBatches(
        EVENTS, schemas, physical_source="main", layout="columns", keeps_events=True, **options
    )
    data = wire(*events)
    assert batches.take(data) == len(data)
    return pa.Table.from_batches(batches.flush(), EVENTS)


def rows_in(table: pa.Table) -> list[dict[str, Any]]:
    table.validate(full=True)
    return sorted(table.to_pylist(), key=order)


def some_events() -> list[Event]:
    return [
        row_event(ONE, ROW, index=0),
        row_event(ONE, ROW, Op.UPDATE, index=1, before=OLD),
        row_event(ONE, ROW, Op.UPDATE, index=2),
        row_event(ONE, OLD, Op.DELETE, index=3, gtid=None, key=b"a,b"),
        truncate(index=4),
        row_event(ONE, OLD, index=5, is_traced=True),
        end_of_period(5, TIME_NS),
    ]


def test_events_are_read_later_as_they_would_have_been_at_once(way: str) -> None:
    assert rows_in(unpacked(packed(*some_events()), [ONE])) == read(
        make_columns([ONE]), *some_events()
    )


def test_a_snapshot_keeps_what_was_said_of_its_rows(way: str) -> None:
    events = some_events()[:-1]
    found = rows_in(unpacked(packed(*events, as_of=9, as_snapshot=True), [ONE]))
    assert found == read(make_columns([ONE], as_of=9, as_snapshot=True), *events)
    assert {row["_databus"]["as_of"] for row in found} == {9}


def test_versions_that_came_after_the_query_are_read_with_the_schemas_known_by_then(
    way: str,
) -> None:
    events = packed(
        row_event(ONE, ROW), row_event(TWO, {**ROW, "more": 7}, index=1), schemas=[ONE, TWO]
    )
    with pytest.raises(SchemaNotFoundError, match=r"schema version 2 of shop\.t"):
        unpacked(events, [ONE])
    assert [row["more"] for row in rows_in(unpacked(events, [ONE, TWO]))] == [None, 7]


def test_only_versions_in_use_and_newer_ones_need_a_common_type() -> None:
    text = version(1, {"id": "bigint", "note": "date"})
    events = packed(row_event(TWO, {**ROW, "more": 7}), schemas=[text, TWO])
    assert [row["note"] for row in rows_in(unpacked(events, [text, TWO]))] == ["new"]
    older = packed(row_event(text, {"id": 1, "note": None}), schemas=[text, TWO])
    with pytest.raises(SchemaError, match="note"):
        unpacked(older, [text, TWO])


def test_marks_alone_have_the_columns_of_the_newest_version() -> None:
    batches = EventBatches(
        EVENTS, [ONE, TWO], physical_source="main", layout="columns", keeps_events=True
    )
    batches.add_mark(9, SOURCE)
    (row,) = rows_in(unpacked(pa.Table.from_batches(batches.flush()), [ONE, TWO]))
    assert (row["more"], row["_databus"]["op"], row["_databus"]["scn"]) == (None, "snapshot_end", 9)


def test_no_rows_are_no_rows() -> None:
    assert unpacked(EVENTS.empty_table(), [ONE]).num_rows == 0


@pytest.mark.parametrize(("dialect", "sql_type", "values"), EXTREMES)
def test_values_of_every_type_pass(
    way: str, dialect: str, sql_type: str, values: list[Any]
) -> None:
    schema = version(1, {"v": sql_type}, dialect=dialect)
    events = [row_event(schema, {"v": value}, index=n) for n, value in enumerate(values)]
    found = rows_in(unpacked(packed(*events, schemas=[schema]), [schema]))
    assert found == read(make_columns([schema]), *events)


def test_a_partial_row_is_refused_where_it_is_read(way: str) -> None:
    event = row_event(ONE, {"id": 1}, Op.UPDATE, notes=Notes(absent=(1,)))
    with pytest.raises(RowError, match="note"):
        packed(event)


def test_many_events_are_decoded_in_parts_that_arrow_can_hold() -> None:
    events = [row_event(ONE, {"id": n, "note": "x"}, index=n) for n in range(50)]
    with patch.object(unpacked_events, "_MOST_BYTES", 1000):
        found = rows_in(unpacked(packed(*events), [ONE]))
    assert [row["id"] for row in found] == list(range(50))


def test_bytes_that_are_not_their_events_are_an_error() -> None:
    events = packed(row_event(ONE, ROW), row_event(ONE, ROW, index=1))
    (first, _) = events[EVENT].to_pylist()
    wrong = pa.array([first + first, first], pa.binary())
    with pytest.raises(ProtocolError, match=r"2 events of \d+ bytes were read as 3 rows"):
        unpacked(events.set_column(0, EVENT, wrong), [ONE])


def test_another_source_is_not_read_as_this_one() -> None:
    other = WriterSchema("shop.u", 41, 1, ONE.text)
    with pytest.raises(SchemaError):
        unpacked(packed(row_event(ONE, ROW)), [other])
