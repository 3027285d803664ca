"""Schemas as a stock client has them: by the MD5 of what Avro 1.4.0 prints for them.

The client parses the text that `/register` sends and looks an event's schema up by the MD5 of
the parsed schema's own text. Avro 1.4.0 does not know aliases, drops the doc of a record and
every attribute that is not a string, and prints what is left in an order of its own.
"""

from __future__ import annotations

import hashlib
import io
import json
from typing import Any

import fastavro

from tests.promises.stock_databus.stock_events import StockRefusalError

_OWN = {"type", "name", "namespace", "doc", "fields", "items", "values", "size", "symbols"}
_OF_FIELDS = {"name", "type", "doc", "default", "order"}
_PRIMITIVES = {"string", "bytes", "int", "long", "float", "double", "boolean", "null"}


class StockSchema:
    """One registered version of a source's schema."""

    def __init__(self, src_id: int, version: int, text: str) -> None:
        self.src_id = src_id
        self.version = version
        parsed = json.loads(text)
        self.schema_id = hashlib.md5(normal_form(parsed).encode()).digest()
        # fastavro would make a Decimal or a date of some rows; a GenericRecord has raw values.
        self._reader = fastavro.parse_schema(_without_logical_types(parsed))

    def decode(self, value: bytes) -> dict[str, Any]:
        """Return a row; raises StockRefusalError if bytes are left over."""
        stream = io.BytesIO(value)
        row = fastavro.schemaless_reader(stream, self._reader, None)
        if stream.tell() != len(value):
            raise StockRefusalError(f"{len(value) - stream.tell()} bytes behind the row")
        assert isinstance(row, dict)
        return row


def normal_form(schema: Any) -> str:
    """Return what Avro 1.4.0 prints for a schema, in one line."""
    return _json(_print(schema, None))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _print(schema: Any, space: str | None) -> Any:
    """Return the JSON that Avro prints for a schema inside a namespace."""
    if isinstance(schema, list):
        return [_print(branch, space) for branch in schema]
    if isinstance(schema, str):
        return schema if schema in _PRIMITIVES else _reference(schema, space)
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return _print(kind, space)
    strings = {k: v for k, v in schema.items() if k not in _OWN and isinstance(v, str)}
    if kind in _PRIMITIVES:
        return {"type": kind, **strings} if strings else kind
    if kind == "array":
        return {"type": kind, "items": _print(schema["items"], space), **strings}
    if kind == "map":
        return {"type": kind, "values": _print(schema["values"], space), **strings}
    return _print_named(schema, kind, strings, space)


def _print_named(
    schema: dict[str, Any], kind: str, strings: dict[str, str], space: str | None
) -> dict[str, Any]:
    name, own = schema["name"], schema.get("namespace", space)
    if "." in name:
        own, name = name.rsplit(".", 1)
    printed: dict[str, Any] = {"type": kind, "name": name}
    if own is not None and own != space:
        printed["namespace"] = own
    if kind == "enum":
        printed["symbols"] = schema["symbols"]
    elif kind == "fixed":
        printed["size"] = schema["size"]
    else:
        printed["fields"] = [_print_field(field, own) for field in schema["fields"]]
    return {**printed, **strings}


def _print_field(field: dict[str, Any], space: str | None) -> dict[str, Any]:
    printed = {"name": field["name"], "type": _print(field["type"], space)}
    if field.get("doc") is not None:
        printed["doc"] = field["doc"]
    if "default" in field:
        printed["default"] = field["default"]
    if field.get("order", "ascending") != "ascending":
        printed["order"] = field["order"]
    strings = {k: v for k, v in field.items() if k not in _OF_FIELDS and isinstance(v, str)}
    return {**printed, **strings}


def _reference(name: str, space: str | None) -> str:
    """Return how Avro names a type that was defined before: short inside its namespace."""
    own, _, short = name.rpartition(".")
    return short if own and own == space else name


def _without_logical_types(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_logical_types(branch) for branch in schema]
    if isinstance(schema, dict):
        return {
            key: _without_logical_types(value) if key != "default" else value
            for key, value in schema.items()
            if key != "logicalType"
        }
    return schema
