"""The schema of rows of which some columns are taken, renamed or masked. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any

from databus.schemas.avro_meta import (
    column_of,
    field_meta,
    field_meta_text,
    record_meta,
    record_meta_text,
)
from databus.schemas.columns.avro_columns import WriterSchema
from databus.schemas.errors import SchemaError
from databus.schemas.table_change import WHOLE_TABLE
from databus.schemas.table_schema import free_name

_TEXT = "string"


@lru_cache(maxsize=4096)
def taken_schema(
    schema: WriterSchema,
    columns: frozenset[str],
    names: tuple[tuple[str, str], ...],
    masks: frozenset[str],
) -> WriterSchema:
    """Return the schema of rows with these columns only, also under earlier names.

    `names` are (column, its name in the target); `masks` columns of which a text or NULL is left.
    Raises SchemaError if the text is no record schema.
    """
    new_names = dict(names)
    try:
        record = json.loads(schema.text)
        fields = [field for field in record["fields"] if column_of(field) in columns]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise SchemaError(
            f"{schema.source}: its schema is not one of a record: {error!r}"
        ) from error
    taken: set[str] = set()
    record["fields"] = [_field(field, new_names, masks, taken) for field in fields]
    meta = dict(record_meta(record))
    if "key" in meta:
        meta["key"] = [new_names.get(one, one) for one in meta["key"] if one in columns]
    if "change" in meta:
        change = _change(json.loads(meta["change"]), columns, new_names, masks)
        meta["change"] = json.dumps(change, ensure_ascii=False, separators=(",", ":"))
    if meta:
        record["meta"] = record_meta_text(meta)
    return schema._replace(text=json.dumps(record, separators=(",", ":")))


def _change(
    change: Mapping[str, Any],
    columns: Collection[str],
    names: Mapping[str, str],
    masks: Collection[str],
) -> dict[str, Any]:
    """Return what a statement did to the rows at rest, of these columns only.

    `columns` has the earlier names of columns, too. What a mask leaves of a value is not known.
    """

    def named(one: str) -> str:
        return names.get(one, one)

    found = dict(change)
    for part in ("added", "reload"):
        held: Mapping[str, Any] = change.get(part, {})
        hidden = masks if part == "added" else ()
        taken = {one for one in held if one in columns or one == WHOLE_TABLE}
        found[part] = {named(one): held[one] for one in held if one in taken and one not in hidden}
    renamed: Mapping[str, str] = change.get("renamed", {})
    found["renamed"] = {
        named(new): named(old)
        for new, old in renamed.items()
        if new in columns and old in columns and named(new) != named(old)
    }
    return {name: value for name, value in found.items() if value != {}}


def _field(
    field: Mapping[str, Any],
    names: Mapping[str, str],
    masks: Collection[str],
    taken: set[str],
) -> dict[str, Any]:
    column = column_of(field)
    name = free_name(names[column] if column in names else field["name"], taken)
    found: dict[str, Any] = {**field, "name": name}
    meta = {**field_meta(field), "column": names.get(column, column)}
    if column in masks:
        found |= {"type": ["null", _TEXT], "default": None}
        # What the database says of the type and its digits is not so for a masked value.
        meta = {one: meta[one] for one in meta if one not in ("sqlType", "precision", "scale")}
    found["meta"] = field_meta_text(meta)
    return found
