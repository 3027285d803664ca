"""What the database says of a table that is there."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from databus.client.sql.unprepared import unprepared


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


def required_columns(
    connection: Connection, table: sa.Table, key: Sequence[str]
) -> frozenset[str] | None:
    """Return the columns that an upsert by a key must have to be an UPDATE of rows that are there.

    None = there is no such upsert: the table has another unique key, or none of `key`.
    """
    name, schema = table.name, table.schema
    if set(primary_key(connection, name, schema)) != set(key):
        return None
    if unique_keys(connection, name, schema, key):
        return None
    # The row that it begins with is refused without them, although it is not inserted.
    return frozenset(
        one["name"]
        for one in sa.inspect(connection).get_columns(name, schema=schema)
        if not one["nullable"] and one["default"] is None
    )
