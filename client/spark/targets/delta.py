"""Delta tables through delta-rs: no jar, and each batch exactly once.

`delta:` merges with delta-rs on the driver. `delta+spark:` merges on Spark's
executors (see `executors`), and delta-rs commits the files that they have written.

One batch is one commit: a MERGE guarded by `_databus_scn`, and the entries of
the commit log as app transactions (see `logs.delta_log`). A name of an entry is listed
before its first number is written, which costs an extra commit when an app or a source
is new.

A commit succeeds only on the version that was read. A writer that loses against
another one reads the new version and tries again.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import pyarrow as pa
from deltalake import (
    CommitProperties,
    DeltaTable,
    Schema,
    TableFeatures,
    write_deltalake,
)
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.table import TableMerger
from pyspark.sql import DataFrame, SparkSession

from databus.client.spark.arrow.row_keys import quoted
from databus.client.spark.targets.changes import (
    AS_OF,
    BOOKKEEPING,
    DELETE,
    SCN,
    SOURCE,
    Changes,
    Mark,
    cast_to,
    unified_schema,
)
from databus.client.spark.targets.commit_log import CommitLog
from databus.client.spark.targets.delta_files import DeltaFiles, check_plain, found_in, remove_table
from databus.client.spark.targets.executors import (
    ChangesFrame,
    frame_of,
    merge_files,
    session_of,
)
from databus.client.spark.targets.logs.delta_log import (
    NAMES_OF_NEW,
    ONCE,
    DeltaEntries,
    add_names,
    entries_of,
    names_of,
    set_names,
)
from databus.client.spark.targets.merge_plan import Condition, forgotten
from databus.client.spark.targets.places import check_delta_folder, delta_files
from databus.client.spark.targets.reshaping import Reshaping
from databus.client.spark.targets.target import (
    Applied,
    LostCommitError,
    Put,
    PutRequest,
    RetryingTarget,
    apply_once,
    check_same_keys,
    no_table,
    read_files,
)
from databus.schemas.errors import SettingsError

_KEYS = "databus.keys"
EXECUTORS_FORM = "delta+spark"
_Done = TypeVar("_Done")


class DeltaTarget(RetryingTarget):
    """A Delta table; for one thread at a time.

    Options: `storage_options` as delta-rs takes them; `optimize_every`: after so
    many batches, merge small files and remove files older than `vacuum_hours`
    (0: never); `attempts`: how often a commit is tried when other writers win.
    """

    OPTIONS = ("storage_options", "optimize_every", "vacuum_hours", "attempts")
    check_form = staticmethod(check_delta_folder)

    def __init__(
        self,
        uri: str,
        keys: Sequence[str] | None = None,
        *,
        source_column: bool = False,
        storage_options: dict[str, str] | None = None,
        optimize_every: int = 0,
        vacuum_hours: int = 168,
        attempts: int = 20,
    ) -> None:
        super().__init__(uri, keys, source_column, attempts)
        check_delta_folder(uri)
        form, _, self._path = uri.partition(":")
        self.merges_on_executors = form == EXECUTORS_FORM
        self._storage = storage_options
        self._optimize_every = optimize_every
        self._vacuum_hours = vacuum_hours
        # Kept between batches, so that a batch reads only the new entries of the Delta log.
        self._held: DeltaTable | None = None
        self._held_log: tuple[int, DeltaEntries] | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that make a row unique; () as long as they are not known."""
        table = self._table()
        return self._given_keys or (() if table is None else _keys_of(table))

    def schema(self) -> pa.Schema | None:
        """Return the table's columns, bookkeeping included; None while there is no table."""
        table = self._table()
        return None if table is None else _schema_of(table)

    def version(self) -> int | None:
        """Return the table's version; None while there is no table."""
        table = self._table()
        return None if table is None else table.version()

    def _apply(self, app_id: str, batch_id: int, changes: Changes | ChangesFrame) -> Applied:
        def attempt() -> Applied:
            table = self._table() or self._created(changes)
            _add_bookkeeping(table, changes.has_source)
            check_same_keys(self.uri, self._given_keys or _keys_of(table), changes.keys)
            commit_log, entries = self._commit_log_of(table), self._entries_of(table)

            def commit(after: CommitLog) -> tuple[int, int]:
                # First, as an app transaction can be read only if its name is listed.
                add_names(table, after.entries)
                counts = self._merge(table, changes, entries.recording(after.entries))
                if not self.merges_on_executors:  # else the table is read anew, maybe with others'
                    self._held_log = table.version(), entries.then(after.entries)
                return counts

            return apply_once(self.uri, commit_log, app_id, batch_id, changes, commit)

        applied = self._retried(attempt, changes.newest_scn)
        if self._optimize_every and not applied.is_skipped:
            self._tidy(batch_id)
        return applied

    def _put(self, request: PutRequest) -> Put:
        def attempt() -> Put:
            table = self._table()
            if table is None:
                raise no_table(self.uri)
            keys = self._given_keys or _keys_of(table)
            _add_bookkeeping(table, SOURCE in keys)
            commit_log = self._commit_log_of(table)
            takes_new = commit_log.takes_new(request.physical_source, request.scn)
            counts = self._merge(table, request.changes(keys), ONCE, takes_new=takes_new)
            return Put(*counts, took_new_rows=takes_new)

        return self._retried(attempt, request.scn)

    def reshape(self, plan: Reshaping, app_id: str | None, batch_id: int) -> None:
        """Rewrite the table with other columns, in one commit; see `Target.reshape`.

        The rows pass through a temporary file.
        """

        def attempt() -> None:
            table = self._table()
            if table is None or (app_id and self._commit_log_of(table).has(app_id, batch_id)):
                return
            _set_keys(table, plan.keys)
            after = self._commit_log_of(table)
            if app_id is not None:
                after = after.after(app_id, batch_id, {})
            self._overwrite(table, table, plan, after)

        self._retried(attempt, batch_id)
        self._given_keys = plan.keys if self._given_keys else ()

    def take_over(self, uri: str, app_id: str, batch_id: int, positions: Mapping[str, int]) -> None:
        """Overwrite the table with the other's rows, in one commit; see `Target.take_over`."""
        path = uri.partition(":")[2]

        def attempt() -> None:
            table = self._table()
            is_noted = table is not None and self._commit_log_of(table).has(app_id, batch_id)
            # Read again as of the same SCN, it is there once more.
            if table is None or (is_noted and not DeltaTable.is_deltatable(path, self._storage)):
                return
            other = DeltaTable(path, storage_options=self._storage)
            _set_keys(table, _keys_of(other))
            after = self._commit_log_of(table).after(app_id, batch_id, positions)
            self._overwrite(table, other, None, after)

        self._retried(attempt, batch_id)
        remove_table(path, self._storage)

    def _overwrite(
        self, table: DeltaTable, rows_of: DeltaTable, plan: Reshaping | None, after: CommitLog
    ) -> None:
        """Replace all rows with those of a table, reshaped, and commit the log with them."""
        entries = self._entries_of(table)
        add_names(table, after.entries)
        schema = _schema_of(rows_of) if plan is None else plan.schema
        # To a file first: delta-rs cannot read a table that it is overwriting.
        with tempfile.TemporaryFile() as file:
            with pa.ipc.new_stream(file, schema) as writer:
                for batch in rows_of.to_pyarrow_dataset().to_batches():
                    rows = pa.Table.from_batches([batch])
                    rows = rows.cast(schema) if plan is None else plan.table(rows)
                    writer.write_table(rows)
            file.seek(0)
            with pa.ipc.open_stream(file) as reader:
                write_deltalake(
                    table,
                    reader,
                    mode="overwrite",
                    schema_mode="overwrite",
                    commit_properties=entries.recording(after.entries),
                )
        self._held_log = None

    def remove(self) -> None:
        """Remove the table's folder; see `Target.remove`."""
        self.close()
        remove_table(self._path, self._storage)
        if self.schema() is not None:
            raise SettingsError(f"target {self.uri!r} is in the way: remove its files yourself")

    def forget_as_of(self, source: str | None = None, *, also_scn: bool = False) -> None:
        """Clear the as-of SCN of a source's rows; see `Target.forget_as_of`."""

        def attempt() -> None:
            table = self._table()
            if table is None or AS_OF not in _schema_of(table).names:
                return
            predicate = _is_of(source) if SOURCE in _schema_of(table).names else None
            nothing = dict.fromkeys(forgotten(also_scn=also_scn), "NULL")
            table.update(nothing, predicate=predicate, commit_properties=ONCE)

        self._retried(attempt, -1)

    def find(self, keys: pa.Table, others: Sequence[Condition], least: Condition = ()) -> pa.Table:
        """Return some rows, read without Spark; see `Target.find`."""
        table = self._table()
        if table is None:
            return pa.table({})
        schema = _schema_of(table)
        asked = keys.cast(pa.schema([schema.field(name) for name in keys.column_names]))
        check_plain(table, self.uri)
        return cast_to(found_in(table, asked, others, least), schema)

    def rows(self, spark: SparkSession) -> DataFrame:
        """Return the table's current rows; Spark reads the files itself, without a jar.

        A vacuum that removes this version's files breaks the DataFrame. Raises
        SettingsError while there is no table, and for a table that cannot be read
        as plain files (partitions, deletion vectors).
        """
        table = self._table()
        if table is None:
            raise no_table(self.uri)
        check_plain(table, self.uri)
        files = delta_files(table.table_uri, table.file_uris())
        return read_files(spark, _schema_of(table), files)

    def close(self) -> None:
        """Drop the cached table; there is no connection to close."""
        self._held = self._held_log = None

    def _table(self) -> DeltaTable | None:
        """Return the table at its newest version, or None if there is no table."""
        if self._held is not None:
            # update_incremental() does not notice that a table was removed.
            if not DeltaTable.is_deltatable(self._path, self._storage):
                self._held = self._held_log = None
                return None
            self._held.update_incremental()
            return self._held
        try:
            self._held = DeltaTable(self._path, storage_options=self._storage)
        except TableNotFoundError:
            return None
        return self._held

    def _read_commit_log(self) -> CommitLog:
        table = self._table()
        return CommitLog() if table is None else self._commit_log_of(table)

    def _commit_log_of(self, table: DeltaTable) -> CommitLog:
        entries = self._entries_of(table)
        if entries.held is None:
            return CommitLog(entries.every()).without_batches()
        return CommitLog(entries.held)

    def _entries_of(self, table: DeltaTable) -> DeltaEntries:
        version = table.version()
        # Whoever changes the commit log makes a new version.
        if self._held_log is None or self._held_log[0] != version:
            entries = entries_of(table, self._path, self._storage, self._held_log)
            self._held_log = version, entries
        return self._held_log[1]

    def _created(self, changes: Changes | ChangesFrame) -> DeltaTable:
        """Create an empty table with the batch's schema and key."""
        return DeltaTable.create(
            self._path,
            changes.schema,
            configuration={**NAMES_OF_NEW, _KEYS: json.dumps(changes.keys)},
            storage_options=self._storage,
            # Delta knows no properties of these names.
            raise_if_key_not_exists=False,
        )

    def _retried(self, attempt: Callable[[], _Done], scn: int) -> _Done:
        def detecting_loss() -> _Done:
            try:
                return attempt()
            except CommitFailedError as error:
                # The object still has the changes of the failed commit: open the table again.
                self._held = None
                raise LostCommitError(str(error)) from error
            except DeltaError as error:
                # Two writers create the table at once: the second one gets this error.
                if "already exists" not in str(error):
                    raise
                raise LostCommitError(str(error)) from error

        return super()._retried(detecting_loss, scn)

    def _merge(
        self,
        table: DeltaTable,
        changes: Changes | ChangesFrame,
        properties: CommitProperties,
        *,
        takes_new: bool = True,
    ) -> tuple[int, int]:
        """Merge changes in one commit; return how many rows were written and removed.

        `properties`: those of the commit, with entries or without.
        """
        held = _schema_of(table)
        schema = unified_schema(held, changes.schema, self.uri)
        _allow_local_times(table, schema)
        if self.merges_on_executors and (session := session_of(changes)) is not None:
            return self._merge_files(session, table, changes, schema, properties, takes_new)
        assert isinstance(changes, Changes)
        if not changes.rows.num_rows:
            # A merge of no rows adds no columns.
            _add_columns(table, schema)
            held = _schema_of(table)
        merger = table.merge(
            changes.in_types_of(schema).rows,
            _is_same(changes),
            source_alias="s",
            target_alias="t",
            merge_schema=len(schema) > len(held),
            commit_properties=properties,
        )
        version = table.version()
        stats = _with_clauses(merger, changes, takes_new=takes_new).execute()
        if properties.custom_metadata and table.version() == version:
            # A merge that changes no row commits nothing, but the entries must be committed.
            write_deltalake(table, held.empty_table(), mode="append", commit_properties=properties)
        written = stats["num_target_rows_inserted"] + stats["num_target_rows_updated"]
        return written, stats["num_target_rows_deleted"]

    def _merge_files(
        self,
        spark: SparkSession,
        table: DeltaTable,
        changes: Changes | ChangesFrame,
        schema: pa.Schema,
        properties: CommitProperties,
        takes_new: bool,
    ) -> tuple[int, int]:
        """Merge on executors, and commit their files with the entries."""
        check_plain(table, self.uri)
        frame = frame_of(spark, changes) if isinstance(changes, Changes) else changes
        _add_columns(table, schema)
        files = DeltaFiles(table, schema, self._storage)
        change = merge_files(spark, frame, schema, files, takes_new=takes_new)
        if change.added or change.removed or properties.custom_metadata:
            files.commit(change, properties)
            table.update_incremental()
        return change.written, change.deleted

    def _tidy(self, batch_id: int) -> None:
        """Merge small files and remove old ones, once in `optimize_every` batches."""
        table = self._table()
        if table is None or (batch_id + 1) % self._optimize_every:
            return
        try:
            table.optimize.compact()
        except CommitFailedError:
            # Another writer committed meanwhile. Compaction is optional: leave it to the next time.
            return
        table.vacuum(
            # delta-rs refuses less than a week by default; `vacuum_hours` is the user's choice.
            retention_hours=self._vacuum_hours,
            dry_run=False,
            enforce_retention_duration=False,
        )


def _schema_of(table: DeltaTable) -> pa.Schema:
    return pa.schema(table.schema().to_arrow())


def _keys_of(table: DeltaTable) -> tuple[str, ...]:
    return tuple(names_of(table, _KEYS))


def _add_bookkeeping(table: DeltaTable, has_source: bool) -> None:
    """Add missing bookkeeping columns to a table that was created elsewhere."""
    wanted = [name for name in BOOKKEEPING if name != SOURCE or has_source]
    _add_columns(table, pa.schema([(name, BOOKKEEPING[name]) for name in wanted]))


def _add_columns(table: DeltaTable, wanted: pa.Schema) -> None:
    """Add the columns that a table does not have."""
    names = set(_schema_of(table).names)
    missing = pa.schema([field for field in wanted if field.name not in names])
    if missing:
        fields = list(Schema.from_arrow(missing).fields)
        table.alter.add_columns(fields, commit_properties=ONCE)


def _allow_local_times(table: DeltaTable, schema: pa.Schema) -> None:
    """Enable timestamps without a zone before the first such column; a merge does not do it."""
    kinds = [kind for kind in schema.types if pa.types.is_timestamp(kind) and kind.tz is None]
    if kinds and "timestampNtz" not in (table.protocol().writer_features or ()):
        table.alter.add_feature(
            TableFeatures.TimestampWithoutTimezone,
            allow_protocol_versions_increase=True,
            commit_properties=ONCE,
        )


def _set_keys(table: DeltaTable, keys: Sequence[str]) -> None:
    """Store renamed key columns; before the rename, so that the table always has a key."""
    if _keys_of(table) and _keys_of(table) != tuple(keys):
        set_names(table, _KEYS, keys)


def _is_same(changes: Changes) -> str:
    """Return the SQL condition that a row of the table has the key of a change."""
    same = [f"t.{quoted(key)} = s.{quoted(key)}" for key in changes.keys]
    if changes.least_scn is not None:
        # The Delta log tells which files have no such row: they are not read.
        same.append(f"t.{SCN} >= {changes.least_scn}")
    return " AND ".join(same)


def _with_clauses(merger: TableMerger, changes: Changes, *, takes_new: bool) -> TableMerger:
    """Return a merge that does what changes and marks say."""
    columns = {quoted(name): f"s.{quoted(name)}" for name in changes.schema.names}
    is_newer = f"s.{SCN} >= coalesce(t.{SCN}, -1)"
    merger = (
        merger.when_matched_delete(f"s.{DELETE} AND {is_newer}")
        .when_matched_update(columns, f"NOT s.{DELETE} AND {is_newer}")
        # An older change does not replace the row, but proves that it exists as of the change.
        .when_matched_update(
            {AS_OF: f"s.{AS_OF}"},
            f"NOT s.{DELETE} AND coalesce(t.{AS_OF}, -1) < s.{AS_OF}",
        )
    )
    if takes_new:
        merger = merger.when_not_matched_insert(columns, f"NOT s.{DELETE}")
    if changes.marks:
        gone = " OR ".join(_gone(mark, changes.has_source) for mark in changes.marks)
        merger = merger.when_matched_delete(gone).when_not_matched_by_source_delete(gone)
    return merger


def _gone(mark: Mark, has_source: bool) -> str:
    """Return the SQL condition that is true for the rows that a mark removes."""
    conditions = [f"coalesce(t.{SCN}, -1) <= {mark.scn}"]
    if not mark.is_truncate:
        conditions.append(f"coalesce(t.{AS_OF}, -1) < {mark.scn}")
    if has_source:
        conditions.append(f"t.{_is_of(mark.source)}")
    return f"({' AND '.join(conditions)})"


def _is_of(source: str | None) -> str | None:
    """Return the SQL condition for the rows of a source; None for all rows."""
    return None if source is None else f"{SOURCE} = '{source.replace(chr(39), chr(39) * 2)}'"
