"""What a database's error means: a value is at fault, or the database is away or busy."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    InternalError,
    OperationalError,
)

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


# Of MySQL and MariaDB: too many connections, shutting down, logins, disk full, locks, read-only,
# a table that another one alters at this moment.
_AWAY_CODES = frozenset(
    {1020, 1021, 1030, 1037, 1040, 1041, 1044, 1045, 1053, 1077, 1114, 1129, 1152, 1158, 1159, 1160}
    | {1161, 1180, 1184, 1203, 1205, 1206, 1213, 1226, 1290, 1412, 1615, 1698, 1792, 1836, 1927}
    | {3572, 4031}
    | set(range(2000, 3000))
)
# … which its driver does not count among errors of data: a CHECK, no default, too large a packet.
_REFUSED_CODES = frozenset({1118, 1153, 1265, 1292, 1364, 1411, 1644, 1690, 3819, 4025})
_SQLITE_AWAY = re.compile(r"locked|busy|disk|unable to open|readonly", re.IGNORECASE)


def is_refusal(error: DBAPIError) -> bool:
    """Return whether a value is at fault: the same again does not help."""
    return isinstance(error, REFUSALS) or _code(error) in _REFUSED_CODES


def is_away(error: DBAPIError) -> bool:
    """Return whether the database cannot be reached, or is busy: the same again may help."""
    if error.connection_invalidated or isinstance(error, InterfaceError):
        return True
    if not isinstance(error, OperationalError | InternalError):
        return False
    if (code := _code(error)) is not None:
        return code in _AWAY_CODES
    if type(error.orig).__module__.startswith("sqlite3"):
        return _SQLITE_AWAY.search(str(error.orig)) is not None
    return True


def _code(error: DBAPIError) -> int | None:
    """Return the number of an error of MySQL; other databases have none."""
    arguments = getattr(error.orig, "args", ())
    return arguments[0] if arguments and isinstance(arguments[0], int) else None
