"""The compiled fields of an event are those of Python, and cost the garbage collector nothing."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from databus.client.consumer import DataEvent
from databus.client.events._event_fields import EventFields, make_runs, track_kept
from databus.client.events.event_fields import PythonEventFields, make_runs_in_python
from databus.client.subscription import RegisteredSchema, Subscription, bind
from databus.schemas.avro_rows import RowCodec, schema_id
from databus.schemas.errors import ProtocolError
from databus.schemas.event.event import Event, Opcode, Part
from databus.schemas.event.metadata import EventMetadata, Op, encode_metadata, metadata_part
from databus.schemas.event.v2 import encode
from databus.schemas.stream.row_reader import RowEvent, row_event
from databus.schemas.table import Column, Table
from databus.schemas.table_schema import avro_schema

TEXT = avro_schema(Table("t", (Column("id", "int", 0, False), Column("at", "datetime", 1))))
BOUND = bind(
    Subscription(("t", "u")),
    {"t": 4, "u": 5},
    [RegisteredSchema(4, 1, TEXT), RegisteredSchema(5, 1, TEXT)],
)
ROW = {"id": 1, "at": None}
FIELDS = ("source", "src_id", "scn", "key", "timestamp_ns", "is_delete", "index", "row")


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


def test_an_event_is_tracked_once_its_row_is_read_and_a_cycle_is_collected() -> None:
    event = one_event(made(Opcode.UPSERT))
    assert not gc.is_tracked(event)
    assert event.row == ROW
    assert gc.is_tracked(event)
    before = sum(isinstance(one, DataEvent) for one in gc.get_objects())
    event.row["itself"] = event
    del event
    gc.collect()
    assert sum(isinstance(one, DataEvent) for one in gc.get_objects()) == before - 1


def test_only_kinds_of_events_are_made() -> None:
    with pytest.raises(TypeError):
        make_runs(dict, (), BOUND)  # type: ignore[type-var]


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
