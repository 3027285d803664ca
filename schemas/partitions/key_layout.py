"""Where the hashed columns are in the Avro bytes of a schema's rows, for compiled code.

`key_text.pxi` reads a row's columns up to the last hashed one, and writes the text of the
hashed ones. What it does not write itself, a row of which it then leaves to Python:

    float, double     their text is Python's shortest one
    a decimal         of more than 8 bytes, or of more digits than its precision
    a date            that Python does not have
    other types       with a logical type that fastavro reads
"""

from __future__ import annotations

from typing import NamedTuple

from databus.schemas.avro_rows import row_codec
from databus.schemas.rows.row_decoding import BranchPlan, ColumnPlan

NOT_HASHED = -1

# Codes of `BranchPlan` whose values have a text in compiled code.
_WITH_TEXT = frozenset(
    (
        *("null", "boolean", "int", "long", "string", "bytes", "fixed"),
        *("date", "datetime", "timestamp"),
    )
)
# How to skip the others.
_SKIPPED = {"float": ("skip", 4), "double": ("skip", 8), "enum": ("skip_number", 0)}
_SKIPPED_WITH_READER = {
    **dict.fromkeys(("int", "long", "enum"), ("skip_number", 0)),
    **dict.fromkeys(("string", "bytes", "decimal"), ("skip_bytes", 0)),
    "boolean": ("skip", 1),
}


class BranchLayout(NamedTuple):
    """How a value is read: `argument` is the size of a fixed, or the scale of a decimal."""

    code: str
    argument: int
    limit: int  # of a decimal: above every absolute value that its precision allows; 0 = none


class FieldLayout(NamedTuple):
    """A column up to the last hashed one; `place` is its place in the key, or NOT_HASHED."""

    place: int
    is_union: bool
    branches: tuple[BranchLayout, ...]


def key_layout(schema_text: str, by: tuple[str, ...]) -> tuple[FieldLayout, ...] | None:
    """Return the columns of a row up to the last hashed one.

    None for a schema that lacks one of them or that compiled code cannot read.
    """
    codec = row_codec(schema_text)
    plans, columns = codec.column_plans, codec.written_columns
    if plans is None or not set(by) <= set(columns):
        return None
    places = {column: place for place, column in enumerate(by)}
    count = 1 + max(columns.index(column) for column in by)
    return tuple(
        _field(places.get(column, NOT_HASHED), plan)
        for column, plan in zip(columns[:count], plans[:count], strict=True)
    )


def _field(place: int, plan: ColumnPlan) -> FieldLayout:
    return FieldLayout(place, plan.is_union, tuple(map(_branch, plan.branches)))


def _branch(plan: BranchPlan) -> BranchLayout:
    if plan.code == "decimal":
        return BranchLayout("decimal", plan.schema.get("scale", 0), plan.limit)
    if plan.reader is not None:
        skipped = _SKIPPED_WITH_READER.get(plan.code, ("skip", plan.size))
        return BranchLayout(*_SKIPPED.get(plan.code, skipped), 0)
    if plan.code in _WITH_TEXT:
        return BranchLayout(plan.code, plan.size, 0)
    return BranchLayout(*_SKIPPED[plan.code], 0)
