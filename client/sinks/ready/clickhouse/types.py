"""Types of ClickHouse: which one a column gets, and whether one that is there fits. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

from databus.schemas.columns.avro_columns import AvroColumn, Kind

MOST_DIGITS = 76  # of a Decimal
MOMENT = "DateTime64(6, 'UTC')"
_BITS = (8, 16, 32, 64, 128, 256)
# The least and the greatest value of each.
INTEGERS = {f"Int{bits}": (-(1 << bits - 1), (1 << bits - 1) - 1) for bits in _BITS}
INTEGERS |= {f"UInt{bits}": (0, (1 << bits) - 1) for bits in _BITS}
_TYPE = re.compile(r"(\w+)(?:\((.*)\))?", re.DOTALL)
_WRAPPERS = ("Nullable", "LowCardinality")
_WIDTHS = {"tinyint": 8, "smallint": 16, "mediumint": 32, "int": 32, "integer": 32}
_KINDS = {
    Kind.BOOLEAN: "Bool",
    Kind.FLOAT: "Float32",
    Kind.DOUBLE: "Float64",
    Kind.DATE: "Date32",
    Kind.DATETIME: MOMENT,
    Kind.TIMESTAMP: MOMENT,
}


class HeldType(NamedTuple):
    """The type of a column that is there, without Nullable and LowCardinality."""

    text: str
    name: str
    arguments: tuple[str, ...]
    is_nullable: bool

    @property
    def digits(self) -> tuple[int, int]:
        """Precision and scale of a Decimal."""
        precision, scale = map(int, self.arguments)
        return precision, scale


def held_type(text: str) -> HeldType:
    """Return the parts of a type."""
    is_nullable = False
    while True:
        found = _TYPE.fullmatch(text)
        name, inner = (found[1], found[2] or "") if found else (text, "")
        if name not in _WRAPPERS:
            return HeldType(text, name, tuple(inner.split(", ")) if inner else (), is_nullable)
        is_nullable |= name == "Nullable"
        text = inner


def nullable(text: str) -> str:
    """Return a type that has NULL, too."""
    return f"Nullable({text})"


def column_type(column: AvroColumn) -> str:
    """Return the type for the values of a column, but NULL."""
    if column.kind in (Kind.INT, Kind.LONG):
        return _integer(column)
    if column.kind in (Kind.DECIMAL, Kind.WIDE_DECIMAL):
        return _decimal(column)
    return _KINDS.get(column.kind, "String")


def has_null(column: AvroColumn) -> bool:
    """Return whether a column may be NULL."""
    return column.key is None and "null" in column.branches


def fits(held: HeldType, column: AvroColumn) -> bool:
    """Return whether a type takes all values of a column, but dates and NULL: rows tell of them."""
    wanted = held_type(column_type(column))
    if held.name in INTEGERS:
        low, high = INTEGERS[held.name]
        least, most = INTEGERS.get(wanted.name, (0, 1) if wanted.name == "Bool" else (low - 1, 0))
        return low <= least and most <= high
    match held.name:
        case "String":
            return True
        case "Decimal":
            return _holds_digits(held, wanted)
        case "Float64":
            return wanted.name in ("Float32", "Float64")
        case "Date" | "Date32":
            return wanted.name == "Date32"
        case "DateTime64":
            # A moment without a zone would be another one in another zone.
            is_utc = held.arguments[1:] == ("'UTC'",)
            is_fine = int(held.arguments[0]) >= 6
            return is_fine and (
                column.kind is Kind.TIMESTAMP or (is_utc and wanted.name == held.name)
            )
    return held.name == wanted.name


def _holds_digits(held: HeldType, wanted: HeldType) -> bool:
    precision, scale = held.digits
    if wanted.name in INTEGERS:
        return precision - scale >= len(str(INTEGERS[wanted.name][1]))
    if wanted.name != "Decimal":
        return False
    digits, places = wanted.digits
    return scale >= places and precision - scale >= digits - places


def _integer(column: AvroColumn) -> str:
    words = column.sql_type.lower()
    bits = _WIDTHS.get(re.split(r"\W", words, maxsplit=1)[0], 64)
    if "unsigned" in words or "zerofill" in words:
        return f"UInt{bits}"
    if words.startswith("year"):
        return "UInt16"
    # SQLite has any integer in a column of any of these names, and its kind is LONG.
    return f"Int{min(bits, 32)}" if column.kind is Kind.INT else "Int64"


def _decimal(column: AvroColumn) -> str:
    words = column.sql_type.lower()
    if words.startswith("bigint") and column.scale == 0:
        return "UInt64"
    if not 0 <= column.scale <= column.precision <= MOST_DIGITS:
        return "String"
    return f"Decimal({column.precision}, {column.scale})"
