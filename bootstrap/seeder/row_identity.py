"""The identity of a table's rows: the columns that their keys are made of. Pure."""

from __future__ import annotations

import json

from databus.schemas.avro_meta import field_meta, record_meta
from databus.schemas.table import Table

# Names and SQL types of the key columns in key order; of all columns for a table
# without a key.
Identity = tuple[tuple[str, str], ...]


def identity_of(table: Table) -> Identity:
    """Return the identity of a table's rows."""
    return tuple((column.name, column.sql_type) for column in table.key_columns or table.columns)


def identity_in(schema_text: str) -> Identity | None:
    """Return the identity of rows that were written with a schema.

    None when the schema does not say, such as one of an original Databus relay.
    """
    schema = json.loads(schema_text)
    key = record_meta(schema).get("key")
    metas = [field_meta(field) for field in schema["fields"]]
    if key is None or not all("column" in meta and "sqlType" in meta for meta in metas):
        return None
    types = {meta["column"]: meta["sqlType"] for meta in metas}
    return tuple((name, types[name]) for name in key or types)
