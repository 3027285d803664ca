"""Schemas of Kafka Connect, as its JSON converter and Confluent's Avro converter write them. Pure.

JSON: `{"type": "int64", "optional": false, "name": …, "version": 1, "field": …}`, a struct with its
`fields`. Avro: a type with `connect.name`, `connect.version` and `connect.parameters`; a struct is
a record; what is optional is a union with null.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from databus.schemas.table_schema import free_name, legal_name

DECIMAL = "org.apache.kafka.connect.data.Decimal"
PRECISION = "connect.decimal.precision"  # a parameter of it
_AVRO = {
    "boolean": "boolean",
    "int16": "int",
    "int32": "int",
    "int64": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "bytes": "bytes",
}
_NOT_IN_AVRO = frozenset({"int16"})  # the type is an attribute


@dataclass(frozen=True, slots=True)
class Schema:
    """A type: a plain one, one with a meaning (`name`), or a struct with fields."""

    type: str
    is_optional: bool = False
    name: str = ""
    version: int | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    fields: Sequence[tuple[str, Schema]] = ()
    default: Any = None


def as_json(schema: Schema, field_name: str = "") -> dict[str, Any]:
    """Return a schema as the JSON converter sends it with each message."""
    found: dict[str, Any] = {"type": schema.type}
    if schema.type == "struct":
        found["fields"] = [as_json(held, name) for name, held in schema.fields]
    found["optional"] = schema.is_optional
    if schema.name:
        found["name"] = schema.name
    if schema.version is not None:
        found["version"] = schema.version
    if schema.parameters:
        found["parameters"] = dict(schema.parameters)
    if schema.default is not None:
        found["default"] = schema.default
    if field_name:
        found["field"] = field_name
    return found


def as_avro(schema: Schema, known: set[str] | None = None) -> Any:
    """Return a schema as the Avro converter registers it.

    A struct that was there before (`before` and `after` have one) is named, and not repeated.
    """
    known = set() if known is None else known
    written = _record(schema, known) if schema.type == "struct" else _plain(schema)
    return ["null", written] if schema.is_optional else written


def avro_names(fields: Sequence[tuple[str, Schema]]) -> dict[str, str]:
    """Return the name in Avro of each field of a struct."""
    taken: set[str] = set()
    return {name: free_name(name, taken) for name, _ in fields}


def avro_full_name(name: str) -> str:
    """Return the name of a struct in Avro."""
    return ".".join(map(legal_name, name.split(".")))


def _record(schema: Schema, known: set[str]) -> Any:
    full_name = avro_full_name(schema.name)
    if full_name in known:
        return full_name
    known.add(full_name)
    namespace, _, name = full_name.rpartition(".")
    names = avro_names(schema.fields)
    found: dict[str, Any] = {"type": "record", "name": name, "namespace": namespace}
    found["fields"] = [_field(names[one], held, known) for one, held in schema.fields]
    return found | _attributes(schema)


def _field(name: str, schema: Schema, known: set[str]) -> dict[str, Any]:
    found = {"name": name, "type": as_avro(schema, known)}
    return {**found, "default": None} if schema.is_optional else found


def _plain(schema: Schema) -> Any:
    attributes = _attributes(schema)
    if schema.name == DECIMAL:
        scale, precision = schema.parameters["scale"], schema.parameters[PRECISION]
        attributes |= {"logicalType": "decimal", "scale": int(scale), "precision": int(precision)}
    if schema.type in _NOT_IN_AVRO:
        attributes["connect.type"] = schema.type
    written = _AVRO[schema.type]
    return {"type": written, **attributes} if attributes else written


def _attributes(schema: Schema) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if schema.version is not None:
        found["connect.version"] = schema.version
    if schema.parameters:
        found["connect.parameters"] = dict(schema.parameters)
    if schema.name:
        found["connect.name"] = schema.name
    return found
