"""`spark.read` of a table as of an SCN, from a bootstrap server's snapshot and log.

A server's snapshot as of X has the rows that have not changed since. The others are
reconstructed from the log: by the first change of a row after X. Rows go on changing
while they are read. So each task first reads its part of the snapshot, then the log
of the same rows up to the server's current position. A row that changed before the
snapshot reached it is in that log. A row that changed later is in both, and is
returned once.

Tasks split the table by the ids that rows have in the server's store. An id does not
change when its row is updated or deleted, so each row belongs to exactly one task.

So all tasks together return the table as of X, while writes go on. A task keeps the
keys of its rows, and the first changes from the log, in memory until it ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import LongType, StructField, StructType

from databus.client.responses import read_scn
from databus.client.spark.arrow.event_batches import EventBatches
from databus.client.spark.arrow.predicate import condition_of
from databus.client.spark.arrow.row_types import (
    CHANGE_COLUMN,
    KEY,
    WriterSchema,
    arrow_schema,
    changes_schema,
    check_text_columns,
    choose_columns,
    row_schema,
)
from databus.client.spark.options import SourceOptions, need_bootstrap, parse_options
from databus.client.spark.planning.requests import (
    beginning_after,
    catch_up,
    filters_text,
    snapshot,
    snapshot_measure,
)
from databus.client.spark.planning.server_pool import Answer, ServerPool
from databus.client.spark.source.as_of import AsOf
from databus.client.spark.source.bootstrap_pages import BootstrapPages
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import (
    BootstrapTooOldError,
    BootstrapTooYoungError,
    DatabusError,
    ReadAgainError,
    SchemaNotFoundError,
    SettingsError,
)
from databus.schemas.protocol import Header, Parameter
from databus.schemas.scn import MAX_SCN
from databus.schemas.stream.packs import TAKES
from databus.schemas.table_change import Versions, shape

SCN_COLUMN = "_databus_scn"
DEFAULT_PARTITIONS = 2
# What a server tells its clients, and nobody who reads a table can do.
_BEGIN_AGAIN = "; begin again with /startSCN"


@dataclass(frozen=True, slots=True)
class TablePartition:
    """Rows of one source as of an SCN, with ids in (`after_row`, `until_row`] of a store."""

    scn: int
    after_row: int
    until_row: int
    server: str
    store: str
    versions: tuple[WriterSchema, ...]


class TableReader:
    """Plans and reads one table; `schema` is what `columns` returned, or part of it."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        """Raise SettingsError for wrong options; no server is asked yet."""
        self._options = _checked(parse_options(options))
        self._source = self._options.sources[0]
        self._schema = schema

    @classmethod
    def columns(cls, options: Mapping[str, str]) -> StructType:
        """Return the table's current columns, from the servers; raises DatabusError."""
        parsed = _checked(parse_options(options))
        pool = _servers(parsed)
        try:
            versions = _versions(pool, parsed.sources[0])
        finally:
            pool.close()
        whole = _row_type(parsed, versions)
        condition_of(parsed.where, arrow_schema(whole))  # a wrong one is refused before any task
        rows = choose_columns(whole, parsed.columns)
        if parsed.scn:
            if taken := [name for name in rows.names if name.lower() == SCN_COLUMN]:
                raise SettingsError(
                    f"{parsed.sources[0]} has a column {taken[0]!r} itself: read it without option "
                    "scn, or without that column, with option columns"
                )
            rows = StructType([*rows, StructField(SCN_COLUMN, LongType(), True)])
        return rows

    def partitions(self) -> list[TablePartition]:
        """Return the partitions of the tasks, all as of one SCN.

        Raises SettingsError for an SCN that is not available, ServerError.
        """
        options, source = self._options, self._source
        pool = _servers(options)
        try:
            versions = _versions(pool, source)
            _keys(source, _row_type(options, versions))
            asked = {Parameter.SOURCES: source, Parameter.CHECKPOINT: beginning_after(0).to_json()}
            answer = pool.get("/startSCN", asked)
            scn = read_scn(answer.server, "/startSCN", bytes(answer.body))
            store = answer.headers.get(Header.STORE_ID, "")
            # The server's own SCN is asked for anyway: the answer names the server and its store.
            if options.as_of is not None:
                scn = options.as_of
            # Row ids are those of one store.
            pool.prefer(answer.server)
            found = self._ask(pool, snapshot(source, 0, scn, 0, store), {Parameter.ROWS: "1"})
            max_row = snapshot_measure(found.server, found.json()).max_row
            # No rows, only the check whether the log goes back to the SCN.
            self._ask(pool, catch_up(scn, scn, store), {Parameter.UNTIL_ROW: "0"})
        except DatabusError as error:
            raise self._explained(error) from error
        finally:
            pool.close()
        return [
            TablePartition(scn, after, until, answer.server, store, tuple(versions))
            for after, until in split_rows(max_row, options.partitions or DEFAULT_PARTITIONS)
        ]

    def read(self, partition: TablePartition) -> Iterator[pa.RecordBatch]:
        """Yield a partition's rows as batches with exactly the schema.

        Raises SettingsError for rows that are not available as of that SCN, ServerError.
        """
        pool = _servers(self._options)
        pool.prefer(partition.server)
        try:
            yield from _PartitionRead(self._options, self._schema, partition, pool).rows()
        except DatabusError as error:
            raise self._explained(error) from error
        finally:
            pool.close()

    def _ask(self, pool: ServerPool, begin: Checkpoint, more: Mapping[str, str]) -> Answer:
        """Measure a minimal range, so that a refusal happens now and not in the tasks."""
        asked = {Parameter.SOURCES: self._source, Parameter.CHECKPOINT: begin.to_json()}
        return pool.get("/measure", {**asked, **more})

    def _explained(self, error: DatabusError) -> DatabusError:
        """Return a refusal with advice."""
        as_of = self._options.as_of
        if isinstance(error, BootstrapTooYoungError):
            advice = "begin the reading again" if as_of is None else "choose a newer option asOf"
            why = str(error).removesuffix(_BEGIN_AGAIN)
            return ReadAgainError(f"{self._source}: {why}; {advice}")
        if isinstance(error, BootstrapTooOldError):
            what = "" if as_of is None else ", choose an older option asOf"
            return BootstrapTooOldError.answered(
                "bootstrap servers", f"{self._source} cannot be read yet{what} or wait: {error}"
            )
        return error


class _PartitionRead:
    """The state of reading one partition."""

    def __init__(
        self,
        options: SourceOptions,
        schema: StructType,
        partition: TablePartition,
        pool: ServerPool,
    ) -> None:
        self._options = options
        self._source = options.sources[0]
        self._partition = partition
        self._pool = pool
        self._target = arrow_schema(schema)
        rows = _row_type(options, partition.versions)
        self._keys = _keys(self._source, rows)
        arrow = arrow_schema(rows)
        self._condition = condition_of(options.where, arrow)
        # Other columns are not even decoded.
        needed = {*self._target.names, *self._keys}
        if self._condition is not None:
            needed |= self._condition.columns
        self._rows = StructType([field for field in rows if field.name in needed])
        text = filters_text(options.filters, {self._source: partition.versions[0].src_id})
        self._pages = BootstrapPages(
            pool, [self._source], text, options.fetch_bytes, is_of_one_version=True
        )

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Yield the snapshot's rows, then the rows that changed after the SCN."""
        known: list[pa.RecordBatch] = []
        part = self._partition
        at_begin = snapshot(self._source, part.after_row, part.scn, 0, part.store)
        rows = {Parameter.UNTIL_ROW: str(part.until_row), Parameter.PACKS: TAKES}
        for batch in self._read(at_begin, rows, is_snapshot=True):
            found = self._fulfilling(batch)
            # A row that changes after this page was read is in the log, too.
            known.append(_copied(found.select(self._keys)))
            yield self._shaped(found, pc.struct_field(found.column(CHANGE_COLUMN), "scn"))
        yield from self._changed_rows(known)

    def _changed_rows(self, known: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        answer = self._pool.get("/targetSCN", {Parameter.SOURCE: self._source})
        until = read_scn(answer.server, "/targetSCN", bytes(answer.body))
        part = self._partition
        scn = part.scn
        # Nothing was written since.
        if until <= scn:
            return
        as_of = AsOf(self._source, scn, self._keys)
        rows = {Parameter.AFTER_ROW: str(part.after_row), Parameter.UNTIL_ROW: str(part.until_row)}
        for batch in self._read(catch_up(scn, until, part.store), rows, is_snapshot=False):
            as_of.add(batch)
        found = as_of.rows(known)
        if found is None:
            return
        for batch in found.to_batches(max_chunksize=self._options.batch_rows):
            rows = self._fulfilling(batch)
            # The SCN of the row's previous change is not known; it was valid as of this SCN.
            scns = pa.repeat(pa.scalar(scn, pa.int64()), rows.num_rows)
            yield self._shaped(rows, scns)

    def _read(
        self, checkpoint: Checkpoint, rows: Mapping[str, str], *, is_snapshot: bool
    ) -> Iterator[pa.RecordBatch]:
        shape = changes_schema({self._source: self._rows}, "columns", not is_snapshot)
        columns = EventBatches(
            arrow_schema(shape),
            self._partition.versions,
            physical_source="",
            layout="columns",
            as_snapshot=is_snapshot,
            # A column that was added after planning is not part of the table as of the SCN.
            on_new_column="ignore",
            as_text=self._options.columns_as_text,
            batch_rows=self._options.batch_rows,
        )
        return self._pages.read(checkpoint, columns, self._options.batch_rows, rows)

    def _fulfilling(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch if self._condition is None else self._condition.rows(batch)

    def _shaped(self, batch: pa.RecordBatch, scns: pa.Array) -> pa.RecordBatch:
        arrays = [
            scns if name == SCN_COLUMN and self._options.scn else batch.column(name)
            for name in self._target.names
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._target)


def split_rows(max_row: int, parts: int) -> list[tuple[int, int]]:
    """Return ranges of ids, each (after, until], that cover all rows, including later ones."""
    inner = {max_row * part // parts for part in range(1, parts)} - {0}
    return list(pairwise([0, *sorted(inner), MAX_SCN]))


def _copied(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch that does not keep the response in memory that its columns are pieces of."""
    arrays = [pa.concat_arrays([array, array.slice(0, 0)]) for array in batch.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)


def _checked(options: SourceOptions) -> SourceOptions:
    need_bootstrap(options)
    if len(options.sources) != 1:
        raise SettingsError(
            f"option sources = {','.join(options.sources)}: mode=table reads one table; read each "
            "table separately and union the DataFrames"
        )
    return options


def _servers(options: SourceOptions) -> ServerPool:
    return ServerPool(options.bootstrap_servers, options.retry_seconds, options.access)


def _versions(pool: ServerPool, source: str) -> list[WriterSchema]:
    versions = pool.register([source])[source]
    if not versions:
        raise SchemaNotFoundError(f"the bootstrap server has no schema of source {source} yet")
    # The server keeps every row in the table's current version, whenever it was written.
    newest = Versions(version.text for version in versions).at(MAX_SCN)
    assert newest is not None
    return [version for version in versions if shape(version.text) == shape(newest)]


def _row_type(options: SourceOptions, versions: Sequence[WriterSchema]) -> StructType:
    check_text_columns(versions, options.columns_as_text)
    return row_schema(versions, options.columns_as_text)


def _keys(source: str, rows: StructType) -> list[str]:
    """Return the key columns in key order; raises SettingsError for a table without a key."""
    keyed = sorted((field.metadata[KEY], field.name) for field in rows if KEY in field.metadata)
    if not keyed:
        raise SettingsError(
            f"{source} has no primary key, so its rows as of an SCN are not known; read it with "
            "mode=database or mode=changes"
        )
    return [name for _, name in keyed]
