"""Describes the differences between two versions of a schema. Pure.

The names are the database's if the schema has them (`meta`: column, SQL type, position in
the key), otherwise Avro's. A column counts as renamed only if its field has an alias: two
versions alone do not tell a rename from a dropped and an added column.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from databus.registry.compatibility import check_new_version
from databus.schemas.avro_meta import field_meta, record_meta
from databus.schemas.errors import SchemaError

Kind = Literal["added", "removed", "changed", "renamed", "key"]


class Difference(NamedTuple):
    """One change of a column, or of the key."""

    kind: Kind
    column: str
    text: str


class ColumnText(NamedTuple):
    """A column in words; `key_position` counts from 1, None = not in the key."""

    name: str
    type: str
    key_position: int | None


class _Column(NamedTuple):
    name: str
    type: str
    field: str
    aliases: frozenset[str]


@lru_cache(maxsize=1024)
def differences(old_text: str, new_text: str) -> tuple[Difference, ...]:
    """Return what the newer of two Avro records changed; raises SchemaError if one is no record."""
    old, new = _record(old_text), _record(new_text)
    return (*_of_columns(_columns(old), _columns(new)), *_of_key(_key(old), _key(new)))


def columns_of(text: str) -> tuple[ColumnText, ...]:
    """Return the columns of an Avro record, in its order; raises SchemaError."""
    record = _record(text)
    key = _key(record)
    return tuple(
        ColumnText(name, column.type, key.index(name) + 1 if name in key else None)
        for name, column in _columns(record).items()
    )


@lru_cache(maxsize=1024)
def is_compatible(old_text: str, new_text: str) -> bool:
    """Return whether a reader with the newer schema can read rows of the older one."""
    try:
        check_new_version(old_text, new_text)
    except SchemaError:
        return False
    return True


def _of_columns(old: Mapping[str, _Column], new: Mapping[str, _Column]) -> Iterator[Difference]:
    by_field = {column.field: column for column in old.values()}
    seen = set()
    for name, column in new.items():
        before = old.get(name) or _renamed_from(column, by_field, new)
        if before is None:
            yield Difference("added", name, f"{name} {column.type}")
            continue
        seen.add(before.name)
        if before.name != name:
            yield Difference("renamed", name, f"{before.name} → {name}")
        if before.type != column.type:
            yield Difference("changed", name, f"{before.type} → {column.type}")
    for name, column in old.items():
        if name not in seen:
            yield Difference("removed", name, f"{name} {column.type}")


def _renamed_from(
    column: _Column, by_field: Mapping[str, _Column], new: Mapping[str, _Column]
) -> _Column | None:
    found = (by_field[alias] for alias in sorted(column.aliases) if alias in by_field)
    return next((before for before in found if before.name not in new), None)


def _of_key(old: tuple[str, ...], new: tuple[str, ...]) -> Iterator[Difference]:
    if old != new:
        yield Difference("key", ", ".join(new), f"{_key_text(old)} → {_key_text(new)}")


def _key_text(columns: tuple[str, ...]) -> str:
    return f"({', '.join(columns)})" if columns else "no key"


def _record(text: str) -> Mapping[str, Any]:
    try:
        record = json.loads(text)
    except ValueError as error:
        raise SchemaError(f"not an Avro schema: {error}") from error
    if not isinstance(record, dict) or not isinstance(record.get("fields"), list):
        raise SchemaError("a source's schema is a record")
    return record


def _columns(record: Mapping[str, Any]) -> dict[str, _Column]:
    return {column.name: column for column in map(_column, record["fields"])}


def _column(field: Mapping[str, Any]) -> _Column:
    meta = field_meta(field)
    avro_type = field["type"]
    words = str(meta.get("sqlType") or "") or _avro_words(avro_type)
    if isinstance(avro_type, list) and "null" in avro_type:
        words = f"{words} null"
    aliases = frozenset(map(str, field.get("aliases", ())))
    return _Column(str(meta.get("column", field["name"])), words, str(field["name"]), aliases)


def _avro_words(avro_type: Any) -> str:
    if isinstance(avro_type, list):
        return " or ".join(_avro_words(part) for part in avro_type if part != "null")
    if isinstance(avro_type, dict):
        return str(avro_type.get("logicalType") or avro_type.get("name") or avro_type["type"])
    return str(avro_type)


def _key(record: Mapping[str, Any]) -> tuple[str, ...]:
    key = record_meta(record).get("key")
    return tuple(map(str, key)) if isinstance(key, list) else ()
