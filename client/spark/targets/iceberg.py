"""Iceberg tables through pyiceberg: no jar, and each batch exactly once.

One batch is one commit of the catalog: the files that are replaced, the new ones,
and the commit log (see `logs.iceberg_log`). Each commit makes a snapshot,
also if no row changes, and succeeds only on the snapshot that was read: so the
log cannot be replaced by one that was read before. A writer that loses reads
the new snapshot and tries again.

`iceberg:` merges on the driver, a file at a time, `iceberg+spark:` on Spark's
executors (see `executors`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.table import Table, Transaction
from pyiceberg.utils.config import Config
from pyspark.sql import DataFrame, SparkSession

from databus.client.spark.targets.changes import AS_OF, Changes, unified_schema
from databus.client.spark.targets.commit_log import CommitLog
from databus.client.spark.targets.executors import (
    ChangesFrame,
    FileChange,
    frame_of,
    merge_files,
    session_of,
)
from databus.client.spark.targets.iceberg_files import IcebergFiles, Storage, ids_of
from databus.client.spark.targets.logs.iceberg_log import (
    LOG,
    entries_of,
    in_properties,
    in_summary,
)
from databus.client.spark.targets.merge_plan import Condition, among, forgotten, without
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
)
from databus.schemas.errors import SettingsError

_KEYS = "databus.keys"
_RETRIES = "commit.retry.num-retries"
EXECUTORS_FORM = "iceberg+spark"
_Done = TypeVar("_Done")
# Returns the rows that a file's rows become.
_Change = Callable[[pa.Table], pa.Table]


class IcebergTarget(RetryingTarget):
    """An Iceberg table, `iceberg:<catalog>.<namespace>.<table>`; for one thread at a time.

    The catalog is one of pyiceberg's settings. Options: `catalog`: properties of the
    catalog, beside those of the settings; `attempts`: how often a commit is tried
    when other writers win.
    """

    OPTIONS = ("catalog", "attempts")

    def __init__(
        self,
        uri: str,
        keys: Sequence[str] | None = None,
        *,
        source_column: bool = False,
        catalog: Mapping[str, str] | None = None,
        attempts: int = 20,
    ) -> None:
        super().__init__(uri, keys, source_column, attempts)
        self.check_form(uri)
        form, _, name = uri.partition(":")
        self.merges_on_executors = form == EXECUTORS_FORM
        catalog_name, _, self._name = name.partition(".")
        self._catalog = _opened(catalog_name, catalog or {})
        self._held: Table | None = None

    @classmethod
    def check_form(cls, uri: str) -> None:
        """Raise SettingsError for a name that lacks catalog, namespace or table."""
        form, _, name = uri.partition(":")
        if len(parts := name.split(".")) < 3 or not all(parts):
            raise SettingsError(f"target {uri!r}: give {form}:<catalog>.<namespace>.<table>")

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
        """Return the sequence number of the newest snapshot; None while there is no table."""
        table = self._table()
        if table is None:
            return None
        # Tables of format 1 have no such numbers.
        return getattr(table.metadata, "last_sequence_number", len(table.metadata.snapshots))

    def _apply(self, app_id: str, batch_id: int, changes: Changes | ChangesFrame) -> Applied:
        def attempt() -> Applied:
            table = self._table() or self._created(changes)
            check_same_keys(self.uri, self._given_keys or _keys_of(table), changes.keys)

            def commit(after: CommitLog) -> tuple[int, int]:
                return self._merge(table, changes, after)

            return apply_once(self.uri, _log_of(table), app_id, batch_id, changes, commit)

        return self._retried(attempt, changes.newest_scn)

    def _put(self, request: PutRequest) -> Put:
        def attempt() -> Put:
            table = self._read_table()
            commit_log = _log_of(table)
            takes_new = commit_log.takes_new(request.physical_source, request.scn)
            changes = request.changes(self._given_keys or _keys_of(table))
            counts = self._merge(table, changes, commit_log, takes_new=takes_new)
            return Put(*counts, took_new_rows=takes_new)

        return self._retried(attempt, request.scn)

    def _merge(
        self,
        table: Table,
        changes: Changes | ChangesFrame,
        after: CommitLog,
        *,
        takes_new: bool = True,
    ) -> tuple[int, int]:
        """Merge changes in one commit; return how many rows were written and removed."""
        held = _schema_of(table)
        schema = unified_schema(held, changes.schema, self.uri)
        if len(schema) > len(held):
            # A commit of its own: a column that is null in all rows.
            with table.update_schema() as update:
                update.union_by_name(_wanted(schema))
            schema = _schema_of(table)
        files = IcebergFiles(table, Storage.of(table), self.uri, changes.least_scn)
        spark = session_of(changes) if self.merges_on_executors else None
        if spark is not None:
            frame = frame_of(spark, changes) if isinstance(changes, Changes) else changes
            change = merge_files(spark, frame, schema, files, takes_new=takes_new)
        else:
            assert isinstance(changes, Changes)
            change = files.merge_here(changes, schema, takes_new=takes_new)
        with table.transaction() as transaction:
            _replace_files(transaction, table, files, change, after)
            transaction.set_properties(in_properties(table, after.entries))
        return change.written, change.deleted

    def reshape(self, plan: Reshaping, app_id: str | None, batch_id: int) -> None:
        """Rewrite all files with other columns, in one commit; see `Target.reshape`."""

        def attempt() -> None:
            table = self._table()
            if table is None or (app_id and _log_of(table).has(app_id, batch_id)):
                return
            after = _log_of(table)
            if app_id is not None:
                after = after.after(app_id, batch_id, {})
            self._rewrite(table, table, plan.schema, plan.table, plan.keys, after)

        self._retried(attempt, batch_id)
        self._given_keys = plan.keys if self._given_keys else ()

    def take_over(self, uri: str, app_id: str, batch_id: int, positions: Mapping[str, int]) -> None:
        """Replace the rows with the other's, in one commit; see `Target.take_over`."""
        name = uri.partition(".")[2]

        def attempt() -> None:
            table = self._table()
            is_noted = table is not None and _log_of(table).has(app_id, batch_id)
            # Read again as of the same SCN, it is there once more.
            if table is None or (is_noted and not self._catalog.table_exists(name)):
                return
            other = self._catalog.load_table(name)
            after = _log_of(table).after(app_id, batch_id, positions)
            schema = _schema_of(other)
            self._rewrite(table, other, schema, lambda rows: rows, _keys_of(other), after)

        self._retried(attempt, batch_id)
        if self._catalog.table_exists(name):
            self._catalog.purge_table(name)

    def _rewrite(
        self,
        table: Table,
        rows_of: Table,
        schema: pa.Schema,
        become: _Change,
        keys: Sequence[str],
        after: CommitLog,
    ) -> None:
        """Replace all rows with those of a table, in new columns, and commit the log with them."""
        old, storage = IcebergFiles(table, Storage.of(table), self.uri), Storage.of(rows_of)
        theirs = IcebergFiles(rows_of, storage, self.uri)
        with table.transaction() as transaction:
            # New columns for all: a column of the same name may have another type, or origin.
            with transaction.update_schema(allow_incompatible_changes=True) as update:
                for name in table.schema().column_names:
                    update.delete_column((name,))
            with transaction.update_schema(allow_incompatible_changes=True) as update:
                update.union_by_name(_wanted(schema))
            new = ids_of(transaction.table_metadata.schema().as_arrow())
            writer = Storage(table.location(), storage.properties, new)
            added = [
                path
                for file in theirs.data_files
                for path in writer.write_all(become(storage.read(file, storage.ids.names)))
            ]
            change = FileChange(tuple(old.data_files), tuple(added), 0, 0)
            _replace_files(transaction, table, old, change, after)
            told = in_properties(table, after.entries)
            transaction.set_properties({**told, _KEYS: json.dumps(list(keys))})

    def remove(self) -> None:
        """Remove the table from its catalog, with its files; see `Target.remove`."""
        self._held = None
        if self._catalog.table_exists(self._name):
            self._catalog.purge_table(self._name)

    def forget_as_of(self, source: str | None = None, *, also_scn: bool = False) -> None:
        """Clear the as-of SCN of a source's rows; see `Target.forget_as_of`."""

        def attempt() -> None:
            table = self._table()
            if table is None or AS_OF not in _schema_of(table).names:
                return
            storage = Storage.of(table)
            files = IcebergFiles(table, storage, self.uri)
            names = forgotten(also_scn=also_scn)
            added = [
                path
                for file in files.data_files
                for path in storage.write_all(
                    without(names, storage.read(file, storage.ids.names), source)
                )
            ]
            with table.transaction() as transaction:
                change = FileChange(tuple(files.data_files), tuple(added), 0, 0)
                _replace_files(transaction, table, files, change)

        self._retried(attempt, -1)

    def find(self, keys: pa.Table, others: Sequence[Condition], least: Condition = ()) -> pa.Table:
        """Return some rows, read without Spark; see `Target.find`."""
        table = self._table()
        if table is None:
            return pa.table({})
        schema = _schema_of(table)
        files = IcebergFiles(table, Storage.of(table), self.uri)
        asked = keys.cast(pa.schema([schema.field(name) for name in keys.column_names]))
        tests = [test for tests in [*others, least] for test in tests]
        names = dict.fromkeys([*keys.column_names, *(test.column for test in tests)])
        parts = files.found(among(asked, others, least), list(names))
        return pa.concat_tables([schema.empty_table(), *parts])

    def rows(self, spark: SparkSession) -> DataFrame:
        """Return the table's current rows; Spark's tasks read the files, without a jar."""
        table = self._read_table()
        files = IcebergFiles(table, Storage.of(table), self.uri)
        return files.frame(spark, list(files.data_files))

    def read(self) -> pa.Table:
        """Return the table's current rows, read without Spark."""
        table = self._read_table()
        storage = Storage.of(table)
        files = IcebergFiles(table, storage, self.uri).data_files
        parts = [storage.read(path, storage.ids.names) for path in files]
        return pa.concat_tables([_schema_of(table).empty_table(), *parts])

    def close(self) -> None:
        """Close the catalog."""
        self._held = None
        self._catalog.close()

    def _table(self) -> Table | None:
        """Return the table at its newest version, or None if there is no table."""
        try:
            table = self._catalog.load_table(self._name)
        except NoSuchTableError:
            return None
        # In this copy alone: pyiceberg would try again with files that were merged from old rows.
        table.metadata.properties[_RETRIES] = "0"
        return table

    def _read_table(self) -> Table:
        table = self._table()
        if table is None:
            raise no_table(self.uri)
        return table

    def _read_commit_log(self) -> CommitLog:
        table = self._table()
        return CommitLog() if table is None else _log_of(table)

    def _created(self, changes: Changes | ChangesFrame) -> Table:
        """Create an empty table with the batch's schema and key."""
        self._catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
        properties = {LOG: "{}", _KEYS: json.dumps(changes.keys)}
        try:
            self._catalog.create_table(self._name, _wanted(changes.schema), properties=properties)
        except TableAlreadyExistsError as error:
            raise LostCommitError(str(error)) from error
        return self._read_table()

    def _retried(self, attempt: Callable[[], _Done], scn: int) -> _Done:
        def detecting_loss() -> _Done:
            try:
                return attempt()
            except CommitFailedException as error:
                raise LostCommitError(str(error)) from error

        return super()._retried(detecting_loss, scn)


def _opened(name: str, given: Mapping[str, str]) -> Catalog:
    """Open a catalog; pyiceberg's settings are read now, not when it was imported.

    Raises SettingsError for one that these do not name.
    """
    known = {key: str(value) for key, value in (Config().get_catalog_config(name) or {}).items()}
    if not known and not given:
        raise SettingsError(
            f"pyiceberg knows no catalog {name!r}: describe it in ~/.pyiceberg.yaml, or by "
            f"variables like PYICEBERG_CATALOG__{name.upper()}__URI"
        )
    return load_catalog(name, **{**known, **given})


def _replace_files(
    transaction: Transaction,
    table: Table,
    files: IcebergFiles,
    change: FileChange,
    after: CommitLog | None = None,
) -> None:
    """Add a snapshot to a transaction, in which some files are replaced; `after`: with a log."""
    metadata = transaction.table_metadata
    summary = {} if after is None else in_summary(after.entries)
    with transaction.update_snapshot(summary).overwrite() as snapshot:
        for path in change.removed:
            snapshot.delete_data_file(files.data_files[path])
        for path in change.added:
            snapshot.append_data_file(parquet_file_to_data_file(table.io, metadata, path))


def _schema_of(table: Table) -> pa.Schema:
    fields = ids_of(table.schema().as_arrow())
    return pa.schema([field.remove_metadata() for field in fields])


def _log_of(table: Table) -> CommitLog:
    found = entries_of(table)
    commit_log = CommitLog(found.entries)
    return commit_log if found.is_known else commit_log.without_batches()


def _keys_of(table: Table) -> tuple[str, ...]:
    return tuple(json.loads(table.properties.get(_KEYS) or "[]"))


def _wanted(schema: pa.Schema) -> pa.Schema:
    """Return a schema in Iceberg's types: it has no integers of 8 or 16 bits."""
    small = (pa.int8(), pa.int16())
    return pa.schema([(one.name, pa.int32() if one.type in small else one.type) for one in schema])
