"""What tells a table's rows apart: with another key they are others. Pure."""

from __future__ import annotations

import json

from databus.schemas.table import Table

# Names and SQL types of the columns that a row's key is made of, in key order;
# of all columns for a table without a key.
Identity = tuple[tuple[str, str], ...]


def identity_of(table: Table) -> Identity:
    """Return what the keys of a table's rows are made of."""
    return tuple((column.name, column.sql_type) for column in table.key_columns or table.columns)


def identity_in(schema_text: str) -> Identity | None:
    """Return what the keys of the rows are made of that were written with a schema.

    None for a schema that does not say, as one of a stock relay.
    """
    schema = json.loads(schema_text)
    key = (schema.get("meta") or {}).get("key")
    metas = [field.get("meta") or {} for field in schema["fields"]]
    if key is None or not all("column" in meta and "sqlType" in meta for meta in metas):
        return None
    types = {meta["column"]: meta["sqlType"] for meta in metas}
    return tuple((name, types[name]) for name in key or types)
