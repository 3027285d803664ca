"""Installs tables and triggers in a watched database, and follows its schema.

    _databus_log          one row per change, written by the triggers, in commit order
    _databus_candidate    rows that a REPLACE may be about to remove
    _databus_generation   the columns behind the positions of the log
    _databus_table        the watched tables and their current generation
    _databus_layout       the version of all this, and the database's identity

A generation is one form of one table together with the triggers made for it.
No window is closed before `bring_up_to_date` has run for the schema version under
which it was read, so that every trigger is known to have been in place
while the rows of a window were written.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

from databus.relay.sources.sqlite.catalog import (
    SqliteTable,
    UniqueIndex,
    quote,
    read_table,
    table_names,
)
from databus.relay.sources.sqlite.rows_at_rest import log_alteration
from databus.relay.sources.sqlite.triggers import (
    CANDIDATE,
    LOG,
    NOW,
    trigger_names,
    trigger_texts,
    values,
)

LAYOUT_VERSION = 1
OWN_TABLES = (
    LOG,
    CANDIDATE,
    "_databus_generation",
    "_databus_table",
    "_databus_layout",
)
# id, generation, op, at and both images of a row; SQLITE_MAX_COLUMN is 2000.
_MOST_COLUMNS = 990

# AUTOINCREMENT: an id is never used again, as an SCN stands for one row. The log has no types and
# no constraints, so a trigger cannot fail in the application's statement.
_TABLES = (
    f"CREATE TABLE {LOG}(id INTEGER PRIMARY KEY AUTOINCREMENT, generation, op, at)",
    f"CREATE TABLE {CANDIDATE}(id INTEGER PRIMARY KEY, generation)",
    "CREATE TABLE _databus_generation(generation INTEGER PRIMARY KEY AUTOINCREMENT,"
    " name TEXT NOT NULL, columns TEXT NOT NULL, uniques TEXT NOT NULL, triggers TEXT NOT NULL,"
    " at INTEGER NOT NULL)",
    "CREATE TABLE _databus_table(name TEXT PRIMARY KEY COLLATE NOCASE, generation INTEGER NOT NULL)"
    " WITHOUT ROWID",
    "CREATE TABLE _databus_layout(version INTEGER NOT NULL, identity TEXT NOT NULL)",
    f"INSERT INTO _databus_layout VALUES ({LAYOUT_VERSION}, lower(hex(randomblob(16))))",
)
_OURS = "SELECT name FROM main.sqlite_master WHERE name = '_databus_layout'"
_RECORDED = (
    "SELECT generation, columns, uniques, triggers FROM _databus_table"
    " JOIN _databus_generation USING (generation) WHERE _databus_table.name = ?"
)
_TRIGGER = (
    "SELECT 1 FROM main.sqlite_master"
    " WHERE type = 'trigger' AND name = ? AND tbl_name = ? COLLATE NOCASE"
)
_ADD_GENERATION = (
    "INSERT INTO _databus_generation(name, columns, uniques, triggers, at)"
    f" VALUES (?, ?, ?, '', {NOW})"
)
_SET_TRIGGERS = "UPDATE _databus_generation SET triggers = ? WHERE generation = ?"
_SET_TABLE = (
    "INSERT INTO _databus_table(name, generation) VALUES (?, ?)"
    " ON CONFLICT(name) DO UPDATE SET generation = excluded.generation"
)
_OPEN_ROWS_OF = f"SELECT 1 FROM {LOG} WHERE id > ? AND generation = ? AND op <> 'd' LIMIT 1"


class CaptureGapError(Exception):
    """Something may have been changed unseen; the text says what to do."""


class State(Enum):
    """Whether a watched table and its triggers fit each other."""

    NEW = "never watched, or given up by the user"
    INTACT = "as installed"
    CHANGED = "the table was altered, and its triggers were in place all the time"


@dataclass(frozen=True, slots=True)
class Generation:
    """The recorded current generation of a table."""

    number: int
    columns: str
    uniques: frozenset[tuple[str, tuple[int, ...]]]
    triggers: dict[str, str]


@dataclass(frozen=True, slots=True)
class Finding:
    """A table's current form, its recorded generation, and whether the two fit."""

    table: SqliteTable
    state: State
    recorded: Generation | None


def is_installed(connection: sqlite3.Connection) -> bool:
    """Return whether the database has a change log; raises CaptureGapError for another layout."""
    if connection.execute(_OURS).fetchone() is None:
        return False
    (version,) = connection.execute("SELECT max(version) FROM _databus_layout").fetchone()
    if version != LAYOUT_VERSION:
        raise CaptureGapError(
            f"the change log has layout {version} and this databus knows {LAYOUT_VERSION}; "
            "use the version that made it"
        )
    return True


def identity(connection: sqlite3.Connection) -> str:
    """Return the random identity that the database got with its change log."""
    (name,) = connection.execute("SELECT identity FROM _databus_layout").fetchone()
    return str(name)


def create_tables(connection: sqlite3.Connection) -> None:
    """Create the change log, inside the caller's transaction."""
    for statement in _TABLES:
        connection.execute(statement)


def inspect(connection: sqlite3.Connection, name: str, has_triggers: bool = True) -> Finding:
    """Compare a table with its recorded generation; only reads.

    Raises CaptureGapError if the table does not exist, cannot be captured, or lost a trigger.
    With `has_triggers` false, triggers are not checked.
    """
    try:
        table = read_table(connection, name)
    except ValueError as error:
        raise CaptureGapError(str(error)) from None
    recorded = _recorded(connection, name)
    if table is None:
        raise CaptureGapError(_missing(connection, name, recorded))
    if len(table.columns) > _MOST_COLUMNS:
        raise CaptureGapError(f"{name} has more than {_MOST_COLUMNS} columns")
    if recorded is None:
        return Finding(table, State.NEW, None)
    for trigger in recorded.triggers if has_triggers else ():
        if connection.execute(_TRIGGER, (trigger, table.name)).fetchone() is None:
            raise CaptureGapError(
                f"table {name} has lost the trigger {trigger} (it was dropped, or the table was "
                "dropped or renamed and made again): changes may have been made unseen. "
                + give_up(name)
            )
    is_same = (
        recorded.columns == table.columns_json()
        and recorded.uniques == _signatures(table.unique_indexes)
        and recorded.triggers == trigger_texts(table, recorded.number)
    )
    return Finding(table, State.INTACT if is_same else State.CHANGED, recorded)


def give_up(name: str) -> str:
    """Return what to do about a table whose history has a gap."""
    literal = name.replace("'", "''")
    return (
        "Once consumers will be brought up to date from the table itself, run "
        f"`DELETE FROM _databus_table WHERE name = '{literal}'` in the database and restart "
        "the source: capture of this table starts over"
    )


def inspect_all(connection: sqlite3.Connection, names: Iterable[str]) -> list[Finding]:
    """Inspect the tables called `names`, and those that other relays watch.

    This relay closes windows with the rows of those as well, so it maintains their
    triggers too; but if one has a gap, the other relay must stop.
    """
    findings = [inspect(connection, name) for name in names]
    own = {finding.table.name.lower() for finding in findings}
    for (name,) in connection.execute("SELECT name FROM _databus_table").fetchall():
        if name.lower() not in own:
            with suppress(CaptureGapError):
                findings.append(inspect(connection, name))
    return findings


def bring_up_to_date(connection: sqlite3.Connection, names: Iterable[str], closed_id: int) -> None:
    """Install the triggers that tables need, inside the caller's transaction.

    `closed_id` is the last log id in a closed window. With an older one, more rows than
    necessary are logged again.
    """
    for finding in inspect_all(connection, names):
        _renew(connection, finding, closed_id)


def _recorded(connection: sqlite3.Connection, name: str) -> Generation | None:
    row = connection.execute(_RECORDED, (name,)).fetchone()
    if row is None:
        return None
    number, columns, uniques, triggers = row
    signatures = frozenset((index, tuple(cids)) for index, cids in json.loads(uniques))
    return Generation(number, columns, signatures, json.loads(triggers))


def _missing(connection: sqlite3.Connection, name: str, recorded: Generation | None) -> str:
    if recorded is not None:
        return (
            f"table {name} is gone (dropped or renamed). Name it as it was, or take it out of "
            "`sources` and, if it comes back: " + give_up(name)
        )
    there = ", ".join(table_names(connection)) or "none"
    return f"there is no table {name}; tables: {there}. Create it, or correct `sources`"


def _signatures(indexes: tuple[UniqueIndex, ...]) -> frozenset[tuple[str, tuple[int, ...]]]:
    return frozenset((index.name, index.cids) for index in indexes)


def _renew(connection: sqlite3.Connection, finding: Finding, closed_id: int) -> None:
    if finding.state is State.INTACT:
        return
    table, recorded = finding.table, finding.recorded
    if recorded is not None:
        _refuse_unseen_replaces(connection, table, recorded, closed_id)
    number = install_triggers(connection, table)
    if recorded is not None:
        log_alteration(connection, table, number, recorded.columns)
        log_current_images(connection, table, number, recorded, closed_id)


def _refuse_unseen_replaces(
    connection: sqlite3.Connection, table: SqliteTable, recorded: Generation, closed_id: int
) -> None:
    """Raise CaptureGapError if an index unknown to the triggers may have replaced rows."""
    unknown = _signatures(table.unique_indexes) - recorded.uniques
    written = connection.execute(_OPEN_ROWS_OF, (closed_id, recorded.number)).fetchone()
    if unknown and written:
        indexes = ", ".join(sorted(name for name, _ in unknown))
        raise CaptureGapError(
            f"table {table.name} got the unique index {indexes} and was written to before its "
            "triggers knew: a REPLACE may have removed rows unseen. If no REPLACE was used nothing "
            "is lost; otherwise consumers need the table itself. (`python -m "
            "databus.relay.sources.sqlite.ddl` makes such a change without a gap.) "
            + give_up(table.name)
        )


def install_triggers(connection: sqlite3.Connection, table: SqliteTable) -> int:
    """Make a new generation of a table, with its triggers; return its number."""
    uniques = json.dumps(sorted(_signatures(table.unique_indexes)))
    cursor = connection.execute(_ADD_GENERATION, (table.name, table.columns_json(), uniques))
    number = cursor.lastrowid
    assert number is not None
    _widen(connection, LOG, 2 * len(table.columns))
    _widen(connection, CANDIDATE, len(table.columns))
    # In the caller's transaction, so that no change happens without a trigger.
    drop_triggers(connection, table.name)
    texts = trigger_texts(table, number)
    for text in texts.values():
        connection.execute(text)
    connection.execute(_SET_TRIGGERS, (json.dumps(texts), number))
    connection.execute(_SET_TABLE, (table.name, number))
    return number


def drop_triggers(connection: sqlite3.Connection, name: str) -> None:
    """Drop a table's capture triggers."""
    for trigger in trigger_names(name).values():
        connection.execute(f"DROP TRIGGER IF EXISTS main.{quote(trigger)}")


def _widen(connection: sqlite3.Connection, table: str, count: int) -> None:
    # Only widened: rows of other tables and generations keep their positions.
    there = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
    for place in range(count):
        if f"v{place}" not in there:
            connection.execute(f"ALTER TABLE {table} ADD COLUMN v{place}")


def log_current_images(
    connection: sqlite3.Connection,
    table: SqliteTable,
    number: int,
    recorded: Generation,
    closed_id: int,
) -> None:
    """Log again, in full, the rows that the old triggers logged and that no window has yet.

    Some of them may have been written after the table changed, and then their log rows lack the
    new columns. ALTER TABLE can neither reorder columns nor change the key, so the old positions
    are the first of the new ones.
    """
    old = json.loads(recorded.columns)
    open_rows = f"FROM {LOG} WHERE id > {closed_id} AND generation = {recorded.number}"
    row = [f"t.{quote(column.name)}" for column in table.columns]
    logged = [f"l.v{place}" for place in range(len(old))]
    if table.key:
        keyed = sorted((c[3], place) for place, c in enumerate(old) if c[3] is not None)
        places = [place for _, place in keyed]
        is_same = " AND ".join(
            f"{row[now]} IS {logged[then]}" for now, then in zip(table.key, places, strict=True)
        )
        op, distinct = "r", ", ".join(f"v{place}" for place in places)
    else:
        is_same = " AND ".join(f"{row[place]} IS {then}" for place, then in enumerate(logged))
        op, distinct = "i", values(len(old))
        # The whole row is the key, and the key has changed: delete the old one.
        connection.execute(
            f"INSERT INTO {LOG}(generation, op, at, {values(len(old))})"
            f" SELECT DISTINCT {recorded.number}, 'd', {NOW}, {', '.join(logged)}"
            f" FROM (SELECT DISTINCT {distinct} {open_rows} AND op <> 'd') AS l"
            f" CROSS JOIN {quote(table.name)} AS t ON {is_same}"
        )
    connection.execute(
        f"INSERT INTO {LOG}(generation, op, at, {values(len(row))})"
        f" SELECT {number}, '{op}', {NOW}, {', '.join(row)}"
        f" FROM (SELECT DISTINCT {distinct} {open_rows} AND op <> 'd') AS l"
        f" CROSS JOIN {quote(table.name)} AS t ON {is_same}"
    )
