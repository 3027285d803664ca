"""SQLAlchemy definitions of the tables of `targets.sql`, and their column types.

The types are chosen so that each value is read back unchanged. Timestamps are
stored in UTC without a zone. Decimals are text in SQLite, which has no decimal
type. A float is a double in MySQL, which returns only six digits of a FLOAT.
String keys compare by bytes in MySQL.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import types as sql_types
from sqlalchemy.dialects import mysql
from sqlalchemy.types import TypeEngine

from databus.schemas.errors import SettingsError

# Together, at 4 bytes a character, below MySQL's limit of 3,072 bytes for a key.
_NAME = 128
_ENTRY = 512
# MySQL and MariaDB, under the two names that SQLAlchemy has for them.
MYSQL = ("mysql", "mariadb")


class DecimalAsText(sql_types.TypeDecorator[Decimal]):
    """A decimal stored as text, for a database without a decimal type."""

    impl = sql_types.String(80)
    cache_ok = True

    def process_bind_param(self, value: Decimal | None, dialect: sa.Dialect) -> str | None:  # noqa: ARG002
        """Return all digits, without an exponent."""
        return None if value is None else f"{value:f}"

    def process_result_value(self, value: str | None, dialect: sa.Dialect) -> Decimal | None:  # noqa: ARG002
        """Return the decimal of a stored text."""
        return None if value is None else Decimal(value)


def own_tables() -> tuple[sa.Table, sa.Table]:
    """Return the two bookkeeping tables: `databus_targets` and `databus_book`."""
    metadata = sa.MetaData()
    long_text = sql_types.Text().with_variant(mysql.LONGTEXT(), *MYSQL)
    targets = sa.Table(
        "databus_targets",
        metadata,
        sa.Column("target", _binary_text(_NAME), primary_key=True),
        sa.Column("changes", sql_types.BigInteger, nullable=False),
        sa.Column("keys", sql_types.Text, nullable=False),
        sa.Column("columns", long_text, nullable=False),
    )
    entries = sa.Table(
        "databus_book",
        metadata,
        sa.Column("target", _binary_text(_NAME), primary_key=True),
        sa.Column("name", _binary_text(_ENTRY), primary_key=True),
        sa.Column("value", sql_types.BigInteger, nullable=False),
    )
    return targets, entries


def _binary_text(length: int) -> TypeEngine[str]:
    """Return a string type that compares by bytes: case and trailing spaces count."""
    return sql_types.String(length).with_variant(
        mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin"), *MYSQL
    )


def table_of(
    name: str, schema: pa.Schema, keys: Sequence[str], dialect: sa.Dialect, key_length: int = 255
) -> sa.Table:
    """Return the SQLAlchemy definition of a target table.

    Raises SettingsError for a name that the database would cut or refuse.
    """
    for one in (name, *schema.names):
        _check_length(one, dialect)
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


def _check_length(name: str, dialect: sa.Dialect) -> None:
    is_postgres = dialect.name == "postgresql"
    most, unit = (63, "bytes") if is_postgres else (64, "characters")
    length = len(name.encode() if is_postgres else name)
    if dialect.name in (*MYSQL, "postgresql") and length > most:
        raise SettingsError(
            f"{name!r} has {length} {unit}, but a name in {dialect.name} has {most} at most: "
            "give the table another name, or leave the column out"
        )


def _key_type(kind: pa.DataType, dialect: sa.Dialect, length: int) -> TypeEngine[Any]:
    """Return the type of a key column; MySQL needs a length for text and bytes."""
    if _is_text(kind):
        if dialect.name not in MYSQL:
            return sql_types.String(length)
        # Keys that differ only in case, or in trailing spaces, are different keys.
        is_mariadb = getattr(dialect, "is_mariadb", False)
        collation = "utf8mb4_nopad_bin" if is_mariadb else "utf8mb4_0900_bin"
        return mysql.VARCHAR(length, charset="utf8mb4", collation=collation)
    if _is_bytes(kind):
        return sql_types.LargeBinary().with_variant(mysql.VARBINARY(length), *MYSQL)
    return _type(kind, dialect)


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
        if dialect.name == "sqlite":
            return DecimalAsText()
        return sql_types.Numeric(kind.precision, kind.scale)
    if types.is_date(kind):
        return sql_types.Date()
    if types.is_timestamp(kind):
        return sql_types.DateTime().with_variant(mysql.DATETIME(fsp=6), *MYSQL)
    if _is_bytes(kind):
        return sql_types.LargeBinary().with_variant(mysql.LONGBLOB(), *MYSQL)
    if _is_text(kind):
        text = mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin")
        return sql_types.Text().with_variant(text, *MYSQL)
    raise SettingsError(f"a database table has no type for a column of {kind}: leave it out")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def schema_of(line: sa.Row[Any]) -> pa.Schema:
    """Return the schema that a row of `databus_targets` holds."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(line.columns)))


def text_of(schema: pa.Schema) -> str:
    """Return a schema in the form in which `databus_targets` stores it."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()
