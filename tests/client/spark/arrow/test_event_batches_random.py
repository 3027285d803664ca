"""Any stream, cut anywhere, damaged anywhere: the same compiled and not, and no wrong row."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator, Sequence
from datetime import date
from decimal import Decimal
from itertools import pairwise
from typing import Any, NamedTuple

import psutil
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from databus.client.spark.arrow.event_batches import EventBatches
from databus.client.spark.arrow.row_types import (
    Layout,
    WriterSchema,
)
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import DatabusError, ProtocolError
from databus.schemas.event import v1 as event_v1, v2 as event_v2
from databus.schemas.event.control import (
    checkpoint_event,
    ddl_event,
    end_of_period,
)
from databus.schemas.event.layout import V2
from databus.schemas.event.metadata import (
    Notes,
    Op,
)
from tests.client.spark.arrow.made_events import (
    FOREIGN,
    OLD,
    ONE,
    OTHER,
    ROW,
    SOURCE,
    TIME,
    WAYS,
    make_columns,
    order,
    read_by,
    row_event,
    rows_of,
    target_of,
    told,
    truncate,
    version,
    wire,
)
from tests.schemas.test_rows import MYSQL, SQLITE


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Read once with the compiled decoder going ahead and once without it."""
    with read_by(request.param):
        yield request.param


# Types that a column may have had one after another.
CHANGES = {
    "mysql": [["tinyint", "int", "bigint"], ["float", "double"], ["varchar(20)", "json"]],
    "sqlite": [["TEXT", "NUMERIC"]],
}
VALUES: dict[str, dict[str, Any]] = {"mysql": MYSQL, "sqlite": SQLITE}


class History(NamedTuple):
    """A table's versions, and the types of their columns."""

    versions: list[WriterSchema]
    columns: list[dict[str, str]]
    dialect: str
    nullable: bool

    def version_of(self, number: int) -> int:
        """Return the version that a digest stands for: the first with that text."""
        text = self.versions[number].text
        return next(schema.version for schema in self.versions if schema.text == text)


@st.composite
def histories(draw: st.DrawFn, source: str) -> History:
    dialect = draw(st.sampled_from(["mysql", "sqlite"]))
    kinds = CHANGES[dialect] + [[sql_type] for sql_type in VALUES[dialect]]
    pool = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=6))
    columns = []
    for _ in range(draw(st.integers(1, 3))):
        places = draw(st.permutations(range(len(pool))))[: draw(st.integers(1, len(pool)))]
        columns.append({f"c{place}": draw(st.sampled_from(pool[place])) for place in places})
    nullable = draw(st.booleans())
    versions = [version(n, types, source, dialect, nullable) for n, types in enumerate(columns, 1)]
    return History(versions, columns, dialect, nullable)


@st.composite
def table_rows(draw: st.DrawFn, history: History, number: int) -> dict[str, Any]:
    row = {}
    for name, sql_type in history.columns[number].items():
        values = VALUES[history.dialect][sql_type]
        row[name] = draw(st.none() | values if history.nullable else values)
    return row


class Stream(NamedTuple):
    """A response, the schemas of its rows, and the rows that it has."""

    schemas: list[WriterSchema]
    layout: Layout
    data: bytes
    rows: list[dict[str, Any]]
    is_plain: bool  # all of it is what the compiled way takes
    windows: int


ADDRESS = re.compile("0x[0-9a-f]+")
PLAIN, ZERO, PARTIAL, BARE, BYTE_KEY, VERSION_1 = range(6)


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    """Draw windows of one or two tables with some versions each, plain and not."""
    sources = [SOURCE, OTHER][: draw(st.integers(1, 2))]
    layout: Layout = "columns" if len(sources) == 1 else "structs"
    tables = [draw(histories(source)) for source in sources]
    schemas = [schema for table in tables for schema in table.versions]
    target = target_of(schemas, layout)
    oddities = [PLAIN] if draw(st.booleans()) else [PLAIN, ZERO, PARTIAL, BARE, BYTE_KEY, VERSION_1]
    pieces, rows, windows = [], [], draw(st.integers(1, 4))
    for scn in range(1, windows + 1):
        bare = 0
        for index in range(draw(st.integers(0, 5))):
            table = draw(st.sampled_from(tables))
            number = draw(st.integers(0, len(table.versions) - 1))
            row = draw(table_rows(table, number))
            op = draw(st.sampled_from([Op.INSERT, Op.UPDATE, Op.DELETE]))
            before = draw(st.none() | table_rows(table, number)) if op is Op.UPDATE else None
            kind = draw(st.sampled_from(oddities))
            is_bare = kind in (BARE, VERSION_1)
            change = told(
                op="update" if is_bare and op is Op.INSERT else op.value,
                scn=scn,
                index=bare if is_bare else index,
                source=table.versions[0].source,
                schema_version=table.version_of(number),
                gtid=None if is_bare else "0-1-7",
            )
            bare += is_bare
            notes = {ZERO: Notes(raw={"on": "0000-00-00"}), PARTIAL: Notes(before_absent=(0,))}
            if kind == PARTIAL and before is not None:
                del before[next(iter(table.columns[number]))]
            more: dict[str, Any] = {"metadata": None} if kind == BARE else {}
            event = row_event(
                table.versions[number], row, op, scn, index, before, notes.get(kind),
                b"k,1" if kind == BYTE_KEY else index, **more,
            )  # fmt: skip
            encode = event_v1.encode if kind == VERSION_1 else event_v2.encode
            pieces.append(encode(event))
            told_before = None if is_bare or kind == PARTIAL else before
            rows.append(record(target, table, number, layout, change, row, told_before))
        if oddities != [PLAIN] and draw(st.booleans()):
            pieces.append(event_v2.encode(ddl_event(scn, 1, 0, [SOURCE], "", "X")))
        pieces.append(event_v2.encode(end_of_period(scn, scn)))
    return Stream(schemas, layout, b"".join(pieces), rows, oddities == [PLAIN], windows)


def record(
    target: pa.Schema,
    table: History,
    number: int,
    layout: Layout,
    change: dict[str, Any],
    row: dict[str, Any],
    before: dict[str, Any] | None,
) -> dict[str, Any]:
    """Return the record that a change is to be."""
    source = change["source"]
    names = [field.name for field in target if field.name != "_databus"]
    if layout == "columns":
        now = fitted(names, table, number, row)
        told_before = None if before is None else fitted(names, table, number, before)
        return {**now, "_databus": {**change, "before": told_before}}
    columns = [field.name for field in target.field(source).type]
    empty = dict.fromkeys(names)
    now = {**empty, source: fitted(columns, table, number, row)}
    if before is not None:
        before = {**empty, source: fitted(columns, table, number, before)}
    return {**now, "_databus": {**change, "before": before}}


def fitted(names: list[str], table: History, number: int, row: dict[str, Any]) -> dict[str, Any]:
    types = table.columns[number]
    return {name: shown(types.get(name, ""), row.get(name)) for name in names}


def shown(sql_type: str, value: Any) -> Any:
    if value is None:
        return None
    if sql_type == "decimal(65,30)":
        whole, _, digits = f"{value:f}".partition(".")
        return f"{whole}.{digits:0<30}"
    if sql_type == "NUMERIC" and not isinstance(value, str):
        return f"x'{value.hex()}'" if isinstance(value, bytes) else repr(value)
    return value


def feed(columns: EventBatches, data: bytes, cuts: Sequence[int]) -> bytes:
    """Hand over the data in pieces, what was left of one before the next; return what is left."""
    rest = b""
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for begin, end in pairwise(places):
        rest += data[begin:end]
        rest = rest[columns.take(rest) :]
    return rest


@settings(deadline=None, max_examples=100)
@given(streams(), st.lists(st.integers(0, 1 << 20), max_size=12), st.sampled_from([1, 3, 20_000]))
def test_any_stream_gives_its_rows_however_it_is_cut_and_read(
    stream: Stream, cuts: list[int], batch_rows: int
) -> None:
    found = {}
    for name in WAYS:
        with read_by(name):
            for cut in ((), cuts):
                columns = make_columns(stream.schemas, None, stream.layout, batch_rows=batch_rows)
                assert feed(columns, stream.data, cut) == b""
                assert columns.rows == len(stream.rows)
                assert columns.window_scn == columns.window_time_ns == stream.windows
                found[name, bool(cut)] = columns.flush()
    expected = sorted(stream.rows, key=order)
    for (name, is_cut), batches in found.items():
        assert rows_of(batches) == expected
        assert all(batch.num_rows <= batch_rows for batch in batches)
        if is_cut:
            assert same(batches, found[name, False])
    if stream.is_plain:
        assert same(found["compiled", False], found["python", False])


def same(batches: list[pa.RecordBatch], others: list[pa.RecordBatch]) -> bool:
    return len(batches) == len(others) and all(
        batch.equals(other) for batch, other in zip(batches, others, strict=True)
    )


def outcome(way: str, schemas: list[WriterSchema], data: bytes) -> Any:
    """Say what came of the data: the rows up to where it ended, and how it did."""
    with read_by(way):
        columns = make_columns(schemas)
        ended: Any
        try:
            ended = columns.take(data)
        except DatabusError as error:
            ended = (type(error), str(error))
        return ended, columns.window_scn, rows_of(columns.flush())


SHORT = wire(
    row_event(ONE, ROW, Op.UPDATE, before=OLD),
    row_event(ONE, ROW, index=1, key=b"1,b"),
    end_of_period(5, 5),
    truncate(scn=6),
    row_event(ONE, ROW, scn=6, notes=Notes(raw={"x": "0"}), index=1),
    ddl_event(6, 1, 0, [SOURCE], "", "X"),
    row_event(ONE, ROW, Op.DELETE, scn=6, index=2),
    end_of_period(6, 6),
    checkpoint_event(Checkpoint.at(6)),
) + event_v1.encode(row_event(ONE, ROW, scn=7))


def test_each_flipped_bit_is_noticed_and_gives_no_wrong_row(way: str) -> None:
    whole = outcome(way, [ONE], SHORT)
    assert whole[0] == len(SHORT)
    for at in range(len(SHORT)):
        damaged = bytearray(SHORT)
        damaged[at] ^= 1 << at % 8
        ended, _, rows = outcome(way, [ONE], bytes(damaged))
        # An event may look as if more of it were to come, which its reader waits for in vain.
        assert ended[0] is ProtocolError if isinstance(ended, tuple) else ended <= at, at
        assert all(row in whole[2] for row in rows)


def test_a_flipped_bit_does_not_make_a_reader_wait_for_bytes_once_the_header_is_there(
    way: str,
) -> None:
    event = bytearray(wire(row_event(ONE, ROW)))
    event[V2.length.offset] ^= 1
    with pytest.raises(ProtocolError, match="header CRC does not match"):
        make_columns([ONE]).take(bytes(event))


def test_each_beginning_of_a_stream_is_waited_for(way: str) -> None:
    for size in range(len(SHORT)):
        ended, _, _ = outcome(way, [ONE], SHORT[:size])
        assert isinstance(ended, int)
        assert ended <= size


mixed = version(
    1,
    {"a": "int", "b": "varchar(9)", "c": "decimal(20,3)", "d": "date", "e": "timestamp"}
    | {"f": "double", "g": "float", "h": "blob", "i": "decimal(65,30)"},
)
anything = version(1, {"a": "NUMERIC", "b": "INTEGER", "c": "TEXT"}, OTHER, "sqlite")
MIXED = {
    "a": 70_000,
    "b": "naïve 漢字",
    "c": Decimal("12345678901234567.891"),
    "d": date(2020, 1, 1),
    "e": TIME,
    "f": 0.5,
    "g": 0.5,
    "h": b"\0\1",
    "i": Decimal(1),
}
ANYTHING = {"a": 1.5, "b": 1 << 40, "c": "ü"}


@settings(deadline=None, max_examples=250)
@given(
    st.sampled_from(
        [
            (mixed, MIXED),
            (anything, ANYTHING),
            (FOREIGN, dict.fromkeys("ace") | {"b": True, "d": 1}),
        ]
    ),
    st.binary(max_size=40) | st.none(),
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), min_size=1, max_size=3),
    st.booleans(),
)
def test_bytes_that_are_no_row_give_the_same_compiled_or_not(
    table: tuple[WriterSchema, dict[str, Any]],
    junk: bytes | None,
    changes: list[tuple[int, int]],
    is_metadata: bool,
) -> None:
    schema, row = table
    event = row_event(schema, row, Op.UPDATE, before=row)
    assert event.payload is not None
    assert event.metadata is not None
    part = event.metadata if is_metadata else event.payload
    data = bytearray(part.data if junk is None else junk)
    for at, value in changes if data else []:
        data[at % len(data)] = value
    changed = part._replace(data=bytes(data))
    event = event._replace(metadata=changed) if is_metadata else event._replace(payload=changed)
    around = row_event(schema, row, index=1)
    stream = wire(around, event, end_of_period(5, 5))
    compiled, python = (outcome(way, [schema], stream) for way in WAYS)
    # A text may have the address of what could not be read further.
    assert ADDRESS.sub("", repr(compiled)) == ADDRESS.sub("", repr(python))


def test_memory_does_not_grow(way: str) -> None:
    process = psutil.Process()
    events = [
        row_event(schema, row, Op.UPDATE, before=row, index=n, notes=None if n % 50 else Notes())
        for schema, row in ((mixed, MIXED), (anything, ANYTHING))
        for n in range(2000 if way == "compiled" else 60)
    ]
    good = wire(*events)
    bad = good[:-1] + bytes([good[-1] ^ 1])

    def read_all() -> None:
        columns = make_columns([mixed, anything], layout="structs")
        for data in (good, good, bad):
            try:
                columns.take(data)
            except ProtocolError:
                continue
            assert sum(batch.num_rows for batch in columns.flush()) == len(events)

    for _ in range(5):
        read_all()
    gc.collect()
    before = process.memory_info().rss
    for _ in range(25):
        read_all()
    gc.collect()
    assert process.memory_info().rss - before < 6 << 20
