"""Tables of the sink's own, and checks of a table that somebody else has made."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.schema import CreateTable

from databus.client.sinks.errors import SinkError
from databus.client.sql.existing import unique_keys

_MAKING = 0x64617461627573  # the key of a lock


def make_once(connection: Connection, table: sa.Table) -> None:
    """Make a table of the sink's own if it is not there, and commit; several may at once."""
    if connection.dialect.name == "postgresql":
        # IF NOT EXISTS is no lock there: two that make a table would be a duplicate key.
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MAKING)))
    connection.execute(CreateTable(table, if_not_exists=True))
    connection.commit()


def check_columns(
    connection: Connection, source: str, table: sa.Table, held: Sequence[str]
) -> None:
    """Raise SinkError if a table that somebody else has made cannot take the rows."""
    is_exact = connection.dialect.name == "postgresql"
    there = {one if is_exact else one.casefold() for one in held}
    named = [one.name for one in table.columns]
    lacks = [one for one in named if (one if is_exact else one.casefold()) not in there]
    if lacks:
        raise SinkError(
            f"the table {table.name} was there and lacks {', '.join(lacks)}, which rows of "
            f"{source} have: add the columns, leave them out, or let `table` name another one"
        )
    key = [one.name for one in table.primary_key.columns]
    unique = unique_keys(connection, table.name, table.schema, ())
    if set(key) not in map(set, unique):
        raise SinkError(
            f"the table {table.name} was there and has no unique key of {', '.join(key)}, as "
            f"rows of {source} need: add one, or let `table` name another one"
        )
