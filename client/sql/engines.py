"""Engines whose sessions store each value as it is, whatever the server's settings are."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import URL, Engine

from databus.client.sql.names import MYSQL

# Values that do not fit are refused and not cut, and 0 is a value of an AUTO_INCREMENT column.
_MYSQL = "SET sql_mode = 'STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO', time_zone = '+00:00'"
_SESSIONS = {**dict.fromkeys(MYSQL, _MYSQL), "postgresql": "SET TIME ZONE 'UTC'"}


def make_engine(url: str | URL, **options: Any) -> Engine:
    """Return an engine; its sessions are strict, and in UTC.

    `options`: those of SQLAlchemy's `create_engine`, whose errors are raised.
    """
    engine = sa.create_engine(url, **options)
    if (words := _SESSIONS.get(engine.dialect.name)) is not None:

        def begin(connection: Any, _record: object) -> None:
            with closing(connection.cursor()) as cursor:
                cursor.execute(words)
            connection.commit()

        # Before SQLAlchemy looks at the session, whose mode tells how names are quoted.
        event.listen(engine, "connect", begin, insert=True)
    return engine
