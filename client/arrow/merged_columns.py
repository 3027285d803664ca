"""The columns that hold a source's rows of several schema versions.

int and bigint become bigint; float, int and double become double; decimals, and an
integer that became a decimal, get as many digits as needed; texts of any kind become
strings. After any other change of type by a DDL statement the newer type counts, and
older rows do not fit it. If the statement is not known, no type holds both, and that is
an error.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from databus.schemas.columns.avro_columns import (
    LARGEST_DECIMAL,
    AvroColumn,
    Kind,
    WriterSchema,
    columns_of,
)
from databus.schemas.errors import SchemaError
from databus.schemas.table_change import change_of

_TEXTS = frozenset({Kind.STRING, Kind.WIDE_DECIMAL, Kind.ANY})
_WIDER = {
    frozenset({Kind.INT, Kind.LONG}): Kind.LONG,
    frozenset({Kind.FLOAT, Kind.DOUBLE}): Kind.DOUBLE,
    frozenset({Kind.INT, Kind.DOUBLE}): Kind.DOUBLE,
}
_DIGITS = {Kind.INT: 10, Kind.LONG: 19}


class _Seen(NamedTuple):
    """A column, merged over the versions so far, and the last version that has it."""

    column: AvroColumn
    version: int
    text: str  # the schema's


class MergedColumns(NamedTuple):
    """The columns of the newest version in order, and then the dropped ones."""

    newest: tuple[AvroColumn, ...]
    dropped: tuple[AvroColumn, ...]


def merged_columns(
    versions: Sequence[WriterSchema], as_text: Collection[str] = ()
) -> MergedColumns:
    """Return the columns that hold a source's rows of all versions.

    `as_text`: columns to read as strings, as `column` or `source.column`. Raises
    SchemaError if no type holds all versions of a column; ValueError without versions.
    """
    if not versions:
        raise ValueError("merged_columns needs at least one schema version")
    seen: dict[str, _Seen] = {}
    ordered = sorted(versions, key=lambda schema: schema.version)
    for schema in ordered:
        for column in columns_of(schema):
            merged = _Seen(_in_text(schema.source, column, as_text), schema.version, schema.text)
            before = seen.get(column.name.lower())
            if before is not None:
                merged = _merge(schema.source, before, merged)
            seen[column.name.lower()] = merged
    newest = [column.name.lower() for column in columns_of(ordered[-1])]
    # In the order in which they first appeared, so that the type does not depend on chance.
    dropped = sorted(set(seen) - set(newest), key=list(seen).index)
    return MergedColumns(
        tuple(seen[name].column for name in newest),
        tuple(seen[name].column for name in dropped),
    )


def is_as_text(source: str, column: str, as_text: Collection[str]) -> bool:
    """Return whether a column is to be read as text."""
    names = {name.lower() for name in as_text}
    return column.lower() in names or f"{source}.{column}".lower() in names


def _in_text(source: str, column: AvroColumn, as_text: Collection[str]) -> AvroColumn:
    if not is_as_text(source, column.name, as_text):
        return column
    return column._replace(kind=Kind.STRING, precision=0, scale=0)


def _merge(source: str, old: _Seen, new: _Seen) -> _Seen:
    """Return the newer column with a type that also holds the older column's values."""
    merged = _common(old.column, new.column)
    if merged is not None:
        return new._replace(column=merged)
    if change_of(new.text) is not None:
        # The change comes from a DDL statement: older rows are refused, if any come.
        return new
    name = new.column.name
    raise SchemaError(
        f"{source}, column {name!r}: schema version {old.version} has {old.column.type_text} and "
        f"version {new.version} has {new.column.type_text}: no type holds both. "
        f"Read it as text with option columnsAsText={name}"
    )


def _common(old: AvroColumn, new: AvroColumn) -> AvroColumn | None:
    if old.kind in _TEXTS and new.kind in _TEXTS:
        return new._replace(kind=Kind.STRING, precision=0, scale=0)
    if old.kind is Kind.DECIMAL and new.kind is Kind.DECIMAL:
        scale = max(old.scale, new.scale)
        whole = max(old.precision - old.scale, new.precision - new.scale)
        return _decimal(new, whole, scale)
    if old.kind is new.kind:
        return new
    if new.kind is Kind.DECIMAL and old.kind in _DIGITS:
        # From integer to decimal only: the other direction rounds.
        whole = max(_DIGITS[old.kind], new.precision - new.scale)
        return _decimal(new, whole, new.scale)
    wider = _WIDER.get(frozenset({old.kind, new.kind}))
    return None if wider is None else new._replace(kind=wider)


def _decimal(column: AvroColumn, whole: int, scale: int) -> AvroColumn | None:
    if whole + scale > LARGEST_DECIMAL:
        return None
    return column._replace(precision=whole + scale, scale=scale)
