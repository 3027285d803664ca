"""A table of PostgreSQL, MariaDB, MySQL or SQLite.

One batch is one transaction. It first updates the table's row in
`databus_targets`, which locks out other writers of the table. Then it reads the
SCNs of the rows that the batch changes, and inserts, updates and deletes by the
rules of `merge_plan`. The same transaction writes the commit log to `databus_book`.

    databus_targets   target, changes (number of transactions), keys, columns
    databus_book      target, name, value: the commit log

`columns` is the table's Arrow schema: the database's own types do not say
everything. A table that was created elsewhere may store a value in another form.
In MySQL `databus_targets` has one more row for a table while it is altered.

New columns are added before the transaction: an ALTER commits in MySQL.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from secrets import randbits
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from sqlalchemy.engine import Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError, IntegrityError, NoSuchModuleError, NoSuchTableError
from sqlalchemy.schema import CreateColumn

from databus.client.spark.targets.changes import SOURCE, Changes, unified_schema
from databus.client.spark.targets.commit_log import CommitLog
from databus.client.spark.targets.merge_plan import Condition, forgotten
from databus.client.spark.targets.reshaping import Reshaping
from databus.client.spark.targets.sql_batch import Batch, found_rows, read_parts, selected
from databus.client.spark.targets.sql_tables import (
    Altered,
    altering_name,
    own_tables,
    schema_of,
    table_of,
    text_of,
)
from databus.client.spark.targets.sql_values import storable
from databus.client.spark.targets.target import (
    Applied,
    Put,
    PutRequest,
    Target,
    apply_once,
    check_same_keys,
    no_table,
)
from databus.client.sql.altering import Altering, comment_of, has_mark, marked, swap, was_done
from databus.client.sql.engines import make_engine
from databus.client.sql.existing import held_columns, required_columns
from databus.client.sql.names import MYSQL, check_database, quoted, quoted_text, run
from databus.client.sql.statements import Statements
from databus.conf.addresses import shown_uri
from databus.schemas.errors import SettingsError


class SqlTarget(Target):
    """A table of a database: `<SQLAlchemy URL>#<table>`.

    Options: `key_length`: the length of string key columns in a table that the
    target creates; `partitions`: the number of parts in which Spark reads a table
    with an integer key; `engine_options`: those of SQLAlchemy's `create_engine`.
    """

    OPTIONS = ("key_length", "partitions", "engine_options")

    def __init__(
        self,
        uri: str,
        keys: Sequence[str] | None = None,
        *,
        source_column: bool = False,
        key_length: int = 255,
        partitions: int = 4,
        engine_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.check_form(uri)
        self._url, _, self.table = uri.rpartition("#")
        # Errors and logs show the URI, so it has no password.
        shown = f"{make_url(self._url).render_as_string(hide_password=True)}#{self.table}"
        super().__init__(shown, keys, source_column)
        self._key_length = key_length
        self._partitions = partitions
        self._engine_options = dict(engine_options or {})
        self._engine: Engine = make_engine(self._url, **self._engine_options)
        self._is_ready = False
        self._required: Collection[str] | None = None
        self._targets, self._entries = own_tables()
        # Elsewhere an ALTER is in the transaction that records it.
        self._is_settled = self._engine.dialect.name not in MYSQL

    @classmethod
    def check_form(cls, uri: str) -> None:
        """Raise SettingsError for a wrong URL, a driver that is not there, and no table."""
        text, _, table = uri.rpartition("#")
        shown = shown_uri(uri)
        try:
            url = make_url(text)
            if "@" in (url.host or ""):
                raise ValueError("the host is a part of the password")
        except (ArgumentError, ValueError):
            # Their words may have a part of the password.
            raise SettingsError(
                f"target {shown!r} is no URL of a database: write @, :, / and # of a name or "
                "password as %40, %3A, %2F and %23"
            ) from None
        check_database(url)
        try:
            url.get_dialect().import_dbapi()
        except (NoSuchModuleError, ImportError) as error:
            raise SettingsError(
                f"target {shown!r}: its driver is not there ({error}): install it, or name another "
                "one, as in mysql+pymysql://… or postgresql+psycopg://…"
            ) from error
        if not table:
            raise SettingsError(f"target {shown!r} names no table: give <SQLAlchemy URL>#<table>")

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that make a row unique; () as long as they are not known."""
        if self._given_keys:
            return self._given_keys
        self._settle()
        with self._engine.connect() as connection:
            stored = self._target_row(connection)
            if stored is not None:
                return tuple(json.loads(stored.keys))
        return tuple(self._inspected_keys())

    def schema(self) -> pa.Schema | None:
        """Return the columns of the applied batches, bookkeeping included; None before the first.

        Other columns of the table are not listed.
        """
        self._settle()
        with self._engine.connect() as connection:
            stored = self._target_row(connection)
        return None if stored is None else schema_of(stored)

    def version(self) -> int | None:
        """Return None: a database's table has no numbered versions."""
        return None

    def _apply(self, app_id: str, batch_id: int, changes: Changes) -> Applied:
        changes = storable(changes, self._engine.dialect, self.uri)
        schema = self._ready(changes)
        with self._engine.begin() as connection:
            self._lock(connection, schema)
            # Read under the lock: another writer may have applied the batch meanwhile.
            commit_log = self._commit_log(connection)

            def commit(after: CommitLog) -> tuple[int, int]:
                counts = self._batch(connection, changes, schema).run()
                self._write(connection, after.changed_since(commit_log))
                return counts

            return apply_once(self.uri, commit_log, app_id, batch_id, changes, commit)

    def _put(self, request: PutRequest) -> Put:
        changes = storable(request.changes(self.keys), self._engine.dialect, self.uri)
        schema = self._ready(changes)
        with self._engine.begin() as connection:
            self._lock(connection, schema)
            commit_log = self._commit_log(connection)
            takes_new = commit_log.takes_new(request.physical_source, request.scn)
            batch = self._batch(connection, changes, schema, takes_new=takes_new)
            return Put(*batch.run(), took_new_rows=takes_new)

    def reshape(self, plan: Reshaping, app_id: str | None, batch_id: int) -> None:
        """Alter the table; see `Target.reshape`. Columns that the target does not know stay."""
        held = self._known_schema()
        dialect = self._engine.dialect
        old, new = (
            table_of(self.table, schema, plan.keys, dialect, self._key_length)
            for schema in (held, plan.schema)
        )
        altering = Altering(old, new, plan.columns, dialect)
        commit_log = self._read_commit_log()
        if app_id and commit_log.has(app_id, batch_id):
            return
        after = commit_log.after(app_id, batch_id, {}) if app_id else commit_log
        entries = after.changed_since(commit_log)
        altered = Altered(plan.schema, plan.keys, plan.is_emptied, entries)
        if dialect.name in MYSQL:
            # This ALTER commits at once, so it comes before the transaction.
            self._alter_at_once(altering, altered, f"{app_id}@{batch_id}")
        with self._engine.begin() as connection:
            self._lock(connection, plan.schema, plan.keys)
            if dialect.name not in MYSQL:
                for statement in altering.one_by_one():
                    run(connection, statement)
            self._record(connection, altered)
        self._is_settled = True
        self._is_ready = False
        self._given_keys = plan.keys if self._given_keys else ()

    def take_over(self, uri: str, app_id: str, batch_id: int, positions: Mapping[str, int]) -> None:
        """Swap the other table in, in one step; see `Target.take_over`.

        Indexes that users added to the old table are lost.
        """
        other, old = uri.rpartition("#")[2], f"{self.table}__databus_old"
        dialect, targets, entries = self._engine.dialect, self._targets, self._entries
        with self._engine.begin() as connection:
            commit_log = self._commit_log(connection)
            theirs = self._target_row(connection, other)
            # Read again as of the same SCN, it is there once more.
            is_there = sa.inspect(connection).has_table(other)
        if theirs is None or (commit_log.has(app_id, batch_id) and not is_there):
            return
        statements = swap(dialect, self.table, other, old)
        if dialect.name in MYSQL:
            # The mark is in the new table's comment, which the swap moves with the table.
            mark = f"{app_id}@{batch_id}"
            with self._engine.connect() as connection:
                is_done = not is_there and has_mark(comment_of(connection, self.table), mark)
                if not is_done:
                    text = quoted_text(dialect, marked("", mark))
                    run(connection, f"ALTER TABLE {quoted(dialect, other)} COMMENT = {text}")
                    # Left over from a take-over that was interrupted.
                    run(connection, f"DROP TABLE IF EXISTS {quoted(dialect, old)}")
                    run(connection, statements[0])
        with self._engine.begin() as connection:
            self._lock(connection, schema_of(theirs), json.loads(theirs.keys))
            if dialect.name not in MYSQL:
                for statement in statements:
                    run(connection, statement)
            changed = commit_log.after(app_id, batch_id, positions).changed_since(commit_log)
            self._write(connection, changed)
            connection.execute(entries.delete().where(entries.c.target == other))
            connection.execute(targets.delete().where(targets.c.target == other))
        with self._engine.begin() as connection:
            run(connection, f"DROP TABLE IF EXISTS {quoted(dialect, old)}")
        self._is_ready = False

    def _alter_at_once(self, altering: Altering, altered: Altered, earlier: str) -> None:
        """Alter the table in MySQL, and leave what `_settle` needs if this process dies then.

        `earlier`: the mark of an earlier version of databus, which says that it was done.
        """
        self._is_settled = False
        row = altered.row(self.table, token := randbits(62))
        with self._engine.begin() as connection:
            targets = self._targets
            connection.execute(targets.delete().where(targets.c.target == row["target"]))
            connection.execute(targets.insert(), row)
        with self._engine.connect() as connection:
            comment = comment_of(connection, self.table)
            if not has_mark(comment, earlier):
                run(connection, altering.in_one(marked(comment, _mark(token))))

    def _settle(self) -> None:
        """Record an ALTER that MySQL has done for a process which died before it recorded it."""
        if self._is_settled:
            return
        with self._engine.connect() as connection:
            begun = self._stored_row(connection, altering_name(self.table))
            is_done = begun is not None and was_done(connection, self.table, _mark(begun.changes))
        if begun is not None and is_done:
            altered = Altered.of(begun)
            with self._engine.begin() as connection:
                self._lock(connection, None)
                # That process may live, and have recorded it meanwhile.
                still = self._stored_row(connection, begun.target, is_locked=True)
                if still is not None and still.changes == begun.changes:
                    self._lock(connection, altered.schema, altered.keys)
                    self._record(connection, altered)
        self._is_settled = True

    def _record(self, connection: Connection, altered: Altered) -> None:
        """Record that the table was altered, in the transaction that has locked it."""
        if altered.is_emptied:
            connection.execute(self._table_of(altered.schema, altered.keys).delete())
        self._write(connection, altered.entries)
        targets = self._targets
        begun = targets.c.target == altering_name(self.table)
        connection.execute(targets.delete().where(begun))

    def remove(self) -> None:
        """Drop the table; see `Target.remove`."""
        self._is_ready = False
        with self._engine.begin() as connection:
            run(connection, f"DROP TABLE IF EXISTS {quoted(self._engine.dialect, self.table)}")
        self._forget_dropped()

    def forget_as_of(self, source: str | None = None, *, also_scn: bool = False) -> None:
        """Clear the as-of SCN of a source's rows; see `Target.forget_as_of`."""
        schema = self.schema()
        if schema is None:
            return
        table = self._table_of(schema)
        update = table.update().values(dict.fromkeys(forgotten(also_scn=also_scn)))
        if source is not None and SOURCE in schema.names:
            update = update.where(table.c[SOURCE] == source)
        with self._engine.begin() as connection:
            self._lock(connection, schema)
            connection.execute(update)

    def find(  # the rows of a key are few
        self,
        keys: pa.Table,
        others: Sequence[Condition],
        least: Condition = (),  # noqa: ARG002
    ) -> pa.Table:
        """Return some rows; see `Target.find`. Those with the keys are not tested by `least`."""
        schema = self.schema()
        if schema is None:
            return pa.table({})
        with self._engine.connect() as connection:
            return found_rows(connection, self._table_of(schema), schema, keys, others)

    def rows(self, spark: SparkSession) -> DataFrame:
        """Return the table's rows at the time Spark reads them, by ranges of an integer key.

        Each part is read in its own transaction: a concurrent write may be visible
        in one part and not in another.
        """
        schema = self._known_schema()
        limits = self._limits(schema)
        # An engine cannot be pickled, so tasks get its URL and make their own.
        reader = partial(
            read_parts, self._url, self._engine_options, self.table, self.keys,
            schema.serialize().to_pybytes(), limits,
        )  # fmt: skip
        parts = spark.range(0, len(limits), 1, len(limits))
        return parts.mapInArrow(reader, from_arrow_schema(schema, prefer_timestamp_ntz=True))

    def read(self) -> pa.Table:
        """Return the table's current rows, read without Spark."""
        schema = self._known_schema()
        with self._engine.connect() as connection:
            batches = selected(connection, self._table_of(schema), schema, None)
            return pa.Table.from_batches(batches, schema)

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def _batch(
        self, connection: Connection, changes: Changes, schema: pa.Schema, takes_new: bool = True
    ) -> Batch:
        table = self._table_of(schema)
        return Batch(table, changes, schema, connection, takes_new, self.uri, self._required)

    def _known_schema(self) -> pa.Schema:
        schema = self.schema()
        if schema is None:
            raise no_table(self.uri)
        return schema

    def _ready(self, changes: Changes) -> pa.Schema:
        """Create the table and missing columns; return the schema.

        Not in the batch's transaction: in some databases DDL commits.
        """
        known = self.schema()
        if known is not None:
            check_same_keys(self.uri, self.keys, changes.keys)
            schema = unified_schema(known, changes.schema, self.uri)
            # The usual case: there is nothing to create.
            if schema == known and self._is_ready:
                return schema
        else:
            check_same_keys(self.uri, self._given_keys, changes.keys)
            schema = changes.schema
            self._forget_dropped()
        self._targets.metadata.create_all(self._engine)
        table = self._table_of(schema, changes.keys)
        table.create(self._engine, checkfirst=True)
        self._add_columns(table)
        with self._engine.connect() as connection:
            self._required = required_columns(connection, table, changes.keys)
        self._add_target_row(changes.keys, schema)
        self._is_ready = True
        return schema

    def _add_columns(self, table: sa.Table) -> None:
        with self._engine.connect() as connection:
            held = set(held_columns(connection, table))
        for column in table.columns:
            if column.name not in held:
                dialect = self._engine.dialect
                words = CreateColumn(column).compile(dialect=dialect)
                name = dialect.identifier_preparer.format_table(table)
                with self._engine.begin() as connection:
                    connection.exec_driver_sql(f"ALTER TABLE {name} ADD COLUMN {words}")

    def _add_target_row(self, keys: Sequence[str], schema: pa.Schema) -> None:
        """Insert the table's row in `databus_targets`, unless it exists."""
        row = {
            "target": self.table,
            "changes": 0,
            "keys": json.dumps(keys),
            "columns": text_of(schema),
        }
        try:
            with self._engine.begin() as connection:
                if self._target_row(connection) is None:
                    connection.execute(self._targets.insert(), row)
        except IntegrityError:
            # Another writer has inserted it in the meantime.
            return

    def _lock(
        self, connection: Connection, schema: pa.Schema | None, keys: Sequence[str] | None = None
    ) -> None:
        """Lock out other writers of the table until the transaction ends; note columns and key."""
        targets = self._targets
        named = {} if schema is None else {"columns": text_of(schema)}
        named |= {} if keys is None else {"keys": json.dumps(keys)}
        connection.execute(
            targets.update()
            .where(targets.c.target == self.table)
            .values(changes=targets.c.changes + 1, **named)
        )

    def _target_row(self, connection: Connection, name: str | None = None) -> sa.Row[Any] | None:
        """Return a table's row in `databus_targets`; None if the table was dropped."""
        stored = self._stored_row(connection, name or self.table)
        # Read before the check, as the row is inserted after the table is created.
        exists = stored is not None and sa.inspect(connection).has_table(name or self.table)
        return stored if exists else None

    def _stored_row(
        self, connection: Connection, name: str, *, is_locked: bool = False
    ) -> sa.Row[Any] | None:
        targets = self._targets
        if not sa.inspect(connection).has_table(targets.name):
            return None
        query = targets.select().where(targets.c.target == name)
        return connection.execute(query.with_for_update() if is_locked else query).one_or_none()

    def _forget_dropped(self) -> None:
        """Delete the bookkeeping of a table of this name that has been dropped."""
        with self._engine.begin() as connection:
            is_dropped = (
                self._stored_row(connection, self.table) is not None
                and self._target_row(connection) is None
            )
            if is_dropped:
                for table in (self._entries, self._targets):
                    connection.execute(table.delete().where(table.c.target == self.table))

    def _read_commit_log(self) -> CommitLog:
        self._settle()
        with self._engine.connect() as connection:
            if self._target_row(connection) is None:
                return CommitLog()
            return self._commit_log(connection)

    def _commit_log(self, connection: Connection) -> CommitLog:
        entries = self._entries
        mine = sa.select(entries.c.name, entries.c.value).where(entries.c.target == self.table)
        return CommitLog({row.name: row.value for row in connection.execute(mine)})

    def _write(self, connection: Connection, changed: Mapping[str, int]) -> None:
        """Write entries of the commit log."""
        rows = [(self.table, name, value) for name, value in changed.items()]
        names = self._entries.columns.keys()
        Statements(connection, self._entries).upsert(names, names[:2], rows)

    def _inspected_keys(self) -> list[str]:
        try:
            return sa.inspect(self._engine).get_pk_constraint(self.table)["constrained_columns"]
        except NoSuchTableError:
            return []

    def _table_of(self, schema: pa.Schema, keys: Sequence[str] | None = None) -> sa.Table:
        return table_of(
            self.table, schema, keys or self.keys, self._engine.dialect, self._key_length
        )

    def _limits(self, schema: pa.Schema) -> list[tuple[int | None, int | None]]:
        """Return the key ranges (from, to] in which to read the table; None is an open end."""
        keys = [key for key in self.keys if key != SOURCE]
        if len(keys) != 1 or not pa.types.is_integer(schema.field(keys[0]).type):
            return [(None, None)]
        column = self._table_of(schema).c[keys[0]]
        with self._engine.connect() as connection:
            ends = sa.select(sa.func.min(column), sa.func.max(column))
            low, high = connection.execute(ends).one()
        if low is None or self._partitions < 2:
            return [(None, None)]
        step = (high - low) // self._partitions + 1
        cuts = [low + step * n for n in range(1, self._partitions)]
        return list(zip([None, *cuts], [*cuts, None], strict=True))


def _mark(token: int) -> str:
    return f"altered@{token}"
