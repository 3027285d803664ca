"""The rows of a window as an Arrow table: compiled and not, typed as the Spark reader's rows."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from databus.client.arrow import tables
from databus.client.arrow._column_decoder import ColumnDecoder
from databus.client.dispatcher.data_window import DataWindow
from databus.client.machines.position import Position
from databus.client.puller.buffer_items import ReadWindow
from databus.client.puller.window_decoder import WindowDecoder
from databus.client.subscription import RegisteredSchema, Subscription, bind
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.columns.avro_columns import WriterSchema
from databus.schemas.errors import ProtocolError, RowError, SchemaError, UnknownSourceError
from databus.schemas.event import v1 as event_v1
from databus.schemas.event.control import end_of_period
from databus.schemas.event.event import Event
from databus.schemas.event.metadata import Notes, Op
from tests.client.spark.arrow.made_events import (
    EXTREMES,
    FOREIGN,
    ONE,
    OTHER,
    ROW,
    SOURCE,
    SRC_IDS,
    TIME,
    WAYS,
    row_event,
    target_of,
    truncate,
    version,
    wire,
)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Decode once with the compiled decoder going ahead and once without it."""
    made = ColumnDecoder if request.param == "compiled" else None
    with patch.object(tables, "new_decoder", made):
        yield request.param


def window_of(
    schemas: Sequence[WriterSchema], *events: Event, readers: dict[str, str] | None = None
) -> DataWindow:
    """Return the window that a client of these schemas makes of the events."""
    sources = {schema.source: schema.src_id for schema in schemas}
    subscription = Subscription(tuple(sources), reader_schemas=readers or {})
    registered = [RegisteredSchema(one.src_id, one.version, one.text) for one in schemas]
    decoder = WindowDecoder(1 << 24)
    decoder.use(bind(subscription, sources, registered))
    decoder.begin(Position(Checkpoint.flexible()))
    (item,) = decoder.receive(wire(*events, end_of_period(events[-1].scn, 1)))
    assert isinstance(item, ReadWindow)
    return DataWindow(item)


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    table.validate(full=True)
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


@pytest.mark.parametrize("nullable", [False, True])
@pytest.mark.parametrize(
    ("dialect", "sql_type", "values"), EXTREMES, ids=[f"{d} {t}" for d, t, _ in EXTREMES]
)
def test_each_type_is_as_in_spark(
    dialect: str, sql_type: str, values: list[Any], nullable: bool, way: str
) -> None:
    schema = version(1, {"c": sql_type}, dialect=dialect, nullable=nullable)
    values = [*values, None] if nullable else values
    events = [
        row_event(schema, {"c": value}, Op.UPDATE, before={"c": values[-1]}, index=n)
        for n, value in enumerate(values)
    ]
    table = window_of([schema], *events).to_arrow()
    target = target_of([schema])
    assert table.schema.field("c").type == target.field("c").type
    assert [row["c"] for row in rows_of(table)] == values
    assert {str(row["_databus"]["before"]["c"]) for row in rows_of(table)} == {str(values[-1])}
    # The fields of `_databus` are Spark's, but for those of a query.
    spark = {field.name: field.type for field in target.field("_databus").type}
    ours = {field.name: field.type for field in table.schema.field("_databus").type}
    assert ours == {n: t for n, t in spark.items() if n not in ("physical_source", "as_of")}
    assert list(ours) == [name for name in spark if name in ours]


def test_a_row_says_what_changed_and_which_columns_are_its_key(way: str) -> None:
    events = [
        row_event(ONE, ROW, scn=5),
        row_event(ONE, {**ROW, "note": "b"}, Op.UPDATE, scn=5, index=1, before=ROW),
        row_event(ONE, ROW, Op.DELETE, scn=5, index=2),
        truncate(5, index=3),
    ]
    table = window_of([ONE], *events).to_arrow()
    told = {"scn": 5, "time": TIME, "source": SOURCE, "gtid": "0-1-7"}
    inserted, updated, deleted, emptied = rows_of(table)
    assert inserted == {
        **ROW,
        "_databus": {**told, "op": "insert", "index": 0, "schema_version": 1, "before": None},
    }
    assert (updated["note"], updated["_databus"]["before"]) == ("b", ROW)
    assert (deleted["id"], deleted["_databus"]["op"]) == (1, "delete")
    assert (emptied["id"], emptied["_databus"]["op"]) == (None, "truncate")
    keyed = table.schema.field("id").metadata or {}
    assert keyed.get(b"databus.sqlType") == b"bigint"


def test_rows_stay_in_order_where_some_are_left_to_python(way: str) -> None:
    noted = Notes(raw={"note": "0000"})
    events = [
        row_event(ONE, {"id": n, "note": None}, index=n, notes=noted if n % 3 == 1 else None)
        for n in range(10)
    ]
    table = window_of([ONE], *events).to_arrow()
    assert [row["id"] for row in rows_of(table)] == list(range(10))
    assert [row["_databus"]["index"] for row in rows_of(table)] == list(range(10))


def test_rows_of_two_versions_share_a_type_that_holds_both(way: str) -> None:
    old = version(1, {"id": "int", "gone": "varchar(9)"})
    new = version(2, {"id": "bigint", "more": "double"})
    events = [
        row_event(old, {"id": 1, "gone": "x"}),
        row_event(new, {"id": 1 << 40, "more": 0.5}, index=1),
        row_event(old, {"id": 2, "gone": None}, index=2),
    ]
    table = window_of([old, new], *events).to_arrow()
    assert table.column_names == ["id", "more", "gone", "_databus"]
    assert [(row["id"], row["more"], row["gone"]) for row in rows_of(table)] == [
        (1, None, "x"),
        (1 << 40, 0.5, None),
        (2, None, None),
    ]
    assert [row["_databus"]["schema_version"] for row in rows_of(table)] == [1, 2, 1]
    # A window of one version has the columns of that version.
    assert window_of([old, new], events[0]).to_arrow().column_names == ["id", "gone", "_databus"]


def test_versions_without_a_common_type_are_an_error(way: str) -> None:
    old, new = version(1, {"a": "date"}), version(2, {"a": "int"})
    shown = window_of([old, new], row_event(old, {"a": None}), row_event(new, {"a": 1}, index=1))
    with pytest.raises(SchemaError, match=r"'a'.*no type holds both"):
        shown.to_arrow()


def test_a_column_named_as_the_description_of_changes_is_an_error(way: str) -> None:
    named = version(1, {"id": "int", "_databus": "int"})
    with pytest.raises(SchemaError, match="has a column '_databus' itself"):
        window_of([named], row_event(named, {"id": 1, "_databus": 2})).to_arrow()


def test_a_partial_row_is_an_error_that_names_the_columns(way: str) -> None:
    partial = row_event(ONE, {"id": 1}, notes=Notes(absent=(1,)))
    with pytest.raises(RowError, match=r"note.*was not logged"):
        window_of([ONE], partial).to_arrow()


def test_a_row_that_is_damaged_inside_is_an_error(way: str) -> None:
    event = row_event(ONE, ROW)
    assert event.payload is not None
    shorter = event._replace(payload=event.payload._replace(data=event.payload.data[:-1]))
    with pytest.raises(ProtocolError):
        window_of([ONE], shorter).to_arrow()


def test_events_of_other_relays_are_taken(way: str) -> None:
    row = {"a": None, "b": True, "c": None, "d": 7, "e": 0.5}
    bare = row_event(FOREIGN, row, metadata=None)
    table = window_of([FOREIGN], bare, bare).to_arrow()
    assert [row["_databus"]["op"] for row in rows_of(table)] == ["update", "update"]
    assert [row["_databus"]["index"] for row in rows_of(table)] == [0, 1]
    assert rows_of(table)[0]["e"] == "0.5"


def test_rows_have_the_applications_own_schema(way: str) -> None:
    reader = version(9, {"note": "varchar(9)"}).text
    shown = window_of([ONE], row_event(ONE, ROW), readers={SOURCE: reader})
    table = shown.to_arrow()
    assert table.column_names == ["note", "_databus"]
    assert [row["note"] for row in rows_of(table)] == [row["note"] for row in shown.to_pylist()]


def test_a_table_has_the_rows_of_one_source(way: str) -> None:
    other = version(1, {"id": "int"}, OTHER)
    events = [row_event(ONE, ROW), row_event(other, {"id": 7}, index=1)]
    shown = window_of([ONE, other], *events)
    with pytest.raises(ValueError, match=r"rows of shop.t, shop.u"):
        shown.to_arrow()
    assert [row["id"] for row in rows_of(shown.to_arrow(OTHER))] == [7]
    only = window_of([ONE, other], events[0])
    empty = only.to_arrow(OTHER)
    assert (empty.num_rows, empty.column_names) == (0, ["id", "_databus"])
    with pytest.raises(UnknownSourceError, match=r"shop\.none"):
        only.to_arrow("shop.none")
    assert SRC_IDS[SOURCE] != SRC_IDS[OTHER]


def test_events_of_version_1_are_taken(way: str) -> None:
    event = row_event(ONE, ROW, metadata=None)
    decoder = WindowDecoder(1 << 24)
    registered = [RegisteredSchema(ONE.src_id, 1, ONE.text)]
    decoder.use(bind(Subscription((SOURCE,)), {SOURCE: ONE.src_id}, registered))
    decoder.begin(Position(Checkpoint.flexible()))
    data = event_v1.encode(event) + event_v1.encode(end_of_period(5, 1))
    (item,) = decoder.receive(data)
    assert isinstance(item, ReadWindow)
    assert [row["id"] for row in rows_of(DataWindow(item).to_arrow())] == [1]


_WITHOUT_PYARROW = """
import sys
sys.modules["pyarrow"] = None
from databus.client.dispatcher.data_window import DataWindow
import databus.client.client
assert not any(name.startswith(("pyspark", "databus.client.spark")) for name in sys.modules)
try:
    DataWindow(None).to_arrow()
except ImportError as error:
    print(error)
"""


def test_without_pyarrow_the_error_says_what_to_install() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_PYARROW], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "to_arrow() needs pyarrow: pip install pyarrow"
