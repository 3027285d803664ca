"""Values that a database cannot have: found before they are written, or named when it says so.

A value of a row stays what it is however often it is tried, so these are no
failures to be waited out: each is a RowError, with the row and a way on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DataError

from databus.client.spark.targets.changes import DELETE, SCN, Changes
from databus.schemas.errors import RowError

_WAY_ON = (
    "Give the row another value at the source, then databus spark load … --again and a new "
    "checkpoint, for the one there is would bring this batch again; or take a target that can "
    "have the value"
)


def storable(changes: Changes, dialect: sa.Dialect, uri: str) -> Changes:
    """Return changes whose values a database can have, without deletes of keys that it cannot.

    Raises RowError for a row to be written that has a text with a NUL, where the
    database is PostgreSQL.
    """
    if dialect.name != "postgresql":
        return changes
    for name in changes.schema.names:
        rows = changes.rows
        if not _is_text(rows.schema.field(name).type):
            continue
        has_nul = pc.fill_null(pc.match_substring(rows[name], "\0"), False)
        if not pc.any(has_nul).as_py():
            continue
        is_written = pc.and_(has_nul, pc.invert(rows[DELETE]))
        if pc.any(is_written).as_py():
            row = rows.filter(is_written).slice(0, 1).to_pylist()[0]
            problem = "the text has a NUL (character 0), which PostgreSQL cannot store"
            raise refused(uri, name, row, changes.keys, problem)
        if name in changes.keys:
            changes = replace(changes, rows=rows.filter(pc.invert(has_nul)))
    return changes


def refused(
    uri: str, column: str, row: Mapping[str, Any], keys: Sequence[str], problem: str
) -> RowError:
    """Return the error of a value that a target cannot have."""
    key = ", ".join(f"{name} = {row[name]!r}" for name in keys)
    return RowError(uri, column, f"row {key} of SCN {row[SCN]}: {problem}. {_WAY_ON}")


def first_refused(
    connection: Connection, statement: sa.Executable, lines: Sequence[Mapping[str, Any]]
) -> int:
    """Return which of a statement's lines the database refuses, by halves."""
    first, end = 0, len(lines)
    while end - first > 1:
        middle = (first + end) // 2
        part = connection.begin_nested()
        try:
            connection.execute(statement, lines[first:middle])
        except DataError:
            end = middle
        else:
            first = middle
        finally:
            part.rollback()
    return first


def guilty_column(row: Mapping[str, Any], problem: str) -> str:
    """Return the column that a database's words name, or else a question mark."""
    named = [name for name in row if f"'{name}'" in problem or f'"{name}"' in problem]
    return named[0] if named else "?"


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
