"""Schema texts for the registry's tests."""

from __future__ import annotations

import json
from typing import Any


def record(*fields: tuple[str, Any] | dict[str, Any], name: str = "shop.orders") -> str:
    """Return a record's text; a field is (name, type) or the whole object."""
    made = [f if isinstance(f, dict) else {"name": f[0], "type": f[1]} for f in fields]
    namespace, _, short = name.rpartition(".")
    return json.dumps({"type": "record", "name": short, "namespace": namespace, "fields": made})


def nullable(name: str, avro_type: Any) -> dict[str, Any]:
    """Return a field that may be null, and is by default."""
    return {"name": name, "type": ["null", avro_type], "default": None}


ORDERS_1 = record(("id", "long"), ("total", "double"))
ORDERS_2 = record(("id", "long"), ("total", "double"), nullable("note", "string"))
ORDERS_3 = record(("id", "long"), nullable("note", "string"))
TEXT_ID = record(("id", "string"), ("total", "double"))
