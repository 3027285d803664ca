"""A sink as a consumer of `foreachBatch`: the same classes as in `databus sink run`.

    changes.writeStream.foreachBatch(sink_batch("kafka", {"brokers": …, "id": …})).start()

The rows of a batch come to the driver and are written in order: by SCN and index, whole
transactions. A target that keeps its own position is asked for it: what it has of a batch that is
repeated is left out, so it stays exactly once. The position of the query is Spark's checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, functions as sf

from databus.client.sinks.contract import (
    Change,
    ChangeOp,
    Opening,
    Sink,
    TransactionInfo,
)
from databus.client.sinks.loading import sink_maker
from databus.client.sinks.rules.changes import place_last, with_short_floats
from databus.client.sinks.rules.moves import split_move
from databus.client.spark.arrow.row_types import CHANGE_COLUMN
from databus.client.spark.consuming.apply import query_id, schemas_of
from databus.client.spark.consuming.sink_position import Batch, Reached
from databus.schemas.avro_rows import row_codec
from databus.schemas.columns.avro_columns import Kind, WriterSchema, columns_of
from databus.schemas.columns.taken_columns import taken_schema
from databus.schemas.errors import SchemaNotFoundError, SettingsError

__all__ = ["sink_batch"]

log = logging.getLogger(__name__)

_FLUSH_ROWS = 5000
# A sink does not look for rows that a snapshot lacks.
_NOT_FOR_SINKS = "snapshot_end"
_MICRO = timedelta(microseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def sink_batch(
    sink: str | Callable[[], Sink],
    options: Mapping[str, Any] | None = None,
    *,
    name: str = "spark",
    flush_rows: int = _FLUSH_ROWS,
) -> Callable[[DataFrame, int], None]:
    """Return what writes each batch of a query to a sink.

    `sink`: a kind (`kafka`, `module:Class`) with its `options`, or a function that makes an
    object. `name` is the sink's, under which a target has its positions. At least every
    `flush_rows` rows it flushes, behind a whole transaction. Raises SettingsError.

    What the sink raises fails the query, and Spark repeats the batch when it is started again.
    Batches need `_databus`, with `before` for updates that change the key.
    """
    make = sink_maker(sink, options or {}) if isinstance(sink, str) else sink
    return _Batches(make, name, flush_rows)


class _Batches:
    """Writes batches. Sinks stay open between them, one for each physical source."""

    def __init__(self, make: Callable[[], Sink], name: str, flush_rows: int) -> None:
        self._make, self._name, self._flush_rows = make, name, flush_rows
        self._open: dict[str, _Opened] = {}

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        rows = batch.where(sf.col(f"{CHANGE_COLUMN}.op") != _NOT_FOR_SINKS).toArrow()
        own = Batch(query_id(batch), batch_id)
        try:
            for one in _transactions(rows, _Sources(schemas_of(batch))):
                self._opened(one.physical_source).take(one, own)
            for opened in self._open.values():
                opened.end_batch()
        except BaseException:
            self._close()
            raise

    def _opened(self, physical_source: str) -> _Opened:
        opened = self._open.get(physical_source)
        if opened is None:
            sink = self._make()
            own = sink.open(Opening(self._name, physical_source))
            reached = None if own is None else Reached.of(own)
            opened = _Opened(sink, physical_source, reached, self._flush_rows)
            self._open[physical_source] = opened
        return opened

    def _close(self) -> None:
        for opened in self._open.values():
            opened.sink.close()
        self._open.clear()


class _Transaction(NamedTuple):
    """A transaction, or rows of a snapshot that have one SCN: their phase is `snapshot`."""

    physical_source: str
    scn: int
    changes: list[Change]
    is_live: bool


@dataclass(slots=True)
class _Opened:
    """A sink of one physical source, and what its target has; None if that does not tell."""

    sink: Sink
    physical_source: str
    reached: Reached | None
    flush_rows: int
    _written: Reached = field(init=False)  # with what is not flushed yet
    _held: int = field(default=0, init=False)
    _left_out: dict[str, int] = field(default_factory=dict, init=False)  # source: SCN

    def __post_init__(self) -> None:
        self._written = self.reached or Reached(-1)

    def take(self, one: _Transaction, batch: Batch) -> None:
        """Write a transaction that the target does not have."""
        if one.is_live:
            if self.reached is not None and self.reached.has(batch, one.scn):
                if not self.reached.is_sure_of(batch):
                    self._left_out |= {change.source: one.scn for change in one.changes}
                return
            self._written = self._written.after(batch, one.scn)
            place_last(one.changes, self._written.position(self.physical_source))
        self.sink.write(one.changes)
        self._held += len(one.changes)
        if self._held >= self.flush_rows:
            self._flush()

    def end_batch(self) -> None:
        """Make what was written durable, and tell what was left out by its SCN alone."""
        self._flush()
        for source, scn in sorted(self._left_out.items()):
            log.warning(
                "%s: changes up to scn %s are not written to the sink again: its target is at scn "
                "%s already, by an earlier query. If it never had this source, read it there with "
                "start=beginning",
                source,
                scn,
                self._written.scn,
            )
        self._left_out.clear()

    def _flush(self) -> None:
        if self._held:
            own = self.sink.flush()
            self._held, self.reached = 0, self.reached if own is None else Reached.of(own)


class _Sources:
    """The schemas of a batch's sources, from the metadata of its column `_databus`."""

    def __init__(self, texts: Mapping[str, Mapping[int, str]]) -> None:
        self._texts = texts

    def schema(self, source: str, version: int | None) -> WriterSchema:
        """Return one version of a source's schema; raise SchemaNotFoundError."""
        text = self._texts.get(source, {}).get(version or 0)
        if text is None:
            raise SchemaNotFoundError(
                f"the batch has no schema version {version} of {source}: give `foreachBatch` the "
                "changes as they are read"
            )
        return WriterSchema(source, 0, version or 0, text)


def _transactions(rows: pa.Table, sources: _Sources) -> Iterator[_Transaction]:
    """Yield each transaction in order."""
    names = [one.name for one in rows.schema.field(CHANGE_COLUMN).type]
    metas = dict(zip(names, rows[CHANGE_COLUMN].combine_chunks().flatten(), strict=True))
    # A deleted row of a snapshot is a delete. One of its very last window looks like a change.
    is_live = pc.and_(
        pc.not_equal(metas["op"], ChangeOp.SNAPSHOT), pc.equal(metas["as_of"], metas["scn"])
    )
    keys = ("physical_source", "scn", "index")
    order = pa.table([*(metas[key] for key in keys), is_live], [*keys, "is_live"])
    by = [(name, "ascending") for name in ("physical_source", "scn", "is_live", "index")]
    indices = pc.sort_indices(order, sort_keys=by)
    found = (row for batch in rows.take(indices).to_batches(1000) for row in batch.to_pylist())
    told = zip(found, is_live.take(indices).to_pylist(), strict=True)
    for (physical_source, scn, live), held in groupby(told, _place):
        changes = _changes([row for row, _ in held], sources, "live" if live else "snapshot")
        yield _Transaction(physical_source, scn, changes, live)


def _place(told: tuple[Mapping[str, Any], bool]) -> tuple[str, int, bool]:
    meta = told[0][CHANGE_COLUMN]
    return meta["physical_source"], meta["scn"], told[1]


def _changes(rows: list[dict[str, Any]], sources: _Sources, phase: str) -> list[Change]:
    """Return the changes of a transaction."""
    first = rows[0][CHANGE_COLUMN]
    at_ns = 0 if first["time"] is None else (first["time"] - _EPOCH) // _MICRO * 1000
    info = TransactionInfo(first["scn"], at_ns, first["gtid"], len(rows), phase)
    whole = (with_short_floats(_change(row, info, sources)) for row in rows)
    return [one for change in whole for one in split_move(change)]


def _change(row: Mapping[str, Any], info: TransactionInfo, sources: _Sources) -> Change:
    meta = row[CHANGE_COLUMN]
    op, source, index = ChangeOp(meta["op"]), meta["source"], meta["index"] or 0
    place = (info, info.scn, info.timestamp_ns, index)
    if op is ChangeOp.TRUNCATE:
        return Change(op, source, {}, None, None, *place)
    held, before = _of_source(row, source), meta.get("before")
    table = _table(sources.schema(source, meta["schema_version"]), frozenset(held))
    values = table.row(held)
    old = None if before is None else table.row(_of_source(before, source))
    is_delete = op is ChangeOp.DELETE
    return replace(
        Change(op, source, table.key(values), old, None if is_delete else values, *place),
        before=values if is_delete else old,
        schema=table.schema,
    )


def _of_source(row: Mapping[str, Any], source: str) -> Mapping[str, Any]:
    """Return the row of a source, in either layout."""
    held = row.get(source)
    return held if isinstance(held, Mapping) else row


@lru_cache(maxsize=4096)
def _table(schema: WriterSchema, names: frozenset[str]) -> _Table:
    """Return how rows come that have these columns, and maybe others."""
    return _Table(taken_schema(schema, names, (), frozenset()), row_codec(schema.text).key_columns)


class _Table:
    """How rows of one schema come from Spark's columns."""

    def __init__(self, schema: WriterSchema, keys: Sequence[str] | None) -> None:
        self.schema = schema
        self._columns = {column.name: _FROM_SPARK.get(column.kind) for column in columns_of(schema)}
        self._keys = keys or ()
        for key in self._keys:
            if key not in self._columns:
                raise SettingsError(f"{schema.source}: {key} is of the primary key: select it, too")

    def row(self, held: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values as a client's event has them."""
        return {
            name: held[name] if convert is None or held[name] is None else convert(held[name])
            for name, convert in self._columns.items()
        }

    def key(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the key of a row; without a primary key the whole row."""
        return {name: row[name] for name in self._keys} if self._keys else dict(row)


_FROM_SPARK: Mapping[Kind, Callable[[Any], Any]] = {
    Kind.TIME: lambda micros: timedelta(microseconds=micros),
    Kind.WIDE_DECIMAL: Decimal,
}
