"""Plans how the compiled `_row_decoder` decodes the rows of one schema.

The plan is made once for a schema: per column its branches, per branch a code and what the code
needs. A schema with a column of another shape (a record in a record, an array, a map) has no
plan, and fastavro decodes its rows.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from fastavro.read import LOGICAL_READERS

try:
    from databus.schemas.rows import _row_decoder
except ImportError:  # not built: fastavro decodes every row
    is_compiled = False
else:
    is_compiled = True
    RowDecoder = _row_decoder.RowDecoder


class DecodeFrom(Protocol):
    """Decodes the row that bytes hold from an offset on, up to `end` (-1 = their own end)."""

    def __call__(self, data: bytes, offset: int, end: int = -1, /) -> dict[str, Any]:
        """Return the row."""
        ...


_PLAIN = frozenset(("null", "boolean", "int", "long", "float", "double", "string", "bytes"))
# Logical types that the compiled decoder knows; fastavro's readers convert values of the others.
_KNOWN = {
    "int-date": "date",
    "long-local-timestamp-micros": "datetime",
    "long-timestamp-micros": "timestamp",
    "bytes-decimal": "decimal",
}
_MAX_DIGITS = 19  # of a 64-bit number
_PRECISIONS = range(1000)


class BranchPlan(NamedTuple):
    """How the values of one branch of a column are decoded."""

    code: str
    size: int = 0  # bytes of a fixed, or number of an enum's symbols
    limit: int = 0  # of a decimal: above every absolute value that its precision allows
    suffix: str = ""  # of a decimal: its exponent
    symbols: tuple[str, ...] = ()
    reader: Callable[..., Any] | None = None  # of the logical type
    schema: Any = None


class ColumnPlan(NamedTuple):
    """How the values of one column are decoded. A column that is not a union has one branch."""

    is_union: bool
    branches: tuple[BranchPlan, ...]


class _NotCoveredError(Exception):
    """The compiled decoder has no code for a type. Never leaves this file."""


def decode_from(
    schema: Mapping[str, Any], columns: Sequence[str], fallback: Callable[[bytes], dict[str, Any]]
) -> DecodeFrom:
    """Return the function that decodes a row of the bytes from an offset on.

    `schema` is fastavro's parsed schema of a record, `columns` are the names of its fields in a
    row. `fallback` decodes the rows that the compiled decoder leaves to it.
    """
    plans = plan_columns(schema) if is_compiled and len(set(columns)) == len(columns) else None
    if plans is None:
        return decode_slice(fallback)
    return RowDecoder(tuple(map(sys.intern, columns)), plans, fallback).decode


def decode_slice(decode: Callable[[bytes], dict[str, Any]]) -> DecodeFrom:
    """Return the function that decodes a part of bytes with one that decodes the whole."""

    def decode_part(data: bytes, offset: int, end: int = -1, /) -> dict[str, Any]:
        return decode(data[offset:] if end < 0 else data[offset:end])

    return decode_part


def plan_columns(schema: Mapping[str, Any]) -> tuple[ColumnPlan, ...] | None:
    """Return the plans of a record's fields; None if one of them is not covered."""
    named: dict[str, Any] = {}
    try:
        if "logicalType" in schema:
            return None
        return tuple(_column(field["type"], named) for field in schema["fields"])
    except _NotCoveredError:
        return None


def _column(avro_type: Any, named: dict[str, Any]) -> ColumnPlan:
    if isinstance(avro_type, list):
        return ColumnPlan(True, tuple(_branch(branch, named) for branch in avro_type))
    return ColumnPlan(False, (_branch(avro_type, named),))


def _branch(avro_type: Any, named: dict[str, Any]) -> BranchPlan:
    if isinstance(avro_type, str):
        if avro_type in _PLAIN:
            return BranchPlan(avro_type)
        if avro_type not in named:
            raise _NotCoveredError
        avro_type = named[avro_type]
    if not isinstance(avro_type, dict):
        raise _NotCoveredError
    kind = avro_type["type"]
    if kind in ("enum", "fixed"):
        named[avro_type["name"]] = avro_type
    elif kind not in _PLAIN:
        raise _NotCoveredError
    return _with_logical_type(_bare(kind, avro_type), avro_type)


def _bare(kind: str, avro_type: Mapping[str, Any]) -> BranchPlan:
    if kind == "enum":
        symbols = tuple(avro_type["symbols"])
        return BranchPlan(kind, len(symbols), symbols=symbols)
    return BranchPlan(kind, avro_type["size"] if kind == "fixed" else 0)


def _with_logical_type(plan: BranchPlan, avro_type: Mapping[str, Any]) -> BranchPlan:
    logical_type = f"{avro_type['type']}-{avro_type.get('logicalType')}"
    reader = LOGICAL_READERS.get(logical_type)
    if reader is None:
        return plan
    code = _KNOWN.get(logical_type)
    if code is not None and code != "decimal":
        return plan._replace(code=code)
    read = plan._replace(reader=reader, schema=avro_type)
    precision: Any = avro_type.get("precision")
    scale: Any = avro_type.get("scale", 0)
    if code is None or precision not in _PRECISIONS or scale not in _PRECISIONS:
        return read
    limit = 10**precision if precision <= _MAX_DIGITS else 0
    return read._replace(code=code, limit=limit, suffix=f"E-{scale}" if scale else "")
