"""What a database's error means: a value is at fault, or the database is away or busy."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from sqlalchemy.engine import Connection
from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    InternalError,
    OperationalError,
    TimeoutError as PoolTimeout,
)

from databus.client.sql.statements import SqlRow


def first_refused(
    connection: Connection, write: Callable[[Sequence[SqlRow]], object], rows: Sequence[SqlRow]
) -> tuple[int, DBAPIError | None]:
    """Return the index of the first row that is refused after the rows before it, and the refusal.

    A binary search that always writes all rows before, as two rows may be wrong only
    together. None = alone, after them, it is not refused.
    """
    first, end = 0, len(rows)
    while end - first > 1:
        middle = (first + end) // 2
        if _refused(connection, write, [rows[:middle]]):
            end = middle
        else:
            first = middle
    # In a statement of its own: the database's message counts no other rows.
    return first, _refused(connection, write, [rows[:first], rows[first : first + 1]])


def _refused(
    connection: Connection,
    write: Callable[[Sequence[SqlRow]], object],
    parts: Sequence[Sequence[SqlRow]],
) -> DBAPIError | None:
    """Write rows and take them back; return the refusal, if there is one."""
    savepoint = connection.begin_nested()
    try:
        for part in parts:
            write(part)
    except DBAPIError as error:
        if not is_refusal(error):
            raise
        return error
    finally:
        savepoint.rollback()
    return None


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
# … which its driver does not count among errors of data: too large a packet, numbers, dates.
_REFUSED_CODES = frozenset({1118, 1153, 1265, 1292, 1411, 1644, 1690})
# … of constraints: no default, a CHECK.
_CONSTRAINT_CODES = frozenset({1364, 3819, 4025})
_SQLITE_AWAY = re.compile(r"locked|busy|disk|unable to open|readonly", re.IGNORECASE)


def is_refusal(error: DBAPIError) -> bool:
    """Return whether a value is at fault: the same again does not help."""
    is_of_value = isinstance(error, DataError) or _code(error) in _REFUSED_CODES
    return is_of_value or is_of_constraint(error)


def is_of_constraint(error: DBAPIError) -> bool:
    """Return whether a table's constraint refuses a value."""
    return isinstance(error, IntegrityError) or _code(error) in _CONSTRAINT_CODES


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


def says_away(error: Exception) -> bool:
    """Return the same of any error of SQLAlchemy."""
    return is_away(error) if isinstance(error, DBAPIError) else isinstance(error, PoolTimeout)


def _code(error: DBAPIError) -> int | None:
    """Return the number of an error of MySQL; other databases have none."""
    arguments = getattr(error.orig, "args", ())
    return arguments[0] if arguments and isinstance(arguments[0], int) else None
