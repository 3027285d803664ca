"""Statements with the parameters `$1`, `$2`, … that PostgreSQL itself has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.engine import Connection


@contextmanager
def numbered(connection: Connection) -> Iterator[bool]:
    """Let the driver take statements as they are, and yield whether it does.

    psycopg makes such a statement of one with `%s`, which for a thousand parameters takes longer
    than all the rest.
    """
    driver = connection.connection.dbapi_connection
    cursors = getattr(connection.dialect.dbapi, "RawCursor", None)
    if driver is None or cursors is None:
        yield False
        return
    before, driver.cursor_factory = driver.cursor_factory, cursors
    try:
        yield True
    finally:
        driver.cursor_factory = before


def with_numbers(text: str, place: str) -> str:
    """Return a statement with a number at each place of a parameter."""
    first, *others = text.split(place)
    return first + "".join(f"${number}{part}" for number, part in enumerate(others, 1))
