"""Queries that the driver does not prepare."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.engine import Connection


@contextmanager
def unprepared(connection: Connection) -> Iterator[None]:
    """Let the driver prepare nothing: for queries whose columns may get other types.

    psycopg prepares what it runs often, and PostgreSQL refuses a prepared query once its table was
    altered so that the result has other columns or types.
    """
    driver = connection.connection.dbapi_connection
    threshold = getattr(driver, "prepare_threshold", None)
    if driver is None or threshold is None:
        yield
        return
    driver.prepare_threshold = None
    try:
        yield
    finally:
        driver.prepare_threshold = threshold
