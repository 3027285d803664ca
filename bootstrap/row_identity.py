"""What tells a table's rows apart, read off its schema: with another key they are others. Pure."""

from __future__ import annotations

import json

Identity = tuple[tuple[str, str], ...]  # the key columns' names and SQL types, in key order


def identity_of(schema_text: str) -> Identity | None:
    """Return the columns that a row's key is made of; all columns for a table without a key.

    None for a schema that does not say, as one of a stock relay.
    """
    schema = json.loads(schema_text)
    key = (schema.get("meta") or {}).get("key")
    metas = [field.get("meta") or {} for field in schema["fields"]]
    if key is None or not all("column" in meta and "sqlType" in meta for meta in metas):
        return None
    types = {meta["column"]: meta["sqlType"] for meta in metas}
    return tuple((name, types[name]) for name in key or types)
