"""Reads a table's columns, key and unique indexes from an SQLite database.

Only reads. The triggers' texts depend on nothing but the `SqliteTable`, so equal tables have
equal triggers.
"""

from __future__ import annotations

import json
import re
import sqlite3
from dataclasses import dataclass

from databus.schemas.table import Column, Table

_FIND = "SELECT name, type FROM pragma_table_list WHERE schema = 'main' AND name = ? COLLATE NOCASE"
_WITHOUT_ROWID = "SELECT wr FROM pragma_table_list WHERE schema = 'main' AND name = ?"
_COLUMNS = (
    "SELECT name, type, \"notnull\", dflt_value, pk, hidden FROM pragma_table_xinfo(?, 'main')"
    " ORDER BY cid"
)
_UNIQUE = "SELECT name, origin FROM pragma_index_list(?, 'main') WHERE \"unique\" ORDER BY name"
_TERMS = "SELECT cid, coll FROM pragma_index_xinfo(?, 'main') WHERE key ORDER BY seqno"
_INDEX_SQL = "SELECT sql FROM main.sqlite_master WHERE type = 'index' AND name = ?"
_NAMES = (
    "SELECT name FROM main.sqlite_master WHERE type = 'table'"
    r" AND name NOT LIKE 'sqlite\_%' ESCAPE '\' AND name NOT LIKE '\_databus\_%' ESCAPE '\'"
    " ORDER BY name"
)
_TOKEN = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`|\[[^\]]*\]|--[^\n]*|/\*.*?\*/|.""", re.DOTALL
)


def table_of(source: str) -> str:
    """Return a source's table: its name without the part before the first dot."""
    return source.partition(".")[2] or source


@dataclass(frozen=True, slots=True)
class SqliteColumn:
    """One column, generated ones included."""

    name: str
    sql_type: str
    nullable: bool
    key_position: int | None
    default: str | None = None  # an SQL expression, of a NOT NULL column only
    is_generated: bool = False
    collation: str = "BINARY"  # of a key column, in the key's index


@dataclass(frozen=True, slots=True)
class UniqueIndex:
    """One unique constraint: its terms as (SQL, collation) and its WHERE, if any.

    `cids` are the terms' column numbers, -2 for an expression. Together with the name they
    identify the constraint across the renaming of a column.
    """

    name: str
    terms: tuple[tuple[str, str], ...]
    cids: tuple[int, ...]
    where: str = ""


@dataclass(frozen=True, slots=True)
class SqliteTable:
    """The current form of one table.

    `row_id` is a name of the rowid, "" without one; `has_integer_key` tells that the rowid is
    the primary key itself.
    """

    name: str
    columns: tuple[SqliteColumn, ...]
    row_id: str
    has_integer_key: bool
    unique_indexes: tuple[UniqueIndex, ...]

    @property
    def key(self) -> tuple[int, ...]:
        """The numbers of the primary key's columns, in key order."""
        keyed = [(c.key_position, i) for i, c in enumerate(self.columns)]
        return tuple(i for place, i in sorted((p, i) for p, i in keyed if p is not None))

    def columns_json(self) -> str:
        """Return the columns as JSON, which is stored with a generation."""
        return json.dumps([(c.name, c.sql_type, c.nullable, c.key_position) for c in self.columns])


def table_from_json(source: str, columns: str) -> Table:
    """Return the table of a text that `SqliteTable.columns_json` returned."""
    made = [
        Column(name, sql_type, place, nullable, key_position)
        for place, (name, sql_type, nullable, key_position) in enumerate(json.loads(columns))
    ]
    return Table(source, tuple(made), dialect="sqlite")


def quote(name: str) -> str:
    """Quote an identifier."""
    return '"' + name.replace('"', '""') + '"'


def table_names(connection: sqlite3.Connection) -> list[str]:
    """Return the application's tables."""
    return [name for (name,) in connection.execute(_NAMES)]


def read_table(connection: sqlite3.Connection, name: str) -> SqliteTable | None:
    """Read one table of the main database; None when there is no such table.

    Raises ValueError with a message for the user if the table cannot be captured without loss.
    """
    found = connection.execute(_FIND, (name,)).fetchone()
    if found is None:
        return None
    name, kind = found
    if kind != "table":
        raise ValueError(f"{name} is a {kind}, and only tables can be captured")
    (without_rowid,) = connection.execute(_WITHOUT_ROWID, (name,)).fetchone()
    rows = connection.execute(_COLUMNS, (name,)).fetchall()
    indexes = connection.execute(_UNIQUE, (name,)).fetchall()
    keyed = [row for row in rows if row[4]]
    # An INTEGER PRIMARY KEY is the rowid itself, and then there is no index for it.
    has_integer_key = (
        len(keyed) == 1 and not without_rowid and not any(origin == "pk" for _, origin in indexes)
    )
    key_index = next((index for index, origin in indexes if origin == "pk"), None)
    collations = dict(connection.execute(_TERMS, (key_index,)).fetchall()) if key_index else {}
    columns = tuple(
        _column(row, bool(without_rowid or has_integer_key), collations.get(place, "BINARY"))
        for place, row in enumerate(rows)
    )
    row_id = "" if without_rowid else _row_id(columns, has_integer_key)
    uniques = tuple(
        _unique(connection, index, columns)
        for index, origin in indexes
        if origin != "pk" or _is_loose(columns)
    )
    table = SqliteTable(name, columns, row_id, has_integer_key, uniques)
    _refuse_what_would_lose_rows(table)
    return table


def _column(
    row: tuple[str, str, int, str | None, int, int], strict: bool, coll: str
) -> SqliteColumn:
    name, sql_type, not_null, default, pk, hidden = row
    return SqliteColumn(
        name,
        (sql_type or "").lower(),
        nullable=not (not_null or (pk and strict)),
        key_position=pk - 1 if pk else None,
        default=default if not_null else None,
        is_generated=hidden in (2, 3),
        collation=coll,
    )


def _row_id(columns: tuple[SqliteColumn, ...], has_integer_key: bool) -> str:
    if has_integer_key:
        return next(c.name for c in columns if c.key_position is not None)
    taken = {c.name.lower() for c in columns}
    return next((name for name in ("rowid", "_rowid_", "oid") if name not in taken), "")


def _is_loose(columns: tuple[SqliteColumn, ...]) -> bool:
    """Return whether keys that are equal in SQLite may differ for a consumer.

    Such as 'A' and 'a' under NOCASE, or 1 and 1.0 in a column without affinity.
    """
    keys = [c for c in columns if c.key_position is not None]
    return any(c.collation != "BINARY" or _has_no_affinity(c.sql_type) for c in keys)


def _has_no_affinity(sql_type: str) -> bool:
    named = re.search("int|char|clob|text", sql_type)
    return not named and (not sql_type or "blob" in sql_type or sql_type == "any")


def _unique(
    connection: sqlite3.Connection, name: str, columns: tuple[SqliteColumn, ...]
) -> UniqueIndex:
    terms = connection.execute(_TERMS, (name,)).fetchall()
    (sql,) = connection.execute(_INDEX_SQL, (name,)).fetchone() or (None,)
    texts, where = split_index_sql(sql) if sql else ([], "")
    named = tuple(
        (quote(columns[cid].name) if cid >= 0 else texts[place], coll)
        for place, (cid, coll) in enumerate(terms)
    )
    return UniqueIndex(name, named, tuple(cid for cid, _ in terms), where)


def split_index_sql(sql: str) -> tuple[list[str], str]:
    """Return the indexed terms and the WHERE condition of a CREATE INDEX text."""
    terms, where, depth, is_past = [""], "", 0, False
    for token in _TOKEN.findall(sql):
        if token.startswith(("--", "/*")):
            continue
        depth -= token == ")"
        is_past = is_past or (depth == 0 and token == ")")
        if is_past:
            where += token
        elif depth == 1 and token == ",":
            terms.append("")
        elif depth > 0:
            terms[-1] += token
        depth += token == "("
    condition = re.sub(r"^\)\s*(WHERE\b)?\s*", "", where, flags=re.IGNORECASE).strip()
    return [re.sub(r"\s+(ASC|DESC)\s*$", "", t, flags=re.I).strip() for t in terms], condition


def _refuse_what_would_lose_rows(table: SqliteTable) -> None:
    if not table.row_id and not table.key:
        raise ValueError(
            f"{table.name} has no primary key, and columns of its own are called rowid, _rowid_ "
            "and oid, so its rows cannot be told apart; give it a primary key"
        )
    # In REPLACE, a NULL for a NOT NULL column becomes the default after the BEFORE triggers ran.
    # Until then a generated column is computed from NULL, so the trigger could not find the row
    # that is about to be replaced.
    generated = {i for i, c in enumerate(table.columns) if c.is_generated}
    if any(c.default for c in table.columns):
        for index in table.unique_indexes:
            if generated.intersection(index.cids):
                raise ValueError(
                    f"{table.name} has NOT NULL columns with a default and the unique index "
                    f"{index.name} on a generated column: rows removed by REPLACE could be missed; "
                    "drop the index or make the generated column an ordinary one"
                )
