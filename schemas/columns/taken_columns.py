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
from databus.schemas.table_schema import free_name

_TEXT = "string"


@lru_cache(maxsize=4096)
def taken_schema(
    schema: WriterSchema,
    columns: frozenset[str],
    names: tuple[tuple[str, str], ...],
    masks: frozenset[str],
) -> WriterSchema:
    """Return the schema of rows with these columns only.

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
        record["meta"] = record_meta_text(meta)
    return schema._replace(text=json.dumps(record, separators=(",", ":")))


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
