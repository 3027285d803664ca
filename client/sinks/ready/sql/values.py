"""Values of rows as the drivers of databases take them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any

import sqlalchemy as sa
from sqlalchemy.types import TypeEngine

from databus.client.sinks.formats.sql_texts import time_text
from databus.client.sql.column_types import DecimalAsText, moment
from databus.client.sql.names import MYSQL
from databus.client.sql.values import Convert, to_driver
from databus.schemas.columns.any_text import any_text
from databus.schemas.columns.avro_columns import AvroColumn, Kind


def converters(columns: Sequence[AvroColumn], dialect: sa.Dialect) -> list[Convert | None]:
    """Return what converts the values of each column; None = they are taken as they are."""
    chosen = _OF_MYSQL if dialect.name in MYSQL else _OF_OTHERS
    if dialect.name == "sqlite":
        chosen = _OF_SQLITE | {
            kind: to_driver(of_column, dialect) for kind, of_column in _TYPES_OF_SQLITE.items()
        }
    return [chosen.get(column.kind) for column in columns]


def has_nul(value: object) -> bool:
    """Return whether a text has a NUL, which PostgreSQL cannot store."""
    return isinstance(value, str) and "\0" in value


def checked_columns(columns: Sequence[AvroColumn], dialect: sa.Dialect) -> frozenset[str]:
    """Return the columns whose values `check_number` must see before the database does."""
    if dialect.name not in (*MYSQL, "sqlite"):
        return frozenset()
    return frozenset(one.name for one in columns if one.kind in (Kind.FLOAT, Kind.DOUBLE))


def are_finite(values: Iterable[float | None]) -> bool:
    """Return whether no value is infinite or NaN."""
    return all(map(math.isfinite, filter(None, values)))


def check_number(value: float | None, dialect: sa.Dialect) -> None:
    """Raise ValueError for a number that the database cannot store."""
    if value is None or math.isfinite(value):
        return
    if dialect.name in MYSQL:
        raise ValueError(f"MySQL and MariaDB cannot store {value}")
    if math.isnan(value):
        raise ValueError("SQLite would store NaN as NULL")


def _span(value: timedelta) -> str:
    return time_text(value)


def _any(value: Any) -> Any:
    return f"{value:f}" if isinstance(value, Decimal) else value


# The driver of MySQL writes a negative timedelta wrongly.
_OF_MYSQL: dict[Kind, Convert | None] = {
    Kind.TIME: _span,
    Kind.ANY: any_text,
}
_OF_OTHERS: dict[Kind, Convert | None] = {Kind.ANY: any_text}
_OF_SQLITE: dict[Kind, Convert | None] = {
    Kind.TIME: _span,
    Kind.ANY: _any,
}
# … which has them as texts.
_TYPES_OF_SQLITE: dict[Kind, TypeEngine[Any]] = {
    Kind.DECIMAL: DecimalAsText(),
    Kind.WIDE_DECIMAL: DecimalAsText(),
    Kind.DATE: sa.Date(),
    Kind.DATETIME: moment(),
    Kind.TIMESTAMP: moment(),
}
