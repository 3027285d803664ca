"""What an ALTER TABLE of SQLite did to the rows that are there, none of which it logs.

SQLite changes tables in few ways: it adds a column behind the others, gives one
another name where it stands, or takes one out; the last not while a trigger
names it, so only `ddl` can do that. So from the columns before and after one
can tell what happened. What it did is put into the change log, as a row of its
own, in the transaction that renews the triggers: its number is the statement's SCN.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any

from databus.relay.sources.source import TableAltered
from databus.relay.sources.sqlite.catalog import SqliteTable, table_from_json
from databus.relay.sources.sqlite.triggers import LOG, NOW
from databus.schemas.table import Table
from databus.schemas.table_change import WHOLE_TABLE, TableChange
from databus.schemas.table_schema import sqlite_affinity_type

ALTERED = "n"  # the op of such a row
_ADD = f"INSERT INTO {LOG}(generation, op, at, v0) VALUES (?, '{ALTERED}', {NOW}, ?)"
_DEFAULT = "SELECT dflt_value FROM pragma_table_xinfo(?, 'main') WHERE name = ?"
_UNKNOWN = "its columns were changed in a way that ALTER TABLE has not"

_PYTHON_TYPES = {"long": int, "string": str, "double": float}

_Column = Sequence[Any]  # name, type, whether it may be null, place in the key


def log_alteration(
    connection: sqlite3.Connection, table: SqliteTable, number: int, before: str
) -> None:
    """Log how a table's rows have changed, if its columns differ from `before`."""
    if before == table.columns_json():
        return
    entry = {"before": before, **_describe(connection, table, json.loads(before))}
    connection.execute(_ADD, (number, json.dumps(entry)))


def read_alteration(source: str, table: Table, text: str) -> TableAltered:
    """Return what `log_alteration` wrote."""
    entry = json.loads(text)
    change = TableChange(
        -1,
        "",
        renamed=entry.get("renamed", {}),
        added=entry.get("added", {}),
        reload=entry.get("reload", {}),
    )
    return TableAltered(table, table_from_json(source, entry["before"]), change)


def _describe(
    connection: sqlite3.Connection, table: SqliteTable, old: list[_Column]
) -> dict[str, dict[str, Any]]:
    new: list[_Column] = json.loads(table.columns_json())
    if len(new) < len(old):
        left = [column for column in old if column[0] in {name for name, *_ in new}]
        is_dropped = [c[:2] for c in left] == [c[:2] for c in new] and table.key
        return {} if is_dropped else {"reload": {WHOLE_TABLE: _UNKNOWN}}
    if not table.key:
        why = "it has no primary key, and rows are told apart by all their columns"
        return {"reload": {WHOLE_TABLE: why}}
    if [c[1:] for c in old] != [c[1:] for c in new[: len(old)]]:
        return {"reload": {WHOLE_TABLE: _UNKNOWN}}
    entry: dict[str, dict[str, Any]] = {"renamed": {}, "added": {}, "reload": {}}
    for before, after in zip(old, new, strict=False):
        if before[0] != after[0]:
            entry["renamed"][after[0]] = before[0]
    for column in table.columns[len(old) :]:
        if column.is_generated:
            entry["reload"][column.name] = "it is generated"
            continue
        value = _default(connection, table.name, column.name, column.sql_type)
        if isinstance(value, bytes) or not _fits(value, column.sql_type):
            entry["reload"][column.name] = f"its default is {value!r}"
        else:
            entry["added"][column.name] = value
    return entry


def _default(connection: sqlite3.Connection, table: str, column: str, sql_type: str) -> Any:
    """Return what every row has in an added column: its default, as the column takes it."""
    (text,) = connection.execute(_DEFAULT, (table, column)).fetchone()
    if text is None:
        return None
    connection.execute(f"CREATE TEMP TABLE _databus_default (c {sql_type} DEFAULT ({text}))")
    try:
        connection.execute("INSERT INTO temp._databus_default DEFAULT VALUES")
        return connection.execute("SELECT c FROM temp._databus_default").fetchone()[0]
    finally:
        connection.execute("DROP TABLE temp._databus_default")


def _fits(value: Any, sql_type: str) -> bool:
    """Whether a value is of the type that the column has here."""
    avro_type = sqlite_affinity_type(sql_type.upper())
    if value is None or not isinstance(avro_type, str):
        return True
    return type(value) is _PYTHON_TYPES.get(avro_type)
