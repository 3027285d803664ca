"""Bytes of a response to batches: what each record says, which schemas and events end it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from typing import Any
from unittest.mock import patch

import pytest

from databus.client.spark.arrow import event_batches
from databus.client.spark.arrow.event_batches import UnknownSchemaError
from databus.client.spark.arrow.row_types import (
    Layout,
)
from databus.schemas.avro_rows import schema_id
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import ProtocolError, RowError, SchemaError
from databus.schemas.event import v1 as event_v1, v2 as event_v2
from databus.schemas.event.control import (
    checkpoint_event,
    ddl_event,
    dml_event,
    end_of_period,
    error_event,
    scn_regress,
)
from databus.schemas.event.event import Event, Part
from databus.schemas.event.metadata import (
    METADATA_DIGEST,
    METADATA_DIGESTS,
    Notes,
    Op,
    metadata_part,
)
from databus.schemas.table_change import TableChange, shape_id, with_change
from tests.client.spark.arrow.made_events import (
    OLD,
    ONE,
    OTHER,
    ROW,
    SOURCE,
    TIME_NS,
    WAYS,
    make_columns,
    read,
    read_by,
    row_event,
    rows_of,
    target_of,
    told,
    truncate,
    version,
    wire,
)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Read once with the compiled decoder going ahead and once without it."""
    with read_by(request.param):
        yield request.param


# -- what is said of a row -----------------------------------------------------------------


def test_a_record_says_what_happened(way: str) -> None:
    columns = make_columns([ONE], as_of=9)
    rows = read(
        columns,
        row_event(ONE, ROW, index=0),
        row_event(ONE, ROW, Op.UPDATE, index=1, before=OLD),
        row_event(ONE, ROW, Op.UPDATE, index=2),
        row_event(ONE, OLD, Op.DELETE, index=3, gtid=None),
        row_event(ONE, OLD, Op.SNAPSHOT, index=4),
        end_of_period(5, TIME_NS),
    )
    assert [row.pop("_databus") for row in rows] == [
        told(as_of=9),
        told(as_of=9, op="update", index=1, before=OLD),
        told(as_of=9, op="update", index=2),
        told(as_of=9, op="delete", index=3, gtid=None),
        told(as_of=9, op="snapshot", index=4),
    ]
    assert rows == [ROW, ROW, ROW, OLD, OLD]
    assert (columns.window_scn, columns.window_time_ns) == (5, TIME_NS)


def test_a_row_before_anything_but_an_update_is_not_one(way: str) -> None:
    events = [
        row_event(ONE, ROW, op, index=op is Op.DELETE, before=OLD) for op in (Op.INSERT, Op.DELETE)
    ]
    assert [row["_databus"]["before"] for row in read(make_columns([ONE]), *events)] == [None, None]


def test_rows_before_can_be_left_out(way: str) -> None:
    columns = make_columns([ONE], target_of([ONE], before_images=False))
    (row,) = read(columns, row_event(ONE, ROW, Op.UPDATE, before=OLD))
    assert row["_databus"] == {k: v for k, v in told(op="update").items() if k != "before"}


def test_rows_of_a_snapshot_are_how_they_stand(way: str) -> None:
    rows = read(
        make_columns([ONE], as_snapshot=True),
        row_event(ONE, ROW, Op.UPDATE, before=OLD),
        row_event(ONE, ROW, Op.INSERT, scn=4),
        row_event(ONE, ROW, Op.DELETE, scn=9),
        truncate(scn=10),
    )
    ops = [(row["_databus"]["scn"], row["_databus"]["op"]) for row in rows]
    assert ops == [(4, "snapshot"), (5, "snapshot"), (9, "delete"), (10, "truncate")]
    assert {row["_databus"]["before"] is None for row in rows} == {True}


def test_keys_of_any_kind_and_traces_change_nothing(way: str) -> None:
    events = [
        row_event(ONE, ROW, index=0, key=b"a,b"),
        row_event(ONE, ROW, index=1, key=b"", is_traced=True),
        row_event(ONE, ROW, index=2, key=-1, is_replicated=True),
    ]
    rows = read(make_columns([ONE]), *events)
    assert [row["_databus"]["index"] for row in rows] == [0, 1, 2]
    assert all(row["note"] == "new" for row in rows)


OLD_DIGEST = next(iter(METADATA_DIGESTS - {METADATA_DIGEST}))


def test_metadata_of_the_version_before_is_read(way: str) -> None:
    event = row_event(ONE, ROW, Op.UPDATE, before=OLD)
    assert event.metadata is not None
    # What the newer version adds to its bytes is the last one: no notes.
    older = Part(event.metadata.data[:-1], OLD_DIGEST, 1)
    (row,) = read(make_columns([ONE]), event._replace(metadata=older))
    assert row["_databus"] == told(op="update", before=OLD)


@pytest.mark.parametrize("metadata", [None, Part(b"\7", b"else", 1)])
def test_an_event_without_metadata_of_ours_says_what_the_wire_says(
    metadata: Part | None, way: str
) -> None:
    columns = make_columns([ONE])
    bare = [row_event(ONE, ROW, op, metadata=metadata) for op in (Op.INSERT, Op.DELETE)]
    data = wire(*bare, row_event(ONE, ROW, index=9), end_of_period(5, 1))
    data += event_v1.encode(bare[0]._replace(scn=6)) + event_v1.encode(bare[1]._replace(scn=6))
    data += event_v2.encode(bare[0]._replace(scn=7))
    assert columns.take(data) == len(data)
    changes = [row["_databus"] for row in rows_of(columns.flush())]
    assert [(c["scn"], c["op"], c["index"], c["gtid"]) for c in changes] == [
        (5, "update", 0, None),
        (5, "delete", 1, None),
        (5, "insert", 9, "0-1-7"),
        (6, "update", 0, None),
        (6, "delete", 1, None),
        (7, "update", 0, None),
    ]


def test_a_value_that_no_type_holds_is_null(way: str) -> None:
    schema = version(1, {"id": "int", "on": "date"})
    notes = Notes(raw={"on": "0000-00-00"}, before_raw={"on": "0000-00-00"})
    zero = {"id": 1, "on": None}
    rows = read(
        make_columns([schema]),
        row_event(schema, zero, Op.UPDATE, notes=notes, before=zero, index=0),
        row_event(schema, {"id": 2, "on": date.max}, index=1),
    )
    assert [row["on"] for row in rows] == [None, date.max]
    assert rows[0]["_databus"]["before"] == zero


def test_a_row_of_which_columns_were_not_logged_is_refused(way: str) -> None:
    columns = make_columns([ONE])
    partial = row_event(ONE, {"id": 1}, Op.UPDATE, scn=8, notes=Notes(absent=(1,)))
    data = wire(row_event(ONE, ROW), end_of_period(5, 5), partial)
    with pytest.raises(RowError) as refused:
        columns.take(data)
    text = str(refused.value)
    assert text.startswith("shop.t, column 'note': was not logged at scn 8: ")
    assert "binlog_row_image=FULL" in text
    assert "bootstrap server" in text


def test_a_row_before_of_which_columns_were_not_logged_is_left_out(way: str) -> None:
    notes = Notes(before_absent=(1,))
    event = row_event(ONE, ROW, Op.UPDATE, before={"id": 1}, notes=notes)
    (row,) = read(make_columns([ONE]), event)
    assert row == {**ROW, "_databus": told(op="update")}


@pytest.mark.parametrize("layout", ["columns", "structs"])
def test_an_emptied_table_is_a_record_without_a_row(layout: Layout, way: str) -> None:
    rows = read(
        make_columns([ONE], layout=layout), truncate(), truncate(scn=6)._replace(metadata=None)
    )
    empty = {"id": None, "note": None} if layout == "columns" else {SOURCE: None}
    expected: dict[str, Any] = {"op": "truncate", "schema_version": None}
    assert rows == [
        {**empty, "_databus": told(**expected)},
        {**empty, "_databus": told(6, **expected, gtid=None)},
    ]


def test_the_end_of_a_snapshot_is_a_record(way: str) -> None:
    columns = make_columns([ONE])
    columns.add_mark(70, SOURCE, TIME_NS)
    columns.add_mark(71, SOURCE)
    assert columns.rows == 2
    change = told(op="snapshot_end", scn=70, index=None, schema_version=None, gtid=None)
    assert rows_of(columns.flush()) == [
        {"id": None, "note": None, "_databus": change},
        {"id": None, "note": None, "_databus": {**change, "scn": 71, "as_of": 71, "time": None}},
    ]
    assert (columns.rows, columns.flush()) == (0, [])


def test_each_source_has_its_struct(way: str) -> None:
    other = version(4, {"n": "int"}, OTHER)
    rows = read(
        make_columns([ONE, other], layout="structs"),
        row_event(ONE, ROW, Op.UPDATE, before=OLD, index=0),
        row_event(other, {"n": 7}, Op.UPDATE, before={"n": 6}, index=1),
        row_event(other, {"n": 8}, Op.UPDATE, index=2),
    )
    first = told(op="update", before={SOURCE: OLD, OTHER: None})
    second = told(op="update", source=OTHER, schema_version=4, index=1)
    assert rows == [
        {SOURCE: ROW, OTHER: None, "_databus": first},
        {
            SOURCE: None,
            OTHER: {"n": 7},
            "_databus": {**second, "before": {SOURCE: None, OTHER: {"n": 6}}},
        },
        {SOURCE: None, OTHER: {"n": 8}, "_databus": {**second, "index": 2}},
    ]


# -- schemas -------------------------------------------------------------------------------


def test_columns_are_widened_and_those_that_a_version_lacks_are_null(way: str) -> None:
    versions = [
        version(1, {"id": "int", "gone": "text", "price": "decimal(5,2)", "f": "float"}),
        version(2, {"price": "decimal(10,4)", "f": "double", "ID": "bigint", "new": "date"}),
    ]
    old = {"id": 1, "gone": "x", "price": Decimal("1.20"), "f": 0.5}
    new = {"price": Decimal("2.3456"), "f": 0.1, "ID": 1 << 40, "new": date.max}
    rows = read(
        make_columns(versions),
        row_event(versions[0], old, Op.UPDATE, before=old, index=0),
        row_event(versions[1], new, index=1),
    )
    first = {"price": Decimal("1.2"), "f": 0.5, "ID": 1, "new": None, "gone": "x"}
    assert rows == [
        {**first, "_databus": told(op="update", before=first)},
        {**new, "gone": None, "_databus": told(index=1, schema_version=2)},
    ]
    assert list(rows[0])[:-1] == ["price", "f", "ID", "new", "gone"]


NEWER = version(2, {"id": "bigint", "more": "int", "note": "varchar(9)"})


def test_a_new_column_ends_it_unless_it_is_to_be_ignored(way: str) -> None:
    target = target_of([ONE])
    event = row_event(NEWER, {**ROW, "more": 1}, Op.UPDATE, before={**OLD, "more": None})
    columns = make_columns([ONE, NEWER], target)
    assert len(read(columns, row_event(ONE, ROW))) == 1
    with pytest.raises(SchemaError) as refused:
        columns.take(wire(event))
    text = str(refused.value)
    assert text.startswith("shop.t, column 'more': it is new in schema version 2")
    assert "restart the query to add it, or set onNewColumn=ignore" in text
    columns = make_columns([ONE, NEWER], target, on_new_column="ignore")
    assert read(columns, event) == [
        {**ROW, "_databus": told(op="update", before=OLD, schema_version=2)}
    ]


@pytest.mark.parametrize("on_new_column", ["fail", "ignore"])
def test_a_type_that_the_target_does_not_hold_ends_it(on_new_column: str, way: str) -> None:
    target = target_of([version(1, {"id": "int"})])
    wider = version(2, {"id": "bigint"})
    columns = make_columns([wider], target, on_new_column=on_new_column)
    with pytest.raises(SchemaError) as refused:
        columns.take(wire(row_event(wider, {"id": 1})))
    text = str(refused.value)
    assert text.startswith("shop.t, column 'id': it is long (bigint) in schema version 2, and the ")
    assert "started with int32: restart the query" in text


def test_a_type_of_between_asks_for_a_restart_where_that_holds_it_and_else_for_a_reload(
    way: str,
) -> None:
    first, wider = version(1, {"id": "int", "n": "int"}), version(2, {"id": "int", "n": "bigint"})
    renamed = version(3, {"id": "int", "big": "bigint"})
    again = version(4, {"id": "int", "n": "varchar(9)"})
    change = TableChange(11, shape_id(renamed.text), added={"n": None})
    again = again._replace(text=with_change(again.text, change))
    event = wire(row_event(wider, {"id": 1, "n": 5_000_000_000}))
    columns = make_columns([first, wider, renamed], target_of([first]))
    with pytest.raises(SchemaError, match="started with int32: restart the query"):
        columns.take(event)
    columns = make_columns([first, wider, renamed, again], target_of([first]))
    with pytest.raises(SchemaError, match="older rows must be read again"):
        columns.take(event)


def test_a_type_that_has_none_in_common_with_those_before_ends_it(way: str) -> None:
    first, second = version(1, {"id": "bigint"}), version(2, {"id": "time"})
    columns = make_columns([first, second], target_of([first]))
    assert len(read(columns, row_event(first, {"id": 1}))) == 1
    with pytest.raises(SchemaError, match=r"no type holds both.*columnsAsText=id"):
        columns.take(wire(row_event(second, {"id": 1})))


def test_a_source_that_the_target_has_not_ends_it(way: str) -> None:
    other = version(1, {"n": "int"}, OTHER)
    columns = make_columns([ONE, other], target_of([ONE], "structs"), "structs")
    with pytest.raises(SchemaError, match=r"source shop\.u came after the query was started"):
        columns.take(wire(row_event(other, {"n": 1})))
    columns.add_mark(5, OTHER)
    with pytest.raises(SchemaError, match=r"source shop\.u came after the query was started"):
        columns.flush()


def test_an_unknown_schema_can_be_given_and_reading_goes_on(way: str) -> None:
    columns = make_columns([ONE], target_of([ONE]), on_new_column="ignore")
    known, unknown = row_event(ONE, ROW), row_event(NEWER, {**ROW, "more": 1}, index=1)
    data = wire(known, unknown, known._replace(scn=6))
    for _ in range(2):
        with pytest.raises(UnknownSchemaError, match="ask /register again") as raised:
            columns.take(data)
        assert (raised.value.src_id, raised.value.digest) == (40, schema_id(NEWER.text))
        data = data[raised.value.consumed :]
    assert columns.rows == 1
    assert data == wire(unknown, known._replace(scn=6))
    columns.add_schemas([NEWER, ONE])
    assert columns.take(data) == len(data)
    changes = [row["_databus"] for row in rows_of(columns.flush())]
    assert [(c["scn"], c["schema_version"]) for c in changes] == [(5, 1), (5, 2), (6, 1)]


@pytest.mark.parametrize("event", [row_event(ONE, ROW)._replace(src_id=99), truncate(src_id=99)])
def test_an_unknown_source_is_an_unknown_schema(event: Event, way: str) -> None:
    with pytest.raises(UnknownSchemaError) as raised:
        make_columns([ONE]).take(wire(event))
    assert (raised.value.src_id, raised.value.consumed) == (99, 0)


def test_a_schema_that_no_row_has_is_not_looked_at(way: str) -> None:
    columns = make_columns([ONE, version(2, {"id": "blob"})], target_of([ONE]))
    assert len(read(columns, row_event(ONE, ROW))) == 1


def test_many_schemas_are_told_from_each_other(way: str) -> None:
    versions = [version(n, {"id": f"varchar({n})"}) for n in range(1, 60)]
    events = [
        row_event(schema, {"id": str(schema.version)}, index=n)
        for n, schema in enumerate(versions * 2)
    ]
    rows = read(make_columns(versions), *events)
    assert all(row["id"] == str(row["_databus"]["schema_version"]) for row in rows)
    assert len(rows) == 118


# -- the stream ----------------------------------------------------------------------------


def test_a_checkpoint_event_is_kept_and_ddl_is_passed_over(way: str) -> None:
    columns = make_columns([ONE])
    ddl = ddl_event(5, 1, 0, [SOURCE], "shop", "ALTER TABLE t")
    checkpoint = Checkpoint.at(9)
    dml = dml_event(5, 1, 0, [SOURCE], "shop", "DELETE FROM t")
    events = [ddl, row_event(ONE, ROW), dml, checkpoint_event(checkpoint)]
    assert len(read(columns, *events)) == 1
    assert (columns.checkpoint, columns.window_scn) == (checkpoint, None)
    # What a checkpoint ends is a page, with rows of many windows.
    page = [row_event(ONE, ROW, scn=scn) for scn in (7, 3, 9)]
    events = [*page, checkpoint_event(Checkpoint.at(8)), end_of_period(10, 1)]
    assert len(read(columns, *events)) == 3
    positions: tuple[Any, Any] = columns.checkpoint, columns.window_scn
    assert positions == (Checkpoint.at(8), 10)


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (error_event(-5, "the disk is full"), "the server sent error event -5: the disk is full"),
        (scn_regress(Checkpoint.at(3)), "unexpected control event -51"),
        (end_of_period(5, 5)._replace(src_id=-77), "unexpected control event -77"),
    ],
)
def test_error_events_and_unknown_ones_end_it(event: Event, text: str, way: str) -> None:
    with pytest.raises(ProtocolError, match=text):
        make_columns([ONE]).take(wire(row_event(ONE, ROW), event))


@pytest.mark.parametrize(
    "events",
    [
        [row_event(ONE, ROW, scn=4)],
        [row_event(ONE, ROW), row_event(ONE, ROW, scn=4), row_event(ONE, ROW)],
        [ddl_event(4, 1, 0, [SOURCE], "", "X")],
        [row_event(ONE, ROW, scn=4, metadata=None)],
        [row_event(ONE, ROW, scn=4, metadata=None), row_event(ONE, ROW)],
    ],
)
def test_events_of_another_window_are_refused(events: list[Event], way: str) -> None:
    columns = make_columns([ONE])
    data = wire(row_event(ONE, ROW), end_of_period(5, 1))
    assert columns.take(data) == len(data)
    with pytest.raises(ProtocolError, match="events of other windows in window 5"):
        columns.take(wire(*events, end_of_period(5, 5)))


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (row_event(ONE, ROW)._replace(payload=None), "a row event has no payload"),
        (row_event(ONE, ROW, Op.TRUNCATE), "a row event has op truncate"),
        (row_event(ONE, ROW, metadata=metadata_part(b"\7")), "metadata cannot be read"),
        (row_event(ONE, ROW)._replace(payload=Part(b"\7", schema_id(ONE.text))), "not a row of"),
    ],
)
def test_an_event_that_cannot_be_read_is_named(event: Event, text: str, way: str) -> None:
    with pytest.raises(ProtocolError, match=rf"shop\.t at scn 5: {text}.*\(at byte 0\)"):
        make_columns([ONE]).take(wire(event))


def test_a_value_beyond_its_type_is_refused(way: str) -> None:
    schema = version(1, {"n": "int", "d": "decimal(3,1)"}, nullable=False)
    for payload in (b"\xfe\xff\xff\xff\x1f" + b"\2\1", b"\2" + b"\4\x03\xe8"):
        event = row_event(schema, {"n": 1, "d": Decimal(1)})
        event = event._replace(payload=Part(payload, schema_id(schema.text)))
        with pytest.raises(
            ProtocolError, match=r"shop\.t at scn 5: column '.' has .*, which does not fit"
        ):
            make_columns([schema]).take(wire(event))


def test_a_batch_has_no_more_rows_than_it_may(way: str) -> None:
    columns = make_columns([ONE], batch_rows=100)
    events = [row_event(ONE, ROW, index=n) for n in range(250)]
    data = wire(*events)
    assert columns.take(data) == len(data)
    assert columns.rows == 250
    assert [batch.num_rows for batch in columns.flush()] == [100, 100, 50]
    assert columns.rows == 0
    columns.take(data)
    assert [batch.num_rows for batch in columns.flush()] == [100, 100, 50]


def test_a_batch_ends_when_it_has_many_bytes(way: str) -> None:
    schema = version(1, {"note": "longtext"})
    event = wire(row_event(schema, {"note": "x" * 100_000}))
    with patch.object(event_batches, "BATCH_BYTES", 1_000_000):
        columns = make_columns([schema])
        columns.take(event * 25)
        batches = columns.flush()
    assert [batch.num_rows for batch in batches] == [10, 10, 5]
    assert {row["note"] for row in rows_of(batches)} == {"x" * 100_000}


def test_nothing_is_taken_of_nothing(way: str) -> None:
    columns = make_columns([ONE])
    assert columns.take(b"") == 0
    assert (columns.rows, columns.flush()) == (0, [])


def test_batches_outlive_what_made_them(way: str) -> None:
    columns = make_columns([ONE])
    columns.take(wire(*[row_event(ONE, ROW, Op.UPDATE, before=OLD, index=n) for n in range(999)]))
    (batch,) = columns.flush()
    del columns
    gc.collect()
    assert {(row["note"], row["_databus"]["before"]["note"]) for row in rows_of([batch])} == {
        ("new", "old")
    }


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_bytes_are_taken(kind: Any, way: str) -> None:
    data = wire(row_event(ONE, ROW), truncate(), end_of_period(5, 5))
    columns = make_columns([ONE])
    assert columns.take(kind(data)) == len(data)
    assert columns.rows == 2
