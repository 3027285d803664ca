"""The rows whose partitions docs/formats/partitions.md lists: SQL types, as shown, values."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, NamedTuple


class Vector(NamedTuple):
    """The columns that are hashed: their types and values, and how the page shows those."""

    sql_types: tuple[str, ...]
    shown: str
    values: tuple[Any, ...]


def _one(sql_type: str, shown: str, value: Any) -> Vector:
    return Vector((sql_type,), shown, (value,))


VECTORS = (
    _one("int", "42", 42),
    _one("bigint", "42", 42),
    _one("bigint", "-9223372036854775808", -(1 << 63)),
    _one("bigint unsigned", "18446744073709551615", Decimal((1 << 64) - 1)),
    _one("tinyint", "1", 1),
    _one("varchar(20)", "42", "42"),
    _one("varchar(20)", "naïve", "naïve"),
    _one("varchar(20)", "a,b", "a,b"),
    _one("varchar(20)", "(empty)", ""),
    _one("varbinary(20)", "0x00FF", b"\x00\xff"),
    _one("varbinary(20)", "(empty)", b""),
    _one("float", "0.1", 0.10000000149011612),
    _one("double", "0.1", 0.1),
    _one("double", "1e16", 1e16),
    _one("decimal(10,2)", "1.50", Decimal("1.50")),
    _one("decimal(10,2)", "-0.05", Decimal("-0.05")),
    _one("decimal(40,0)", "1" + 30 * "0", Decimal(10**30)),
    _one("date", "2026-11-27", date(2026, 11, 27)),
    _one("datetime(6)", "2026-11-27 18:00:00", datetime(2026, 11, 27, 18)),
    _one("datetime(6)", "2026-11-27 18:00:00.5", datetime(2026, 11, 27, 18, 0, 0, 500_000)),
    _one("timestamp", "2026-11-27 18:00:00 UTC", datetime(2026, 11, 27, 18, tzinfo=UTC)),
    _one("time", "-00:00:01", -1_000_000),
    _one("varchar(20)", "NULL", None),
    Vector(("varchar(9)", "int"), "1, 23", ("1", 23)),
    Vector(("varchar(9)", "int"), "12, 3", ("12", 3)),
    Vector(("varchar(9)", "varchar(9)"), "NULL, (empty)", (None, "")),
)
