"""What consumers that keep rows by key must know of the keys of tables. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from databus.schemas.table import Table

NO_KEY = "no primary key: rows that are equal are one row for consumers that keep rows by key"
NULL_KEY = (
    "a primary key that may be NULL: rows with NULL in the same columns of it are one row for "
    "consumers that keep rows by key, also if other columns differ"
)


def key_note(table: Table) -> str:
    """Return what is to be known of a table's key, or ""."""
    if not table.key_columns:
        return NO_KEY
    # Only in SQLite: MySQL declares the columns of a key NOT NULL, whatever its log says.
    is_loose = table.dialect == "sqlite" and any(column.nullable for column in table.key_columns)
    return NULL_KEY if is_loose else ""


def key_warnings(tables: Iterable[Table]) -> Iterator[str]:
    """Yield a warning for each table whose rows a key does not tell apart."""
    for table in tables:
        if note := key_note(table):
            has_none = note == NO_KEY
            remedy = "ALTER TABLE … ADD PRIMARY KEY" if has_none else "declare its columns NOT NULL"
            yield f"{table.source} has {note}; {remedy}"
