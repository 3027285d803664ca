"""Column types that databases have for values, so that each value is read back unchanged.

Moments are stored in UTC without a zone. Decimals are text in SQLite, which has no decimal type. A
float is a double in MySQL, which returns only six digits of a FLOAT. Texts compare by bytes in
MySQL.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

import sqlalchemy as sa
from sqlalchemy import types as sql_types
from sqlalchemy.dialects import mysql
from sqlalchemy.types import TypeEngine

from databus.client.sql.names import MYSQL


class DecimalAsText(sql_types.TypeDecorator[Decimal]):
    """A decimal stored as text, with all its decimal places, for a database without the type."""

    impl = sql_types.String(80)
    cache_ok = True

    def __init__(self, places: int = 0) -> None:
        super().__init__()
        self.places = places

    def process_bind_param(self, value: Decimal | None, dialect: sa.Dialect) -> str | None:  # noqa: ARG002
        """Return all digits, without an exponent."""
        return None if value is None else f"{value:f}"

    def process_result_value(self, value: str | None, dialect: sa.Dialect) -> Decimal | None:  # noqa: ARG002
        """Return the decimal of a stored text."""
        return None if value is None else Decimal(value)


def binary_text(length: int) -> TypeEngine[str]:
    """Return a string type that compares by bytes: case and trailing spaces count."""
    return sql_types.String(length).with_variant(
        mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin"), *MYSQL
    )


def key_text(dialect: sa.Dialect, length: int) -> TypeEngine[str]:
    """Return a text type for a key: keys that differ only in case, or trailing spaces, differ."""
    if dialect.name not in MYSQL:
        return sql_types.String(length)
    is_mariadb = getattr(dialect, "is_mariadb", False)
    collation = "utf8mb4_nopad_bin" if is_mariadb else "utf8mb4_0900_bin"
    return mysql.VARCHAR(length, charset="utf8mb4", collation=collation)


def key_data(length: int) -> TypeEngine[bytes]:
    """Return a type of bytes for a key; MySQL needs a length."""
    return sql_types.LargeBinary().with_variant(mysql.VARBINARY(length), *MYSQL)


def text() -> TypeEngine[str]:
    """Return a type for texts of any length."""
    long = mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin")
    return sql_types.Text().with_variant(long, *MYSQL)


def data() -> TypeEngine[bytes]:
    """Return a type for bytes of any length."""
    return sql_types.LargeBinary().with_variant(mysql.LONGBLOB(), *MYSQL)


def decimal(dialect: sa.Dialect, precision: int, scale: int) -> TypeEngine[Any]:
    """Return a type for decimals with so many digits."""
    return DecimalAsText(scale) if dialect.name == "sqlite" else sql_types.Numeric(precision, scale)


def moment() -> TypeEngine[datetime]:
    """Return a type for dates with a time, to the microsecond."""
    return sql_types.DateTime().with_variant(mysql.DATETIME(fsp=6), *MYSQL)
