"""SQLAlchemy definitions of the tables of `targets.sql`; column types are those of `client.sql`.

In MySQL and MariaDB an ALTER commits at once. What it makes of a table is written down before it,
in a row of `databus_targets` of its own, so that whoever comes after a crash can record it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import types as sql_types
from sqlalchemy.dialects import mysql
from sqlalchemy.types import TypeEngine

from databus.client.sql.column_types import (
    binary_text,
    data,
    decimal,
    key_data,
    key_text,
    moment,
    text,
)
from databus.client.sql.names import MYSQL, check_length
from databus.schemas.errors import SettingsError

# Together, at 4 bytes a character, below MySQL's limit of 3,072 bytes for a key.
_NAME = 128
_ENTRY = 512


def own_tables() -> tuple[sa.Table, sa.Table]:
    """Return the two bookkeeping tables: `databus_targets` and `databus_book`."""
    metadata = sa.MetaData()
    long_text = sql_types.Text().with_variant(mysql.LONGTEXT(), *MYSQL)
    targets = sa.Table(
        "databus_targets",
        metadata,
        sa.Column("target", binary_text(_NAME), primary_key=True),
        sa.Column("changes", sql_types.BigInteger, nullable=False),
        sa.Column("keys", sql_types.Text, nullable=False),
        sa.Column("columns", long_text, nullable=False),
    )
    entries = sa.Table(
        "databus_book",
        metadata,
        sa.Column("target", binary_text(_NAME), primary_key=True),
        sa.Column("name", binary_text(_ENTRY), primary_key=True),
        sa.Column("value", sql_types.BigInteger, nullable=False),
    )
    return targets, entries


def table_of(
    name: str, schema: pa.Schema, keys: Sequence[str], dialect: sa.Dialect, key_length: int = 255
) -> sa.Table:
    """Return the SQLAlchemy definition of a target table.

    Raises SettingsError for a name that the database would cut or refuse.
    """
    for one in (name, *schema.names):
        check_length(one, dialect)
    columns = [
        sa.Column(
            field.name,
            _key_type(field.type, dialect, key_length)
            if field.name in keys
            else _type(field.type, dialect),
            primary_key=field.name in keys,
            autoincrement=False,
        )
        for field in schema
    ]
    return sa.Table(name, sa.MetaData(), *columns)


def _key_type(kind: pa.DataType, dialect: sa.Dialect, length: int) -> TypeEngine[Any]:
    """Return the type of a key column; MySQL needs a length for text and bytes."""
    if _is_text(kind):
        return key_text(dialect, length)
    return key_data(length) if _is_bytes(kind) else _type(kind, dialect)


def _type(kind: pa.DataType, dialect: sa.Dialect) -> TypeEngine[Any]:
    """Return a column type that stores every value of an Arrow type unchanged."""
    types = pa.types
    if types.is_boolean(kind):
        return sql_types.Boolean()
    if types.is_integer(kind):
        return sql_types.BigInteger() if kind.bit_width > 32 else sql_types.Integer()
    if types.is_floating(kind):
        return sql_types.Double()
    if types.is_decimal(kind):
        return decimal(dialect, kind.precision, kind.scale)
    if types.is_date(kind):
        return sql_types.Date()
    if types.is_timestamp(kind):
        return moment()
    if _is_bytes(kind):
        return data()
    if _is_text(kind):
        return text()
    raise SettingsError(f"a database table has no type for a column of {kind}: leave it out")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def schema_of(line: sa.Row[Any]) -> pa.Schema:
    """Return the schema that a row of `databus_targets` holds."""
    return _schema_in(line.columns)


def _schema_in(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def text_of(schema: pa.Schema) -> str:
    """Return a schema in the form in which `databus_targets` stores it."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


class Altered(NamedTuple):
    """What is recorded of an altered table. `entries`: of its commit log."""

    schema: pa.Schema
    keys: Sequence[str]
    is_emptied: bool
    entries: Mapping[str, int]

    def row(self, table: str, token: int) -> dict[str, Any]:
        """Return the row of `databus_targets` that says it before the ALTER, which has a token."""
        told = {
            "columns": text_of(self.schema),
            "is_emptied": self.is_emptied,
            "entries": dict(self.entries),
        }
        return {
            "target": altering_name(table),
            "changes": token,
            "keys": json.dumps(self.keys),
            "columns": json.dumps(told),
        }

    @classmethod
    def of(cls, line: sa.Row[Any]) -> Altered:
        """Return what such a row says."""
        told = json.loads(line.columns)
        schema = _schema_in(told["columns"])
        return cls(schema, tuple(json.loads(line.keys)), told["is_emptied"], told["entries"])


def altering_name(table: str) -> str:
    """Return the name of the row that says what an ALTER makes of a table.

    No table has it: names have 64 characters at most in MySQL.
    """
    return f"{table:.<64} altering"
