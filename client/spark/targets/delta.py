"""Delta tables through delta-rs: no jar, and each batch exactly once.

One batch is one commit: a MERGE guarded by `_databus_scn`, and the entries of
the book as app transactions (`databus:<name>`, number). Which entries there are
is in the table property `databus.names`, for app transactions can be asked for
by name only; a name is put there before its number first is, which costs a
commit of its own when an app or a source is new.

A commit is tried on the version that was read and on no other: whoever loses
against another writer reads again and does it over.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa
from deltalake import (
    CommitProperties,
    DeltaTable,
    Schema,
    TableFeatures,
    Transaction,
    write_deltalake,
)
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from pyspark.sql import DataFrame, SparkSession

from databus.client.spark.targets.changes import (
    AS_OF,
    BOOKKEEPING,
    DELETE,
    SCN,
    SOURCE,
    Changes,
    Mark,
    put_changes,
    unified_schema,
)
from databus.client.spark.targets.commit_log import Book
from databus.client.spark.targets.places import check_delta_folder, delta_files
from databus.client.spark.targets.reshaping import Reshaping
from databus.client.spark.targets.target import (
    Applied,
    Put,
    check_same_keys,
    lost_every_time,
    no_table,
    read_files,
    whole_key,
)
from databus.schemas.errors import SettingsError

_NAMES = "databus.names"
_KEYS = "databus.keys"
_PREFIX = "databus:"
_Done = TypeVar("_Done")


class DeltaTarget:
    """A Delta table; for one thread at a time.

    Options: `storage_options` as delta-rs takes them; `optimize_every`: after so
    many batches small files are put together and files older than
    `vacuum_hours` removed (0: never); `attempts`: how often a commit that loses
    against another writer is done over.
    """

    OPTIONS = ("storage_options", "optimize_every", "vacuum_hours", "attempts")

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
        self.uri = uri
        self.source_column = source_column
        self._path = uri.removeprefix("delta:")
        check_delta_folder(uri, self._path)
        self._given_keys = whole_key(keys, source_column)
        self._storage = storage_options
        self._optimize_every = optimize_every
        self._vacuum_hours = vacuum_hours
        self._attempts = attempts
        # As last seen, so that a batch reads of the log only what is new in it.
        self._held: DeltaTable | None = None
        self._held_book: tuple[int, Book] | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """Name the columns that make a row unique; () while nobody has said so."""
        table = self._table()
        return self._given_keys or (() if table is None else _keys_of(table))

    def applied(self, app_id: str) -> int | None:
        """Return the last batch of an app that is applied, or None."""
        return self._book().applied(app_id)

    def positions(self) -> dict[str, int]:
        """Return the SCN per physical source up to which everything is applied."""
        return self._book().positions()

    def sources(self) -> list[str]:
        """Name the source that the rows are of, as far as it was noted."""
        return self._book().sources()

    def schema(self) -> pa.Schema | None:
        """Return the table's columns, bookkeeping included; None while there is no table."""
        table = self._table()
        return None if table is None else _schema_of(table)

    def version(self) -> int | None:
        """Return the table's version; None while there is no table."""
        table = self._table()
        return None if table is None else table.version()

    def apply(self, app_id: str, batch_id: int, changes: Changes) -> Applied:
        """Apply a batch in one commit, with the note that it is applied.

        Raises SettingsError for another key than the table's,
        IncompatibleSchemaError for a column of another type, ConsumerError if
        other writers win every time.
        """
        if changes.is_nothing():
            return Applied(positions=self.positions())

        def attempt() -> Applied:
            table = self._table() or self._created(changes)
            _add_bookkeeping(table, changes.has_source)
            check_same_keys(self.uri, self._given_keys or _keys_of(table), changes.keys)
            book = self._book_of(table)
            if book.has(app_id, batch_id):
                return Applied(is_skipped=True, positions=book.positions())
            after = book.after(app_id, batch_id, changes.positions, changes.source)
            _add_names(table, after)
            counts = self._merge(table, changes, _notes(after, book))
            self._held_book = table.version(), after
            return Applied(*counts, positions=after.positions())

        applied = self._retried(attempt, changes.newest_scn)
        if self._optimize_every and not applied.is_skipped:
            self._tidy(batch_id)
        return applied

    def put(
        self,
        rows: pa.Table | None = None,
        deletes: pa.Table | None = None,
        *,
        physical_source: str,
        scn: int,
        source: str | None = None,
    ) -> Put:
        """Make rows, and keys to delete, what the source had at an SCN; see `Target.put`."""

        def attempt() -> Put:
            table = self._table()
            if table is None:
                raise no_table(self.uri)
            keys = self._given_keys or _keys_of(table)
            _add_bookkeeping(table, SOURCE in keys)
            book = self._book_of(table)
            changes = put_changes(rows, deletes, keys, scn, source)
            takes_new = book.takes_new(physical_source, scn)
            written, deleted = self._merge(table, changes, [], takes_new=takes_new)
            return Put(written, deleted, takes_new)

        return self._retried(attempt, scn)

    def reshape(self, plan: Reshaping, app_id: str | None, batch_id: int) -> None:
        """Rewrite the table with other columns, in one commit; see `Target.reshape`.

        Its rows go through a file in the folder for temporary files.
        """

        def attempt() -> None:
            table = self._table()
            if table is None or (app_id and self._book_of(table).has(app_id, batch_id)):
                return
            _set_keys(table, plan.keys)
            after = self._book_of(table)
            if app_id is not None:
                after = after.after(app_id, batch_id, {})
            self._overwrite(table, table, plan, after)

        self._retried(attempt, batch_id)
        self._given_keys = plan.keys if self._given_keys else ()

    def take_over(self, uri: str, app_id: str, batch_id: int, positions: Mapping[str, int]) -> None:
        """Write the other table's rows over all, in one commit; see `Target.take_over`."""
        path = uri.removeprefix("delta:")

        def attempt() -> None:
            table = self._table()
            if table is None or self._book_of(table).has(app_id, batch_id):
                return
            other = DeltaTable(path, storage_options=self._storage)
            _set_keys(table, _keys_of(other))
            after = self._book_of(table).after(app_id, batch_id, positions)
            self._overwrite(table, other, None, after)

        self._retried(attempt, batch_id)
        # One that is not on this disk stays, and its next load begins with it.
        shutil.rmtree(path, ignore_errors=True)

    def _overwrite(
        self, table: DeltaTable, rows_of: DeltaTable, plan: Reshaping | None, after: Book
    ) -> None:
        """Put rows of a table, reshaped, in place of all, with the notes of a book."""
        book = self._book_of(table)
        _add_names(table, after)
        schema = _schema_of(rows_of) if plan is None else plan.schema
        # To a file first: what delta-rs reads while it writes, it cannot read itself.
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
                    commit_properties=CommitProperties(
                        max_commit_retries=0, app_transactions=_notes(after, book)
                    ),
                )
        self._held_book = None

    def forget_as_of(self, source: str | None = None) -> None:
        """Take no row of a source for known to be there; see `Target.forget_as_of`."""

        def attempt() -> None:
            table = self._table()
            if table is None or AS_OF not in _schema_of(table).names:
                return
            predicate = _is_of(source) if SOURCE in _schema_of(table).names else None
            properties = CommitProperties(max_commit_retries=0)
            table.update({AS_OF: "NULL"}, predicate=predicate, commit_properties=properties)

        self._retried(attempt, -1)

    def rows(self, spark: SparkSession) -> DataFrame:
        """Return the table as it is now; Spark reads its files, without a jar.

        Not safe beside a vacuum that removes files of this version. Raises
        SettingsError while there is no table, and for one that Spark could not
        read like that (partitions, deletion vectors).
        """
        table = self._table()
        if table is None:
            raise no_table(self.uri)
        if table.metadata().partition_columns or pa.table(table.deletion_vectors()).num_rows:
            raise SettingsError(
                f"{self.uri}: a table with partition columns or deletion vectors cannot be read "
                "as plain files: read it with Spark's own Delta connector"
            )
        files = delta_files(table.table_uri, table.file_uris())
        return read_files(spark, _schema_of(table), files)

    def close(self) -> None:
        """Forget what is known of the table; it holds no connection."""
        self._held = self._held_book = None

    def _table(self) -> DeltaTable | None:
        """Return the table in its newest version; None while there is none."""
        if self._held is not None:
            # delta-rs finds nothing new in the log of a table that was removed.
            if not DeltaTable.is_deltatable(self._path, self._storage):
                self._held = self._held_book = None
                return None
            self._held.update_incremental()
            return self._held
        try:
            self._held = DeltaTable(self._path, storage_options=self._storage)
        except TableNotFoundError:
            return None
        return self._held

    def _book(self) -> Book:
        table = self._table()
        return Book() if table is None else self._book_of(table)

    def _book_of(self, table: DeltaTable) -> Book:
        version = table.version()
        if self._held_book is None or self._held_book[0] != version:
            names = _configuration(table, _NAMES)
            numbers = {name: table.transaction_version(f"{_PREFIX}{name}") for name in names}
            known = {name: number for name, number in numbers.items() if number is not None}
            self._held_book = version, Book(known)
        return self._held_book[1]

    def _created(self, changes: Changes) -> DeltaTable:
        """Make an empty table as the batch has it."""
        return DeltaTable.create(
            self._path,
            changes.schema,
            configuration={_NAMES: "[]", _KEYS: json.dumps(changes.keys)},
            storage_options=self._storage,
            raise_if_key_not_exists=False,
        )

    def _retried(self, attempt: Callable[[], _Done], scn: int) -> _Done:
        """Do a commit over until nobody else has committed in between."""
        lost: DeltaError | None = None
        for _ in range(self._attempts):
            try:
                return attempt()
            except CommitFailedError as error:
                # What was begun on this object is not to be seen again.
                self._held = None
                lost = error
            except DeltaError as error:
                # Two that make the table at once: one of them finds it made.
                if "already exists" not in str(error):
                    raise
                lost = error
        raise lost_every_time(self.uri, scn, self._attempts, lost) from lost

    def _merge(
        self,
        table: DeltaTable,
        changes: Changes,
        notes: list[Transaction],
        *,
        takes_new: bool = True,
    ) -> tuple[int, int]:
        """Merge changes in one commit with notes; return how many rows were written and removed."""
        held = _schema_of(table)
        schema = unified_schema(held, changes.schema, self.uri)
        _allow_local_times(table, schema)
        properties = CommitProperties(max_commit_retries=0, app_transactions=notes)
        merger = table.merge(
            changes.in_types_of(schema).rows,
            " AND ".join(f"t.{_quoted(key)} = s.{_quoted(key)}" for key in changes.keys),
            source_alias="s",
            target_alias="t",
            merge_schema=len(schema) > len(held),
            commit_properties=properties,
        )
        columns = {_quoted(name): f"s.{_quoted(name)}" for name in changes.schema.names}
        is_newer = f"s.{SCN} >= coalesce(t.{SCN}, -1)"
        merger = (
            merger.when_matched_delete(f"s.{DELETE} AND {is_newer}")
            .when_matched_update(columns, f"NOT s.{DELETE} AND {is_newer}")
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
        version = table.version()
        figures = merger.execute()
        if notes and table.version() == version:
            # Nothing changed, so nothing was committed: the notes must be, all the same.
            write_deltalake(table, held.empty_table(), mode="append", commit_properties=properties)
        written = figures["num_target_rows_inserted"] + figures["num_target_rows_updated"]
        return written, figures["num_target_rows_deleted"]

    def _tidy(self, batch_id: int) -> None:
        """Put small files together and remove old ones, each so many batches."""
        table = self._table()
        if table is None or (batch_id + 1) % self._optimize_every:
            return
        try:
            table.optimize.compact()
        except CommitFailedError:
            # Somebody else wrote meanwhile; the next time will do, for rows do not depend on it.
            return
        table.vacuum(
            retention_hours=self._vacuum_hours, dry_run=False, enforce_retention_duration=False
        )


def _schema_of(table: DeltaTable) -> pa.Schema:
    return pa.schema(table.schema().to_arrow())


def _configuration(table: DeltaTable, name: str) -> list[str]:
    configuration: dict[str, Any] = table.metadata().configuration
    names: list[str] = json.loads(configuration.get(name) or "[]")
    return names


def _keys_of(table: DeltaTable) -> tuple[str, ...]:
    return tuple(_configuration(table, _KEYS))


def _add_bookkeeping(table: DeltaTable, has_source: bool) -> None:
    """Give a table that somebody else made the columns that the rules need."""
    names = set(_schema_of(table).names)
    wanted = [name for name in BOOKKEEPING if name != SOURCE or has_source]
    missing = [name for name in wanted if name not in names]
    if missing:
        fields = pa.schema([(name, BOOKKEEPING[name]) for name in missing])
        table.alter.add_columns(list(Schema.from_arrow(fields).fields))


def _allow_local_times(table: DeltaTable, schema: pa.Schema) -> None:
    """Let a table have timestamps without a zone, where it gets its first: a merge does not."""
    kinds = [kind for kind in schema.types if pa.types.is_timestamp(kind) and kind.tz is None]
    if kinds and "timestampNtz" not in (table.protocol().writer_features or ()):
        table.alter.add_feature(
            TableFeatures.TimestampWithoutTimezone, allow_protocol_versions_increase=True
        )


def _notes(after: Book, before: Book) -> list[Transaction]:
    """Return what a commit notes of a book."""
    return [
        Transaction(f"{_PREFIX}{name}", number)
        for name, number in after.changed_since(before).items()
    ]


def _add_names(table: DeltaTable, book: Book) -> None:
    """See that every entry of a book can be found again."""
    known = _configuration(table, _NAMES)
    names = [*known, *(name for name in book.entries if name not in known)]
    if len(names) > len(known):
        table.alter.set_table_properties({_NAMES: json.dumps(names)}, raise_if_not_exists=False)


def _set_keys(table: DeltaTable, keys: Sequence[str]) -> None:
    """Write down a key that was renamed: before the columns are, so that none is without."""
    if _keys_of(table) and _keys_of(table) != tuple(keys):
        table.alter.set_table_properties({_KEYS: json.dumps(keys)}, raise_if_not_exists=False)


def _gone(mark: Mark, has_source: bool) -> str:
    """Return the condition of a mark on a row of the table."""
    conditions = [f"coalesce(t.{SCN}, -1) <= {mark.scn}"]
    if not mark.is_truncate:
        conditions.append(f"coalesce(t.{AS_OF}, -1) < {mark.scn}")
    if has_source:
        conditions.append(f"t.{_is_of(mark.source)}")
    return f"({' AND '.join(conditions)})"


def _is_of(source: str | None) -> str | None:
    """Return the condition of a source on a row; none for all."""
    return None if source is None else f"{SOURCE} = '{source.replace(chr(39), chr(39) * 2)}'"


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
