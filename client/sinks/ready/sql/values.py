"""Values of rows as the drivers of databases take them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import sqlalchemy as sa

from databus.client.sinks.formats.sql_texts import time_text
from databus.client.sql.names import MYSQL
from databus.schemas.columns.any_text import any_text
from databus.schemas.columns.avro_columns import AvroColumn, Kind

Convert = Callable[[Any], Any]  # of a value that is not NULL; raises ValueError


def converters(columns: Sequence[AvroColumn], dialect: sa.Dialect) -> list[Convert | None]:
    """Return what converts the values of each column; None = they are taken as they are."""
    chosen = _OF_SQLITE if dialect.name == "sqlite" else _OF_OTHERS
    if dialect.name in MYSQL:
        chosen = _OF_MYSQL
    return [chosen.get(column.kind) for column in columns]


def has_nul(value: object) -> bool:
    """Return whether a text has a NUL, which PostgreSQL cannot store."""
    return isinstance(value, str) and "\0" in value


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError(f"MySQL and MariaDB cannot store {value}")
    return value


def _number(value: float) -> float:
    if math.isnan(value):
        raise ValueError("SQLite would store NaN as NULL")
    return value


def _decimal_text(value: Decimal) -> str:
    return f"{value:f}"


def moment_text(value: datetime) -> str:
    """Return a moment as SQLite's tables have it."""
    # UTC, without a zone and with all digits, as SQLAlchemy writes it.
    return value.replace(tzinfo=None).isoformat(" ", timespec="microseconds")


def _date_text(value: date) -> str:
    return value.isoformat()


def _span(value: timedelta) -> str:
    return time_text(value)


def _any(value: Any) -> Any:
    return f"{value:f}" if isinstance(value, Decimal) else value


# The driver of MySQL writes a negative timedelta wrongly.
_OF_MYSQL: dict[Kind, Convert] = {
    Kind.TIME: _span,
    Kind.FLOAT: _finite,
    Kind.DOUBLE: _finite,
    Kind.ANY: any_text,
}
_OF_OTHERS: dict[Kind, Convert] = {Kind.ANY: any_text}
_OF_SQLITE: dict[Kind, Convert] = {
    Kind.TIME: _span,
    Kind.FLOAT: _number,
    Kind.DOUBLE: _number,
    Kind.DECIMAL: _decimal_text,
    Kind.WIDE_DECIMAL: _decimal_text,
    Kind.DATE: _date_text,
    Kind.DATETIME: moment_text,
    Kind.TIMESTAMP: moment_text,
    Kind.ANY: _any,
}
