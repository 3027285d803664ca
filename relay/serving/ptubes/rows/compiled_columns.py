"""Plans how the compiled `_row_columns` writes the columns of one schema. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo
from typing import Any, NamedTuple

from databus.relay.serving.columns.column_plan import plan_columns
from databus.relay.serving.columns.compiled_plan import compile_columns, zone_changes
from databus.relay.serving.ptubes.rows.value_texts import time_instant
from databus.schemas.rows.row_decoding import ColumnPlan

try:
    from databus.relay.serving.ptubes.rows._row_columns import CompiledColumns
except ImportError:  # not built: Python writes every row
    is_compiled = False
else:
    is_compiled = True

# By the name of a type, the Avro types of whose values compiled code makes the text. Types with a
# text of their own in Python alone have none.
_CODES = {
    "date": frozenset(("date",)),
    "datetime": frozenset(("datetime",)),
    "timestamp": frozenset(("timestamp",)),
    "time": frozenset(("int", "long")),
    "float": frozenset(("float",)),
    **dict.fromkeys(("double", "real"), frozenset(("double",))),
    **dict.fromkeys(("enum", "set"), frozenset(("string",))),
}
_OTHERS = frozenset(("int", "long", "string", "bytes", "fixed", "decimal"))


class Fields(NamedTuple):
    """What is the same in each row of a column; `base` is the name of its type."""

    base: str
    key: bytes
    begin: bytes
    end: bytes


class CompiledColumn(NamedTuple):
    """One column. A branch is a code, and the size of a fixed or the scale of a decimal."""

    is_union: bool
    branches: tuple[tuple[str, int], ...]
    kind: int
    digits: int
    key: bytes
    begin: bytes
    end: bytes
    members: dict[bytes, int]


def prepare(zone: tzinfo | None) -> None:
    """Look the changes of a zone up, which takes a part of a second, before clients wait for it."""
    if is_compiled:
        zone_changes(zone)


def compiled_columns(
    schema_text: str,
    fields: Sequence[Fields],
    avro: tuple[ColumnPlan, ...] | None,
    zone: tzinfo | None,
) -> Any:
    """Return what writes the columns of a schema of MySQL; None if that is left to Python."""
    planned = compile_columns(plan_columns(schema_text), avro) if is_compiled else None
    if planned is None:
        return None
    found = []
    for one, (base, key, begin, end) in zip(planned, fields, strict=True):
        known = _CODES.get(base, _OTHERS) | {"null"}
        if any(code not in known for code, _, _ in one.branches):
            return None
        branches = tuple((code, size) for code, size, _ in one.branches)
        shared = (one.is_union, branches, one.kind, max(one.digits, 0))
        found.append(CompiledColumn(*shared, key, begin, end, one.members))
    midnight = time_instant(0, zone).ms * 1000
    return CompiledColumns(tuple(found), *zone_changes(zone), midnight)
