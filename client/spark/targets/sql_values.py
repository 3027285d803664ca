"""Values that a database refuses: found before the write, or named after the refusal.

A retry does not help against a value that does not fit, or a constraint of the
table. Such a refusal becomes a RowError that names the row and says what to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from databus.client.spark.targets.changes import DELETE, SCN, Changes
from databus.client.sql.refusals import guilty_column, is_of_constraint, said
from databus.schemas.errors import RowError

_REMEDY = (
    "Give the row another value at the source, then run databus spark load … --again and start "
    "with a new checkpoint, as the old one would bring this batch again; or choose a target "
    "that can store the value"
)
# A batch is not written in the order of the changes, so rows that are valid in the
# source may break a constraint for a moment.
_CONSTRAINT = (
    "Take that constraint from the target's table: within a batch only the key is sure to hold. "
    "The next start goes on from here, with the checkpoint there is"
)


def storable(changes: Changes, dialect: sa.Dialect, uri: str) -> Changes:
    """Return changes without deletes of keys that the database cannot store.

    Raises RowError for a row to write whose text has a NUL, if the database is
    PostgreSQL.
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
        # The table cannot have a row of such a key, so its delete is left out.
        if name in changes.keys:
            changes = replace(changes, rows=rows.filter(pc.invert(has_nul)))
    return changes


def refused(
    uri: str,
    column: str,
    row: Mapping[str, Any],
    keys: Sequence[str],
    problem: str,
    remedy: str = _REMEDY,
) -> RowError:
    """Return the error for a value that a target cannot store."""
    key = ", ".join(f"{name} = {row[name]!r}" for name in keys)
    return RowError(uri, column, f"row {key} of SCN {row[SCN]}: {problem}. {remedy}")


def refusal(
    uri: str,
    names: Sequence[str],
    row: Mapping[str, Any],
    keys: Sequence[str],
    error: DBAPIError,
) -> RowError:
    """Return the error for a row that a database refused when it wrote the columns `names`."""
    problem = said(error)
    remedy = _CONSTRAINT if is_of_constraint(error) else _REMEDY
    return refused(uri, guilty_column(names, problem), row, keys, problem, remedy)


def mark_refused(uri: str, scn: int, error: DBAPIError) -> RowError:
    """Return the error for a truncate or an end of a snapshot that a database refused."""
    return RowError(uri, "?", f"rows that are gone at SCN {scn}: {said(error)}. {_CONSTRAINT}")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
