"""Schemas as former versions of this project wrote them, by rules of the tests alone."""

from __future__ import annotations

import json
from hashlib import md5
from typing import Any


def former_text(text: str, before: str | None = None) -> str:
    """Return the text that a former version had; its change names the shape `before`."""
    record = json.loads(text)
    columns = []
    for field in record["fields"]:
        members = dict(member.split("=", 1) for member in field["meta"].rstrip(";").split(";"))
        meta: dict[str, Any] = {"column": members["column"], "position": int(members["position"])}
        meta |= {"sqlType": members["sqlType"]}
        if "key" in members:
            meta |= {"key": int(members["key"])}
        columns.append({**field, "meta": meta})
    members = dict(member.split("=", 1) for member in record["meta"].rstrip(";").split(";"))
    table: dict[str, Any] = {"source": members["source"], "dialect": members["dialect"]}
    table |= {"key": members["key"].split(",")}
    if before is not None:
        table |= {"change": {**json.loads(members["change"]), "before": before}}
    return json.dumps({**record, "fields": columns, "meta": table}, separators=(",", ":"))


def former_shape(text: str) -> str:
    """Return the id that a former version gave the shape of its text."""
    record = json.loads(text)
    record["meta"].pop("change", None)
    return md5(json.dumps(record, separators=(",", ":")).encode()).hexdigest()
