"""What the database says of a table that is there."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.schema import CreateTable

from databus.client.sinks.errors import SinkError
from databus.client.sql.unprepared import unprepared

_MAKING = 0x64617461627573  # the key of a lock


def make_once(connection: Connection, table: sa.Table) -> None:
    """Make a table of the sink's own if it is not there, and commit; several may at once."""
    if connection.dialect.name == "postgresql":
        # IF NOT EXISTS is no lock there: two that make a table would be a duplicate key.
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MAKING)))
    connection.execute(CreateTable(table, if_not_exists=True))
    connection.commit()


def held_columns(connection: Connection, table: sa.Table) -> list[str]:
    """Return the names of a table's columns."""
    # From an empty result: SQLAlchemy's inspection reads MySQL's "``" as two characters.
    nothing = sa.select(sa.text("*")).select_from(table).where(sa.false())
    with unprepared(connection):
        return list(connection.execute(nothing).keys())


def primary_key(connection: Connection, name: str, schema: str | None) -> tuple[str, ...]:
    """Return the columns of a table's primary key."""
    found = sa.inspect(connection).get_pk_constraint(name, schema=schema)
    return tuple(found["constrained_columns"])


def unique_keys(
    connection: Connection, name: str, schema: str | None, key: Sequence[str]
) -> tuple[tuple[str, ...], ...]:
    """Return the columns of each unique key of a table, but for `key`."""
    indexed = _sqlite_indexes if connection.dialect.name == "sqlite" else _indexes
    listed = [*indexed(connection, name, schema), primary_key(connection, name, schema)]
    found = {tuple(one) for one in listed if one}
    return tuple(sorted(one for one in found if set(one) != set(key)))


def _indexes(connection: Connection, name: str, schema: str | None) -> list[Sequence[str]]:
    look = sa.inspect(connection)
    found: list[Sequence[str]] = [
        one["column_names"] for one in look.get_unique_constraints(name, schema=schema)
    ]
    indexes = (one for one in look.get_indexes(name, schema=schema) if one["unique"])
    return found + [tuple(str(column) for column in one["column_names"]) for one in indexes]


def _sqlite_indexes(connection: Connection, name: str, schema: str | None) -> list[Sequence[str]]:
    # SQLAlchemy reads the text of CREATE TABLE, and misses `status VARCHAR(20) UNIQUE`.
    listed = 'SELECT name FROM pragma_index_list(?, ?) WHERE "unique"'
    named = "SELECT name FROM pragma_index_info(?, ?)"
    place = schema or "main"
    return [
        tuple(str(row[0]) for row in connection.exec_driver_sql(named, (index, place)))
        for (index,) in connection.exec_driver_sql(listed, (name, place)).all()
    ]


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
