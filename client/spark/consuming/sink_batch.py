"""A sink as a consumer of `foreachBatch`: the same classes as in `databus sink run`.

    changes.writeStream.foreachBatch(sink_batch("kafka", {"brokers": …, "id": …})).start()

The rows of a batch come to the driver and are written in order: by SCN and index, whole
transactions. A target that keeps its own position is asked for it: what it has of a batch that is
repeated is left out, so it stays exactly once. The position of the query is Spark's checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from itertools import groupby
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, functions as sf

from databus.client.sinks.contract import (
    Change,
    ChangeOp,
    Opening,
    Position,
    Sink,
    TransactionInfo,
)
from databus.client.sinks.loading import sink_maker
from databus.client.sinks.rules.changes import place_last, with_short_floats
from databus.client.sinks.rules.moves import split_move
from databus.client.spark.arrow.row_types import CHANGE_COLUMN
from databus.client.spark.consuming.apply import schemas_of
from databus.schemas.avro_rows import row_codec
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.columns.avro_columns import Kind, WriterSchema, columns_of
from databus.schemas.columns.taken_columns import taken_schema
from databus.schemas.errors import SchemaNotFoundError, SettingsError

__all__ = ["sink_batch"]

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

    def __call__(self, batch: DataFrame, batch_id: int) -> None:  # noqa: ARG002 - Spark gives it
        rows = batch.where(sf.col(f"{CHANGE_COLUMN}.op") != _NOT_FOR_SINKS).toArrow()
        try:
            for physical_source, changes in _transactions(rows, _Sources(schemas_of(batch))):
                self._opened(physical_source).take(changes)
            for opened in self._open.values():
                opened.flush()
        except BaseException:
            self._close()
            raise

    def _opened(self, physical_source: str) -> _Opened:
        opened = self._open.get(physical_source)
        if opened is None:
            sink = self._make()
            own = sink.open(Opening(self._name, physical_source))
            opened = _Opened(sink, -1 if own is None else own.scn, self._flush_rows)
            self._open[physical_source] = opened
        return opened

    def _close(self) -> None:
        for opened in self._open.values():
            opened.sink.close()
        self._open.clear()


@dataclass(slots=True)
class _Opened:
    """A sink of one physical source, and the SCN up to which its target has everything."""

    sink: Sink
    reached: int
    flush_rows: int
    _held: int = field(default=0, init=False)

    def take(self, changes: list[Change]) -> None:
        """Write a transaction that the target does not have."""
        if changes[-1].transaction.phase == "live" and changes[-1].scn <= self.reached:
            return
        self.sink.write(changes)
        self._held += len(changes)
        if self._held >= self.flush_rows:
            self.flush()

    def flush(self) -> None:
        """Make what was written durable."""
        if self._held:
            own = self.sink.flush()
            self._held, self.reached = 0, self.reached if own is None else own.scn


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


def _transactions(rows: pa.Table, sources: _Sources) -> Iterator[tuple[str, list[Change]]]:
    """Yield each transaction in order: its physical source, and its changes."""
    metas = rows[CHANGE_COLUMN].combine_chunks().flatten()
    names = [one.name for one in rows.schema.field(CHANGE_COLUMN).type]
    order = pa.table(
        [metas[names.index(one)] for one in ("physical_source", "scn", "index")], ["s", "n", "i"]
    )
    by = [("s", "ascending"), ("n", "ascending"), ("i", "ascending")]
    indices = pa.compute.sort_indices(order, sort_keys=by)
    found = (row for batch in rows.take(indices).to_batches(1000) for row in batch.to_pylist())
    for (physical_source, _), held in groupby(found, _place):
        yield physical_source, _changes(list(held), sources)


def _place(row: Mapping[str, Any]) -> tuple[str, int]:
    meta = row[CHANGE_COLUMN]
    return meta["physical_source"], meta["scn"]


def _changes(rows: list[dict[str, Any]], sources: _Sources) -> list[Change]:
    """Return the changes of a transaction, the last of them with its position."""
    first = rows[0][CHANGE_COLUMN]
    is_live = all(row[CHANGE_COLUMN]["op"] != ChangeOp.SNAPSHOT for row in rows)
    at_ns = 0 if first["time"] is None else (first["time"] - _EPOCH) // _MICRO * 1000
    phase = "live" if is_live else "snapshot"
    info = TransactionInfo(first["scn"], at_ns, first["gtid"], len(rows), phase)
    whole = (with_short_floats(_change(row, info, sources)) for row in rows)
    found = [one for change in whole for one in split_move(change)]
    if is_live:
        place_last(found, Position(first["physical_source"], Checkpoint.at(info.scn)))
    return found


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
