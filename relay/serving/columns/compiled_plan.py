"""Plans how the compiled `_column_writer` writes the columns of one schema. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import NamedTuple

from databus.relay.serving.columns.column_plan import PlannedColumn
from databus.relay.serving.protobuf import number_field, text_field
from databus.schemas.rows.row_decoding import BranchPlan, ColumnPlan

_PLAIN = frozenset(
    (
        *("null", "boolean", "int", "long", "float", "double", "string", "bytes", "fixed"),
        *("date", "datetime", "timestamp"),
    )
)
# Beyond these years a TIMESTAMP has no value.
_FIRST, _LAST = datetime(1901, 1, 1, tzinfo=UTC), datetime(2120, 1, 1, tzinfo=UTC)
_STEP = timedelta(days=1)
_MOST_SCALE = 60


class CompiledColumn(NamedTuple):
    """One column: fields that are the same in each row, and how to make those that are not.

    A branch is a code, the size of a fixed or the scale of a decimal, and the Java type.
    """

    column: str
    is_union: bool
    branches: tuple[tuple[str, int, int], ...]
    kind: int
    digits: int
    wide_from: int
    wide_type: int
    raw_type: int
    position: bytes
    name: bytes
    mysql_type: bytes
    members: dict[bytes, int]


def compile_columns(
    planned: tuple[PlannedColumn, ...], avro: tuple[ColumnPlan, ...] | None
) -> tuple[CompiledColumn, ...] | None:
    """Return the plan for compiled code; None for a schema that is left to Python."""
    if avro is None:
        return None
    found = []
    for column, plan in zip(planned, avro, strict=True):
        branches = [_branch(*pair) for pair in zip(plan.branches, column.sql_types, strict=True)]
        known = [branch for branch in branches if branch is not None]
        if len(known) < len(branches) or len(column.members) > _MOST_SCALE + 4:
            return None
        found.append(_column(column, plan.is_union, tuple(known)))
    return tuple(found)


def _column(
    column: PlannedColumn, is_union: bool, branches: tuple[tuple[str, int, int], ...]
) -> CompiledColumn:
    return CompiledColumn(
        column.name,
        is_union,
        branches,
        column.kind.value,
        column.digits,
        column.wide_from,
        column.wide_type,
        column.sql_types[-1],
        number_field(1, column.position),
        text_field(3, column.name) + number_field(4, column.is_key),
        text_field(10, column.mysql_type),
        {one.encode(): place for place, one in reversed([*enumerate(column.members, 1)])},
    )


def _branch(plan: BranchPlan, sql_type: int) -> tuple[str, int, int] | None:
    if plan.code == "decimal":
        scale = plan.schema.get("scale", 0)
        return (plan.code, scale, sql_type) if 0 <= scale <= _MOST_SCALE else None
    if plan.code not in _PLAIN or plan.reader is not None:
        return None
    return plan.code, plan.size, sql_type


@lru_cache(maxsize=64)
def zone_changes(zone: tzinfo | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return when a zone's offset changes, in seconds since 1970, and the offsets in between.

    None is the machine's zone.
    """
    changes: list[int] = []
    at, offset = _FIRST, _offset(_FIRST, zone)
    offsets = [offset]
    while at < _LAST and not isinstance(zone, type(UTC)):
        later = at + _STEP
        after = _offset(later, zone)
        if after != offset:
            changes.append(_first_with(at, later, after, zone))
            offsets.append(after)
        at, offset = later, after
    return tuple(changes), tuple(offsets)


def _offset(at: datetime, zone: tzinfo | None) -> int:
    found = at.astimezone(zone).utcoffset()
    return 0 if found is None else found // timedelta(seconds=1)


def _first_with(before: datetime, after: datetime, offset: int, zone: tzinfo | None) -> int:
    low, high = int(before.timestamp()), int(after.timestamp())
    while high - low > 1:
        middle = (low + high) // 2
        if _offset(datetime.fromtimestamp(middle, UTC), zone) == offset:
            high = middle
        else:
            low = middle
    return high
