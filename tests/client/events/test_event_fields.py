"""The compiled fields of an event are those of Python, and cost the garbage collector nothing.

Those of a packed window are made one by one, of a response's bytes, and need them no more once
somebody has kept them.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Sequence
from typing import Any

import pytest

from databus.client.consumer import DataEvent
from databus.client.events._event_fields import (
    EventFields,
    LentEvents,
    make_rows,
    make_runs,
    track_kept,
)
from databus.client.events.event_fields import (
    PythonEventFields,
    PythonLentEvents,
    make_rows_in_python,
    make_runs_in_python,
)
from databus.client.subscription import RegisteredSchema, Subscription, bind, schemas_of
from databus.schemas.avro_rows import RowCodec, schema_id
from databus.schemas.errors import ProtocolError
from databus.schemas.event.control import end_of_period
from databus.schemas.event.event import Event, Opcode, Part
from databus.schemas.event.metadata import EventMetadata, Notes, Op, encode_metadata, metadata_part
from databus.schemas.event.v2 import encode
from databus.schemas.stream._row_cutter import PackedRows
from databus.schemas.stream.row_event import RowEvent, joined, row_event
from databus.schemas.stream.row_reader import RowReader, RowWindow
from databus.schemas.table import Column, Table
from databus.schemas.table_schema import avro_schema

TEXT = avro_schema(Table("t", (Column("id", "int", 0, False), Column("at", "datetime", 1))))
BOUND = bind(
    Subscription(("t", "u")),
    {"t": 4, "u": 5},
    [RegisteredSchema(4, 1, TEXT), RegisteredSchema(5, 1, TEXT)],
)
ROW = {"id": 1, "at": None}
FIELDS = ("source", "src_id", "scn", "wire_key", "timestamp_ns", "is_delete", "index", "row")


class CompiledEvent(EventFields):
    def _read_row(self) -> dict[str, Any]:
        return {"read": "by Python"}


class PythonEvent(PythonEventFields):
    def _read_row(self) -> dict[str, Any]:
        return {"read": "by Python"}


def shapes(runs: Any) -> list[Any]:
    return [(name, [[getattr(e, f) for f in FIELDS] for e in run]) for name, run in runs]


def made(
    opcode: Opcode, src_id: int = 4, *, is_plain: bool = True, data: bytes | None = None
) -> RowEvent:
    told = metadata_part(encode_metadata(EventMetadata(Op.UPDATE, None, 1, "f", 4, 0, 0)))
    row = Part(RowCodec(TEXT).encode(ROW) if data is None else data, schema_id(TEXT), 1)
    event = Event(9, 5, src_id, 0, 7, opcode, row, told)
    return (*row_event(event, encode(event))[:-1], is_plain)


@pytest.mark.parametrize("is_plain", [True, False])
@pytest.mark.parametrize("opcode", [Opcode.UPSERT, Opcode.DELETE])
def test_the_fields_are_the_same(opcode: Opcode, is_plain: bool) -> None:
    of_t, of_u = (made(opcode, src_id, is_plain=is_plain) for src_id in (4, 5))
    rows = (of_t, of_t, of_u, of_t)
    compiled = make_runs(CompiledEvent, rows, BOUND)
    python = make_runs_in_python(PythonEvent, rows, BOUND)
    assert [(name, len(run)) for name, run in compiled] == [("t", 2), ("u", 1), ("t", 1)]
    assert shapes(compiled) == shapes(python)
    alone = CompiledEvent(of_t, BOUND[4], 2)
    assert alone.index == 2
    assert alone.row is alone.row


def test_each_transaction_of_a_batch_is_numbered_from_0() -> None:
    rows = tuple(
        (scn, *made(Opcode.UPSERT, src_id)[1:])
        for scn, src_id in ((9, 4), (9, 4), (9, 5), (10, 5), (10, 4), (12, 4))
    )
    compiled = make_runs(CompiledEvent, rows, BOUND, True)
    assert shapes(compiled) == shapes(make_runs_in_python(PythonEvent, rows, BOUND, True))
    assert [event.index for _, run in compiled for event in run] == [0, 1, 2, 0, 1, 0]


def test_a_window_without_events_has_no_runs() -> None:
    assert make_runs(DataEvent, (), BOUND) == []
    assert make_runs_in_python(PythonEvent, (), BOUND) == []


def test_an_event_of_an_unknown_source_is_refused() -> None:
    stranger = made(Opcode.UPSERT, 6)
    for make, kind in ((make_runs, CompiledEvent), (make_runs_in_python, PythonEvent)):
        with pytest.raises(KeyError):
            make(kind, (stranger,), BOUND)


def one_event(row: RowEvent) -> DataEvent:
    ((_, (event,)),) = make_runs(DataEvent, (row,), BOUND)
    return event


def test_a_damaged_row_is_the_same_error() -> None:
    event = one_event(made(Opcode.UPSERT, data=b""))
    with pytest.raises(ProtocolError, match="not a row of t"):
        _ = event.row


class Held:
    """Something that goes with the event that holds it."""


def test_an_event_is_tracked_once_its_row_is_read_and_a_cycle_is_collected() -> None:
    event = one_event(made(Opcode.UPSERT))
    assert not gc.is_tracked(event)
    assert event.row == ROW
    assert gc.is_tracked(event)
    held = Held()
    event.row.update(itself=event, held=held)
    last_seen = weakref.ref(held)
    del event, held
    assert last_seen() is not None
    gc.collect()
    assert last_seen() is None


def test_only_kinds_of_events_are_made() -> None:
    for make in (make_runs, make_rows):
        with pytest.raises(TypeError):
            make(dict, (), BOUND)  # type: ignore[type-var]


def test_while_callbacks_run_no_event_is_tracked_and_then_those_that_are_kept() -> None:
    rows = (made(Opcode.UPSERT), made(Opcode.UPSERT), made(Opcode.UPSERT))
    runs = make_runs(DataEvent, rows, BOUND, are_tracked_later=True)
    kept, unread = runs[0][1][:2]
    for event in (kept, runs[0][1][2]):
        assert event.row == ROW
    assert not any(map(gc.is_tracked, runs[0][1]))
    del event
    track_kept(runs)
    assert list(map(gc.is_tracked, runs[0][1])) == [True, False, False]
    assert unread.row == ROW
    assert gc.is_tracked(unread), "from now on by its row"


def test_an_event_that_a_callback_puts_into_a_cycle_is_collected() -> None:
    runs = make_runs(DataEvent, (made(Opcode.UPSERT),), BOUND, are_tracked_later=True)
    (_, [event]) = runs[0]
    event.row["itself"] = event
    del event
    track_kept(runs)
    before = sum(isinstance(one, DataEvent) for one in gc.get_objects())
    del runs
    gc.collect()
    assert sum(isinstance(one, DataEvent) for one in gc.get_objects()) == before - 1


def event_of(
    number: int,
    src_id: int = 4,
    opcode: Opcode = Opcode.UPSERT,
    notes: bool = False,
    row: bytes | None = None,
) -> Event:
    """Return an event whose row has this number, or these bytes."""
    told = EventMetadata(Op.UPDATE, None, 1, "f", 4, 0, number, notes=Notes() if notes else None)
    data = RowCodec(TEXT).encode({"id": number, "at": None}) if row is None else row
    payload = Part(data, schema_id(TEXT), 1)
    return Event(9, 5, src_id, 0, number, opcode, payload, metadata_part(encode_metadata(told)))


def window_of(*events: Event) -> Sequence[RowEvent]:
    """Return the events as the reader of a response has them."""
    reader = RowReader(1 << 20)
    reader.known = schemas_of(BOUND)
    data = b"".join(encode(event) for event in (*events, end_of_period(9, 5)))
    (window,) = reader.receive(data)
    assert isinstance(window, RowWindow)
    assert isinstance(window.events, PackedRows), "nothing to be made one by one"
    return window.events


def one_by_one(events: Sequence[RowEvent]) -> list[Any]:
    """Return the runs with the iterators that callbacks get their events from."""
    runs: Any = make_runs(DataEvent, events, BOUND, are_one_by_one=True)
    return [(name, run.one_by_one()) for name, run in runs]


def test_events_made_one_by_one_have_the_same_fields() -> None:
    events = window_of(
        *map(event_of, range(5)),
        *(event_of(number, 5, Opcode.DELETE) for number in range(5, 11)),
        event_of(11, 4, notes=True),
        event_of(12, 5),
    )
    runs: Any = make_runs(CompiledEvent, events, BOUND, are_one_by_one=True)
    assert [(name, len(run)) for name, run in runs] == [("t", 5), ("u", 6), ("t", 1), ("u", 1)]
    python = shapes(make_runs_in_python(PythonEvent, tuple(events), BOUND))
    assert shapes([(name, run.one_by_one()) for name, run in runs]) == python
    assert shapes(runs) == python
    assert shapes(make_runs(CompiledEvent, events, BOUND)) == python


def test_rows_are_those_of_the_events_of_all_sources_or_of_one() -> None:
    packed = window_of(
        *map(event_of, range(5)),
        event_of(5, 5, notes=True),
        *(event_of(n, 5) for n in range(6, 11)),
    )
    damaged = window_of(*map(event_of, range(4)), event_of(4, row=b"\x80"))
    for events in (packed, tuple(packed), ()):
        for src_id in (None, 4, 5, 6):
            rows = make_rows_in_python(PythonEvent, events, BOUND, src_id)
            assert make_rows(CompiledEvent, events, BOUND, src_id) == rows
    assert [row["id"] for row in make_rows(DataEvent, packed, BOUND, 5)] == [*range(5, 11)]
    for events in (damaged, tuple(damaged)):
        with pytest.raises(ProtocolError, match="not a row of t"):
            make_rows(DataEvent, events, BOUND)


def test_one_event_is_all_of_a_run_until_it_is_kept() -> None:
    events = window_of(*(event_of(number, notes=number % 2 == 0) for number in range(8)))
    kept, seen = [], []
    ((_, iterator),) = one_by_one(events)
    for event in iterator:
        seen.append(id(event))
        assert event.row["id"] == event.wire_key == event.index == len(seen) - 1
        assert event.metadata is not None
        assert event.metadata.row_index == event.wire_key
        if event.wire_key == 3:
            kept.append(event)
    assert seen[0] == seen[3] != seen[4] == seen[7]
    assert kept[0].row["id"] == 3


def lent(events: Sequence[RowEvent]) -> LentEvents:
    """Return the events as a window lends them."""
    return LentEvents(tuple([e for _, run in make_runs(DataEvent, events, BOUND) for e in run]))


def test_events_that_outlive_their_window_let_go_of_the_response() -> None:
    events: Any = window_of(*map(event_of, range(6)))
    (run,) = events.runs
    before = sys.getrefcount(run)
    window = lent(events)
    kept, is_read = window.events[2], window.events[4]
    assert is_read.row == {"id": 4, "at": None}
    assert sys.getrefcount(run) > before
    del window
    assert sys.getrefcount(run) == before
    assert [event.row["id"] for event in (kept, is_read)] == [2, 4]
    window = lent(events)
    together = window.events
    del window
    assert sys.getrefcount(run) == before
    assert [event.row["id"] for event in together] == [*range(6)]
    assert PythonLentEvents(together).events is together


def test_each_transaction_of_a_packed_batch_is_numbered_from_0() -> None:
    first = window_of(*map(event_of, range(5)), event_of(5, 5))
    later = tuple(
        (scn, *event[1:])
        for scn, event in zip((10, 10, 12, 12), window_of(*map(event_of, range(4))), strict=True)
    )
    events = joined([first, later, window_of(*map(event_of, range(6)))])
    runs: Any = make_runs(CompiledEvent, events, BOUND, True, are_one_by_one=True)
    assert [(name, len(run)) for name, run in runs] == [("t", 5), ("u", 1), ("t", 10)]
    python = shapes(make_runs_in_python(PythonEvent, tuple(events), BOUND, True))
    assert shapes([(name, run.one_by_one()) for name, run in runs]) == python
    assert [event.index for _, run in runs for event in run] == [*range(6), 0, 1, 0, 1, *range(6)]


def test_an_event_that_is_kept_lets_go_of_the_response() -> None:
    events: Any = window_of(*map(event_of, range(6)))
    (run,) = events.runs
    kept = []
    before = sys.getrefcount(run)
    for _, iterator in one_by_one(events):
        for event in iterator:
            if event.wire_key in (1, 5):
                kept.append(event)
                assert event.wire_key == 5 or event.row == {"id": 1, "at": None}
        del event, iterator
    assert sys.getrefcount(run) == before
    assert [gc.is_tracked(event) for event in kept] == [True, False]
    assert [event.row["id"] for event in kept] == [1, 5]
    assert [event.op for event in kept] == [Op.UPDATE, Op.UPDATE]
    assert all(map(gc.is_tracked, kept))


def test_an_event_whose_callback_fails_lets_go_of_the_response_too() -> None:
    events: Any = window_of(*map(event_of, range(6)))
    (run,) = events.runs
    before = sys.getrefcount(run)
    ((_, iterator),) = one_by_one(events)
    event = next(iterator)
    event.row["itself"] = event
    del iterator
    assert sys.getrefcount(run) == before
    assert gc.is_tracked(event)


def test_a_cycle_that_a_callback_makes_of_an_event_is_collected() -> None:
    gc.collect()
    before = sum(isinstance(one, DataEvent) for one in gc.get_objects())
    for _, iterator in one_by_one(window_of(*map(event_of, range(6)))):
        for event in iterator:
            event.row["itself"] = event
        del event, iterator
    assert sum(isinstance(one, DataEvent) for one in gc.get_objects()) == before + 6
    gc.collect()
    assert sum(isinstance(one, DataEvent) for one in gc.get_objects()) == before


def test_a_packed_window_is_a_sequence_of_its_events() -> None:
    sent = [*map(event_of, range(5)), event_of(5, 5), *map(event_of, range(6, 11))]
    events: Any = window_of(*sent)
    assert [type(run) is tuple for run in events.runs] == [False, True, False]
    whole = tuple(row_event(event, encode(event))[:-1] for event in sent)
    assert [event[:-1] for event in events] == list(whole)
    assert len(events) == 11
    assert [events[place][:-1] for place in (0, 4, 5, 6, 10, -1, -11)] == [
        whole[place] for place in (0, 4, 5, 6, 10, -1, -11)
    ]
    assert tuple(event[:-1] for event in events[3:7]) == whole[3:7]
    for place in (11, -12):
        with pytest.raises(IndexError):
            events[place]
    assert events == PackedRows(events.runs)
    assert events.__eq__(tuple(events))
    assert events != tuple(events)[1:]
    assert hash(events) == hash(tuple(events))
