"""Decode the bytes of a response into Arrow record batches of the target.

The compiled `_column_decoder` decodes plain row events, which are nearly all
events. It stops at any other event, which is then decoded here; if it was not
built, all events are decoded here. This module defines the rules: what counts as
damage, what a window is, which op a row has. Both CRCs of each event are checked.

A row for which the source logged only some columns is refused. If only the before
image is incomplete, the update is delivered without one.

An event from a relay that sends no metadata has no gtid and no before image; its op
is `update` or `delete`, and its index counts such events in its window.

Rows of different schema versions are in different batches, so the order of batches
and of rows across batches has no meaning; `_databus` has the order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, NoReturn

import pyarrow as pa

from databus.client.arrow.arrow_types import RowBatch
from databus.client.arrow.batch_builder import BatchBuilder, Head, decoded_rows, head_arrays
from databus.client.arrow.row_heads import HeadMaker, before_of, check_row, checked_metadata, op_of
from databus.client.spark.arrow.column_plan import ColumnPlan, Frame
from databus.client.spark.arrow.event_rows import EventPlan
from databus.client.spark.arrow.pack_batches import pack_batch
from databus.client.spark.arrow.row_types import Layout, row_schema
from databus.schemas.avro_rows import schema_id
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.columns.avro_columns import WriterSchema, columns_of
from databus.schemas.errors import ProtocolError, SchemaError
from databus.schemas.event import v1 as event_v1, v2 as event_v2
from databus.schemas.event.control import checkpoint_of
from databus.schemas.event.crc import event_crc, wrong_crc
from databus.schemas.event.event import Event
from databus.schemas.event.layout import V1, V2, V2_BEGIN, V2_COVERED_AT, Field
from databus.schemas.event.metadata import Op
from databus.schemas.stream.packs import Pack
from databus.schemas.stream.stream_reader import decode_event

if TYPE_CHECKING:
    from databus.client.arrow._column_decoder import ColumnDecoder

try:
    from databus.client.arrow import _column_decoder as column_decoder
except ImportError:  # not built: every event is decoded here
    new_decoder = None
else:
    new_decoder = column_decoder.ColumnDecoder

Buffer = event_v2.Buffer
BATCH_BYTES = 64 << 20  # of events; the event that reaches it is the last of its batch
SNAPSHOT_END = "snapshot_end"

_STAY = frozenset({Op.DELETE, Op.TRUNCATE})  # keep their op in a snapshot, too


class UnknownSchemaError(SchemaError):
    """A row has an unknown schema: ask `/register` again, then call `add_schemas`.

    `consumed`: the bytes before the row's event, which were taken.
    """

    def __init__(self, src_id: int, digest: bytes, consumed: int) -> None:
        super().__init__(
            f"no schema of source id {src_id} has the digest {digest.hex() or '(none)'}: "
            "ask /register again"
        )
        self.src_id = src_id
        self.digest = digest
        self.consumed = consumed


class EventBatches:
    """Collects the rows of responses; for one thread.

    `target` is `arrow_schema(changes_schema(…))` with the same `layout`. With
    `as_snapshot` the op of rows is `snapshot`, except for deletes and truncates.
    `as_text` is option columnsAsText, `on_new_column` is `fail` or `ignore`. No
    batch has more than `batch_rows` rows. With `keeps_events` the target is
    `events_schema()`: rows stay whole events, which `unpacked` decodes later.
    """

    def __init__(
        self,
        target: pa.Schema,
        schemas: Iterable[WriterSchema],
        *,
        physical_source: str,
        layout: Layout,
        as_of: int | None = None,
        as_snapshot: bool = False,
        on_new_column: str = "fail",
        as_text: Collection[str] = (),
        batch_rows: int = 20_000,
        keeps_events: bool = False,
    ) -> None:
        self._keeps_events = keeps_events
        self.checkpoint: Checkpoint | None = None  # of the last checkpoint event
        self.window_scn: int | None = None  # of the last end-of-period event
        self.window_time_ns: int | None = None
        self._frame = Frame(target, layout, physical_source, as_of)
        self._as_snapshot = as_snapshot
        self._on_new_column = on_new_column
        self._as_text = frozenset(as_text)
        self._batch_rows = batch_rows
        self._decoder: ColumnDecoder | None = None
        if new_decoder is not None:
            self._decoder = new_decoder(
                has_before=self._frame.has_before,
                as_snapshot=as_snapshot,
                batch_rows=batch_rows,
                batch_bytes=BATCH_BYTES,
                keeps_events=keeps_events,
            )
        self._decoder_plans: list[_OpenPlan] = []  # by their number in the decoder
        self._schemas: dict[tuple[int, bytes], WriterSchema] = {}
        self._sources: dict[int, str] = {}
        self._plans: dict[tuple[int, bytes], _OpenPlan] = {}
        self._marks: dict[str, list[Head]] = {}
        self._ready: list[pa.RecordBatch] = []
        self._ready_rows = 0
        self._scn: int | None = None  # of the window that has not ended yet
        self._is_mixed = False  # events of several SCNs, as in a page of a snapshot
        self._heads = HeadMaker()
        self.add_schemas(schemas)

    def add_schemas(self, schemas: Iterable[WriterSchema]) -> None:
        """Add schemas; schemas that are already known are ignored."""
        for schema in schemas:
            self._schemas.setdefault((schema.src_id, schema_id(schema.text)), schema)
            self._sources[schema.src_id] = schema.source

    @property
    def rows(self) -> int:
        """The number of rows held."""
        held = sum(plan.rows for plan in self._plans.values())
        return self._ready_rows + held + sum(map(len, self._marks.values()))

    def take(self, data: Buffer) -> int:
        """Decode the complete events of `data`; return their size: the rest is an incomplete one.

        Raises ProtocolError for damage, error events and mixed windows;
        UnknownSchemaError; SchemaError for a row that does not fit the target;
        RowError for a row for which only some columns were logged.
        """
        offset, end = 0, len(data)
        while offset < end:
            if self._decoder is not None:
                offset = self._decode(self._decoder, data, offset)
                if offset == end:
                    break
            try:
                event, after = decode_event(data, offset)
            except ProtocolError:
                # The rest of the event comes with the next bytes.
                if _is_cut(data, offset):
                    break
                raise
            if event.is_control:
                self._take_control(event, after)
            elif not self._take_row_event(event, data[offset:after], offset):
                continue
            offset = after
        return offset

    def take_pack(self, pack: Pack) -> None:
        """Take the rows of a pack, except those that are left out.

        Raises UnknownSchemaError, ProtocolError for columns that do not fit their schema, and
        SchemaError for those that do not fit the target.
        """
        src_id, digest = pack.head.src_id, bytes.fromhex(pack.head.digest)
        plan = self._plans.get((src_id, digest)) or self._open_plan(src_id, digest, 0)
        if not self._as_snapshot or not isinstance(plan.columns, ColumnPlan):
            raise ProtocolError("a pack where changes should be")
        batch = pack_batch(plan.columns, pack)
        most = self._batch_rows
        self._make_ready([batch.slice(at, most) for at in range(0, batch.num_rows, most)])

    def _decode(self, decoder: ColumnDecoder, data: Buffer, offset: int) -> int:
        """Run the compiled decoder; return the offset of the event that it does not decode."""
        full = 0
        while full >= 0:
            scn = -1 if self._scn is None else self._scn
            offset, full, scn, self._is_mixed, window_scn, time_ns = decoder.take(
                data, offset, scn, self._is_mixed
            )
            self._scn = None if scn < 0 else scn
            if window_scn >= 0:
                self.window_scn, self.window_time_ns = window_scn, time_ns
            if full >= 0:
                self._make_ready(self._decoder_plans[full].finish())
        return offset

    def add_mark(self, scn: int, source: str, time_ns: int | None = None) -> None:
        """Add the record that marks the end of a complete snapshot of a source as of `scn`."""
        time_us = None if time_ns is None else time_ns // 1000
        self._add_mark(source, Head(SNAPSHOT_END, scn, None, time_us, None))

    def flush(self) -> list[pa.RecordBatch]:
        """Return all held rows as batches of the target, and hold none."""
        for plan in self._plans.values():
            self._make_ready(plan.finish())
        for source, heads in self._marks.items():
            self._make_ready([self._mark_batch(source, heads)])
        self._marks.clear()
        ready, self._ready, self._ready_rows = self._ready, [], 0
        return ready

    # -- control events ---------------------------------------------------------------------

    def _take_control(self, event: Event, after: int) -> None:
        if event.is_statement:
            self._note_scn(event.scn)
        elif event.is_eop:
            if self._scn is not None and (self._is_mixed or self._scn != event.scn):
                raise ProtocolError(f"events of other windows in window {event.scn}", after)
            self.window_scn, self.window_time_ns = event.scn, event.timestamp_ns
            self._end_window()
        elif event.is_checkpoint:
            self.checkpoint = checkpoint_of(event)
            self._end_window()
        else:
            self._refuse(event, after)

    def _refuse(self, event: Event, after: int) -> NoReturn:
        text = event.value.decode("utf-8", "replace")
        if event.is_error:
            raise ProtocolError(f"the server sent error event {event.src_id}: {text}", after)
        raise ProtocolError(f"unexpected control event {event.src_id}: {text}", after)

    def _note_scn(self, scn: int) -> None:
        """Record the window of an event."""
        if scn != self._scn:
            self._is_mixed = self._scn is not None
            self._scn = scn

    def _end_window(self) -> None:
        self._scn = None
        self._is_mixed = False

    # -- row events -------------------------------------------------------------------------

    def _take_row_event(self, event: Event, whole: Buffer, offset: int) -> bool:
        """Take a row, unless the compiled decoder, which now has its schema, can: then False."""
        source = self._sources.get(event.src_id)
        if source is None:
            raise UnknownSchemaError(event.src_id, event.schema_id, offset)
        try:
            return self._take_row(event, source, whole, offset)
        except ProtocolError as error:
            raise ProtocolError(f"{source} at scn {event.scn}: {error.problem}", offset) from error

    def _take_row(self, event: Event, source: str, whole: Buffer, offset: int) -> bool:
        metadata = checked_metadata(event)
        if event.is_truncate:
            self._note_scn(event.scn)
            self._add_mark(source, self._heads.head(event, metadata, Op.TRUNCATE))
            return True
        row = check_row(event, metadata)
        plan = self._plans.get((event.src_id, row.digest))
        if plan is None:
            plan = self._open_plan(event.src_id, row.digest, offset)
            if self._decoder is not None:
                return False
        before = before_of(metadata, source, plan.row_columns, event.scn)
        if self._as_snapshot or not self._frame.has_before:
            before = None
        self._note_scn(event.scn)
        op = op_of(event, metadata)
        if self._as_snapshot and op not in _STAY:
            op = Op.SNAPSHOT
        data = bytes(whole) if self._keeps_events else row.data
        plan.builder.append(self._heads.head(event, metadata, op), data, before, len(whole))
        if plan.builder.rows >= self._batch_rows or plan.builder.size_bytes >= BATCH_BYTES:
            self._make_ready(plan.finish())
        return True

    def _open_plan(self, src_id: int, digest: bytes, offset: int) -> _OpenPlan:
        schema = self._schemas.get((src_id, digest))
        if schema is None:
            raise UnknownSchemaError(src_id, digest, offset)
        columns = (
            EventPlan(schema, self._frame) if self._keeps_events else self._column_plan(schema)
        )
        plan = self._plans[src_id, digest] = _OpenPlan(columns, self._decoder)
        if self._decoder is not None:
            plan.number = self._decoder.add(src_id, digest, columns.columns)
            self._decoder_plans.append(plan)
        return plan

    def _column_plan(self, schema: WriterSchema) -> ColumnPlan:
        known = [one for one in self._schemas.values() if one.src_id == schema.src_id]
        # Checks that all versions up to this one have a common type, which a restart needs.
        row_schema([one for one in known if one.version <= schema.version], self._as_text)
        return ColumnPlan(schema, self._frame, self._on_new_column, self._as_text, known=known)

    # -- batches ----------------------------------------------------------------------------

    def _add_mark(self, source: str, head: Head) -> None:
        self._marks.setdefault(source, []).append(head)

    def _mark_batch(self, source: str, heads: list[Head]) -> pa.RecordBatch:
        self._frame.row_fields(source)  # raises if the target does not have the source
        rows = RowBatch(len(heads), head_arrays(heads), [], None, None)
        return self._frame.batch(source, None, rows, None, None)

    def _make_ready(self, batches: list[pa.RecordBatch]) -> None:
        self._ready += batches
        self._ready_rows += sum(batch.num_rows for batch in batches)


class _OpenPlan:
    """A schema version's plan, and its rows that are in no batch yet.

    Rows decoded in Python are in `builder`, the others in the decoder.
    """

    number: int  # in the decoder

    def __init__(self, columns: ColumnPlan | EventPlan, decoder: ColumnDecoder | None) -> None:
        self.columns = columns
        self.row_columns = columns_of(columns.schema)
        self.builder = BatchBuilder(columns.codec, columns.columns)
        self._decoder = decoder

    @property
    def rows(self) -> int:
        """The number of rows held."""
        return self.builder.rows + (0 if self._decoder is None else self._decoder.rows(self.number))

    def finish(self) -> list[pa.RecordBatch]:
        """Return the held rows as batches, and hold none."""
        batches = [self.builder.finish()] if self.builder.rows else []
        if self._decoder is not None and self._decoder.rows(self.number):
            batches.append(decoded_rows(self._decoder, self.number, self.columns.columns))
        return [self.columns.batch(rows) for rows in batches]


def _is_cut(data: Buffer, offset: int) -> bool:
    """Return whether bytes that are not a complete event may be the beginning of one.

    A length counts only once its whole header is there, whose CRC protects it: with
    a damaged length the reader would wait for bytes that never come.
    """
    left = len(data) - offset
    begin = bytes(data[offset : offset + event_v2.SMALLEST_BYTES])
    if begin[0] == event_v1.VERSION:
        return left < event_v1.SMALLEST_BYTES or left < _number(begin, V1.length)
    if left < len(V2_BEGIN):
        return V2_BEGIN.startswith(begin)
    return begin.startswith(V2_BEGIN) and _is_cut_v2(data, offset, left, begin)


def _is_cut_v2(data: Buffer, offset: int, left: int, begin: bytes) -> bool:
    if left < event_v2.SMALLEST_BYTES:
        return True
    header_length, length = _number(begin, V2.header_length), _number(begin, V2.length)
    if not event_v2.SMALLEST_BYTES <= header_length <= length or left >= length:
        return False
    if left < header_length:
        return True
    checked = data[offset + V2_COVERED_AT : offset + header_length]
    stated = _number(begin, V2.header_crc)
    if event_crc(checked) != stated:
        raise wrong_crc("header", checked, stated, offset + V2.header_crc.offset)
    return True


def _number(header: bytes, field: Field) -> int:
    return int.from_bytes(header[field.offset : field.end], "big")
