"""Makes events and windows as a relay sends them: encoded, and decoded by the client's own code."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal

from databus.client.dispatcher.data_window import DataWindow
from databus.client.events.data_event import DataEvent
from databus.client.machines.position import Position
from databus.client.puller.buffer_items import BootstrapPage, ReadWindow
from databus.client.puller.window_decoder import WindowDecoder
from databus.client.subscription import RegisteredSchema, Subscription, bind
from databus.schemas.avro_rows import row_codec, schema_id
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.event.control import end_of_period
from databus.schemas.event.event import Event, Opcode, Part
from databus.schemas.event.keys import event_key
from databus.schemas.event.metadata import EventMetadata, Op, encode_metadata, metadata_part
from databus.schemas.event.v2 import encode
from databus.schemas.table import Column, Table
from databus.schemas.table_schema import avro_schema

_MAX_WINDOW_BYTES = 1 << 30
_DECIMAL_DIGITS = 38
_TIME = json.dumps({"type": "long", "logicalType": "time-micros"})

OpName = Literal["insert", "update", "delete", "snapshot", "truncate"]
PhaseName = Literal["live", "snapshot"]
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a row, of which `make_window` makes an event."""

    source: str
    row: Row
    op: OpName = "insert"
    before: Row | None = None
    key: tuple[str, ...] = ()


def change(
    source: str,
    row: Row,
    op: OpName = "insert",
    *,
    before: Row | None = None,
    key: str | Sequence[str] = (),
) -> Change:
    """Describe a change: `row` is the row after it, for a delete the row before it.

    Values have the types of `event.row`: None, bool, int, float, str, bytes, Decimal, date,
    datetime or timedelta. `key` names the primary key's columns; the default is `id` if there is
    such a column, otherwise the first one. A truncate has no row: `{}`. `before` is that of an
    update. Raises ValueError for a key that is not in the row.
    """
    names = (key,) if isinstance(key, str) else tuple(key)
    if not names and row:
        names = ("id",) if "id" in row else (next(iter(row)),)
    missing = [name for name in names if name not in row]
    if missing:
        raise ValueError(f"key = {missing[0]!r} is not a column of the row: {', '.join(row)}")
    return Change(source, dict(row), op, before, names)


def make_event(one: Change, *, scn: int = 1, committed_s: float | None = None) -> DataEvent:
    """Return the only event of a window; see `make_window`."""
    return make_window(one, scn=scn, committed_s=committed_s).events[0]


def make_window(
    *changes: Change,
    scn: int = 1,
    committed_s: float | None = None,
    phase: PhaseName = "live",
) -> DataWindow:
    """Return a committed transaction with these changes, as `client.windows` yields it.

    `committed_s` is its commit time, seconds since the epoch, default now. With `phase="snapshot"`
    it is a page of a bootstrap. Columns that a change lacks are null in its row. Raises TypeError
    for a value of another type, or if a column has values of different types.
    """
    timestamp_ns = int((time.time() if committed_s is None else committed_s) * 1e9)
    names = list(dict.fromkeys(one.source for one in changes))
    tables = {name: _table([one for one in changes if one.source == name]) for name in names}
    src_ids = {name: number for number, name in enumerate(names, 1)}
    events = [
        _event(one, tables[one.source], src_ids[one.source], index, scn, timestamp_ns)
        for index, one in enumerate(changes)
    ]
    schemas = [RegisteredSchema(src_ids[name], 1, avro_schema(tables[name])) for name in names]
    decoder = WindowDecoder(_MAX_WINDOW_BYTES)
    decoder.use(bind(Subscription(tuple(names)), src_ids, schemas) if names else {})
    decoder.begin(Position(Checkpoint.flexible()))
    sent = b"".join(encode(event) for event in (*events, end_of_period(scn, timestamp_ns)))
    (read,) = decoder.receive(sent)
    assert isinstance(read, ReadWindow)
    return DataWindow(read if phase == "live" else _page(read))


def _event(
    one: Change, table: Table, src_id: int, index: int, scn: int, timestamp_ns: int
) -> Event:
    text = avro_schema(table)
    codec, op = row_codec(text, has_durations=True), Op(one.op)
    is_truncate = op is Op.TRUNCATE
    before = None if one.before is None else codec.encode(_filled(one.before, table))
    metadata = EventMetadata(op, row_index=index, before=before)
    row = _filled(one.row, table)
    return Event(
        scn,
        timestamp_ns,
        src_id,
        0,
        b"" if is_truncate else event_key(table, row),
        Opcode.DELETE if op in (Op.DELETE, Op.TRUNCATE) else Opcode.UPSERT,
        None if is_truncate else Part(codec.encode(row), schema_id(text)),
        metadata_part(encode_metadata(metadata)),
    )


def _filled(row: Row, table: Table) -> dict[str, Any]:
    return {column.name: row.get(column.name) for column in table.columns}


def _page(read: ReadWindow) -> BootstrapPage:
    source = next(iter(read.bindings.values())).name if read.bindings else ""
    at = Checkpoint.flexible().start_bootstrap().with_start_scn(read.window.scn)
    after = at.start_snapshot(source, 0)
    return BootstrapPage(read.window, read.bindings, after, since_scn=-1)


def _table(changes: Sequence[Change]) -> Table:
    """Return the table of a source that has all columns of these changes."""
    source = changes[0].source
    types: dict[str, str | None] = {}
    for row in [row for one in changes for row in (one.row, one.before or {})]:
        for name, value in row.items():
            known, found = types.get(name), _avro_type(source, name, value)
            if None not in (known, found) and known != found:
                raise TypeError(f"{source}.{name} has values of two types: {known} and {found}")
            types[name] = known or found
    # A truncate has none.
    key = next((one.key for one in changes if one.key), ())
    columns = [
        Column(
            name,
            "time" if found == _TIME else "",
            place,
            key_position=key.index(name) if name in key else None,
            avro_type=found or '"string"',
        )
        for place, (name, found) in enumerate(types.items())
    ]
    # A table that is only truncated needs a column, which nobody sees.
    return Table(source, tuple(columns or [Column("id", "", 0, True, 0, '"long"')]), "testing")


def _avro_type(source: str, name: str, value: Any) -> str | None:
    """Return the Avro type, as JSON, of a column with this value; None if it says nothing."""
    if value is None:
        return None
    if isinstance(value, Decimal):
        exponent = value.as_tuple().exponent
        scale = max(0, -exponent) if isinstance(exponent, int) else 0
        kind: dict[str, Any] = {"type": "bytes", "logicalType": "decimal"}
        return json.dumps(kind | {"precision": _DECIMAL_DIGITS, "scale": scale})
    if isinstance(value, datetime):
        name = "local-timestamp-micros" if value.tzinfo is None else "timestamp-micros"
        return json.dumps({"type": "long", "logicalType": name})
    if isinstance(value, date):
        return json.dumps({"type": "int", "logicalType": "date"})
    if isinstance(value, timedelta):
        return _TIME
    plain = {bool: "boolean", int: "long", float: "double", str: "string", bytes: "bytes"}
    if type(value) not in plain:
        raise TypeError(f"{source}.{name} = {value!r}: no row has a value of this type")
    return json.dumps(plain[type(value)])
