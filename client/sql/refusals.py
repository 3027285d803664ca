"""What a database's error means: a value is at fault, or the database is away or busy."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError

# The errors that a value causes, and not the state of the database.
REFUSALS = (DataError, IntegrityError)


def first_refused(
    connection: Connection, statement: sa.Executable, lines: Sequence[Mapping[str, Any]]
) -> int:
    """Return the index of the first line that the database refuses after the lines before it.

    A binary search that always runs all lines before, as two lines may be wrong only
    together.
    """
    first, end = 0, len(lines)
    while end - first > 1:
        middle = (first + end) // 2
        part = connection.begin_nested()
        try:
            connection.execute(statement, lines[:middle])
        except REFUSALS:
            end = middle
        else:
            first = middle
        finally:
            part.rollback()
    return first


def guilty_column(names: Sequence[str], problem: str) -> str:
    """Return the column that a database's message names, or "?"."""
    named = (rf"""(['"]){re.escape(name)}\1|\.{re.escape(name)}(?=,|$)""" for name in names)
    found = (name for name, text in zip(names, named, strict=True) if re.search(text, problem))
    return next(found, "?")


def said(error: DBAPIError) -> str:
    """Return a database's message in one line."""
    return " ".join(str(error.orig).split())
