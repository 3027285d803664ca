"""The normal form of a schema: what Avro 1.4.0 for Java prints for the parsed text.

A Databus client of LinkedIn looks an event's schema up by the MD5 of
`Schema.parse(text).toString(false)`, so that text is what a schema's id is made of.
The rules below are those of Avro 1.4.0 with Jackson 1.4.2, found with the classes
themselves; `tests/schemas/normal_forms/` keeps their answers:

* No white space. Keys have a fixed order, whatever the order of the text:
  record  type, name, namespace, fields, attributes, aliases
  enum    type, name, namespace, symbols, attributes, aliases
  fixed   type, name, namespace, size, attributes, aliases
  array   type, items, attributes; map: type, values, attributes
  field   name, type, doc, default, order, attributes
* An attribute is any other key whose value is a string. Numbers, objects, arrays,
  booleans and nulls are dropped: the precision and the scale of a decimal are.
* The `doc` of a record, enum or fixed is dropped, and the aliases of a field are.
* `order` is dropped when it is ascending.
* A primitive type without attributes is its bare name.
* A name is printed without its namespace. The namespace follows where it differs from the
  default, which is that of the first type printed that has one, to the end of the text.
  The default that names are *read* with also outlives a type inside one that has none.
* A type is printed once, and later by its name.
* Strings escape `"`, the backslash and control characters below 0x20, by the short
  escapes of JSON or as `\\u001F`, in capital letters; all others stand for themselves.
* A number with a point or an exponent is a Java double: `1.0E7`, `9.0E-4`, `"Infinity"`.
  Java before 19 prints a few doubles with more digits than needed; this module never does.
  An integer beyond 64 bits is cut to its lowest 32.
* Several attributes have the order of a Java `HashMap` (of Java 8 and later; earlier ones
  hash differently). A single one has no order: `avro_meta` writes one.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from databus.schemas.errors import SchemaError
from databus.schemas.filters import java_hash

_PRIMITIVES = frozenset(("string", "bytes", "int", "long", "float", "double", "boolean", "null"))
_NAMED = frozenset(("record", "error", "enum", "fixed"))
_ORDERS = frozenset(("ascending", "descending", "ignore"))
# What a schema or a field says in keys of their own, not as attributes.
_TYPE_KEYS = frozenset(
    ("doc", "fields", "items", "name", "namespace", "size", "symbols", "values", "type")
)
_FIELD_KEYS = frozenset(("default", "doc", "name", "order", "type"))

_MUST_ESCAPE = re.compile(r'["\\\x00-\x1f]')
_SHORT_ESCAPES = {
    **{'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t"},
    **{"\n": "\\n", "\f": "\\f", "\r": "\\r"},
}


def normal_form(text: str) -> str:
    """Return what Avro 1.4.0 prints for a schema; raises SchemaError if it is none."""
    try:
        schema = json.loads(text, parse_constant=_refuse)
        return _Printer().print(_Parser().parse(schema))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise SchemaError(f"not a schema that Avro 1.4.0 reads: {error!r}") from error


@dataclass(slots=True)
class _Type:
    """A parsed type; `parts` is what it is made of."""

    kind: str
    attributes: list[tuple[str, str]] = field(default_factory=list)
    parts: Any = None
    name: _Name | None = None
    aliases: list[_Name] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Name:
    name: str
    namespace: str | None

    @classmethod
    def of(cls, name: str, namespace: str | None) -> _Name:
        before, dot, last = name.rpartition(".")
        return cls(last, before) if dot else cls(name, namespace)

    @property
    def full(self) -> str:
        return self.name if self.namespace is None else f"{self.namespace}.{self.name}"

    def seen_from(self, namespace: str | None) -> str:
        is_near = self.namespace is None or self.namespace == namespace
        return self.name if is_near else self.full


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    type: _Type
    doc: str | None
    has_default: bool
    default: Any
    order: str
    attributes: list[tuple[str, str]]


class _Parser:
    """Builds types of a schema's JSON, with the names that were defined so far."""

    def __init__(self) -> None:
        self._namespace: str | None = None
        self._types: dict[str, _Type] = {}

    def parse(self, schema: Any) -> _Type:
        if isinstance(schema, str):
            return self._named(schema)
        if isinstance(schema, list):
            return _Type("union", parts=[self.parse(branch) for branch in schema])
        if not isinstance(schema, dict):
            raise TypeError(f"{schema!r} is no schema")
        return self._parse_object(schema)

    def _named(self, name: str) -> _Type:
        if name in _PRIMITIVES:
            return _Type(name)
        return self._types[_Name.of(name, self._namespace).full]

    def _parse_object(self, schema: Mapping[str, Any]) -> _Type:
        kind = schema["type"]
        outer = None
        parsed = _Type(kind)
        if kind in _NAMED:
            namespace = _text(schema, "namespace")
            space = self._namespace if namespace is None else namespace
            parsed.name = _Name.of(_string(schema["name"]), space)
            if parsed.name.namespace is not None:
                outer, self._namespace = self._namespace, parsed.name.namespace
        self._parse_parts(parsed, schema)
        parsed.attributes = _attributes(schema, _TYPE_KEYS)
        # Avro 1.4.0 does not go back to having no default.
        if outer is not None:
            self._namespace = outer
        if parsed.name is not None and "aliases" in schema:
            parsed.aliases = _aliases(schema["aliases"], parsed.name.namespace)
        return parsed

    def _parse_parts(self, parsed: _Type, schema: Mapping[str, Any]) -> None:
        match parsed.kind:
            case "record" | "error":
                self._define(parsed)  # before its fields, which may be of it
                parsed.parts = [self._parse_field(one) for one in _list(schema["fields"])]
            case "enum":
                parsed.parts = [_string(symbol) for symbol in _list(schema["symbols"])]
                self._define(parsed)
            case "fixed":
                parsed.parts = _int(schema["size"])
                self._define(parsed)
            case "array":
                parsed.parts = self.parse(schema["items"])
            case "map":
                parsed.parts = self.parse(schema["values"])
            case kind if kind not in _PRIMITIVES:
                raise ValueError(f"{kind!r} is no type")

    def _define(self, parsed: _Type) -> None:
        assert parsed.name is not None
        full = parsed.name.full
        if full in self._types or full in _PRIMITIVES:
            raise ValueError(f"{full} is defined already")
        self._types[full] = parsed

    def _parse_field(self, schema: Mapping[str, Any]) -> _Field:
        name = _string(schema["name"])
        parsed = self.parse(schema["type"])
        order = _string(schema.get("order", "ascending")).lower()
        if order not in _ORDERS:
            raise ValueError(f"{order!r} is no order")
        has_default = "default" in schema
        attributes = _attributes(schema, _FIELD_KEYS)
        doc, default = _text(schema, "doc"), schema.get("default")
        return _Field(name, parsed, doc, has_default, default, order, attributes)


class _Printer:
    """Prints parsed types, with the names that were printed so far."""

    def __init__(self) -> None:
        self._namespace: str | None = None
        self._printed: set[str] = set()

    def print(self, schema: _Type) -> str:
        if schema.kind == "union":
            return _array(self.print(branch) for branch in schema.parts)
        if schema.kind in _PRIMITIVES and not schema.attributes:
            return _quoted(schema.kind)
        if schema.name is None:
            members = [("type", _quoted(schema.kind)), *self._parts(schema)]
            return _object([*members, *_printed_attributes(schema.attributes)])
        if schema.name.full in self._printed:
            return _quoted(schema.name.seen_from(self._namespace))
        return self._print_named(schema, schema.name)

    def _print_named(self, schema: _Type, name: _Name) -> str:
        self._printed.add(name.full)
        members = [("type", _quoted(schema.kind)), ("name", _quoted(name.name))]
        if name.namespace is not None:
            if name.namespace != self._namespace:
                members.append(("namespace", _quoted(name.namespace)))
            if self._namespace is None:
                self._namespace = name.namespace
        members += [*self._parts(schema), *_printed_attributes(schema.attributes)]
        if schema.aliases:
            aliases = (_quoted(alias.seen_from(name.namespace)) for alias in schema.aliases)
            members.append(("aliases", _array(aliases)))
        return _object(members)

    def _parts(self, schema: _Type) -> Iterator[tuple[str, str]]:
        match schema.kind:
            case "record" | "error":
                yield "fields", _array(self._print_field(one) for one in schema.parts)
            case "enum":
                yield "symbols", _array(map(_quoted, schema.parts))
            case "fixed":
                yield "size", str(schema.parts)
            case "array":
                yield "items", self.print(schema.parts)
            case "map":
                yield "values", self.print(schema.parts)

    def _print_field(self, one: _Field) -> str:
        members = [("name", _quoted(one.name)), ("type", self.print(one.type))]
        if one.doc is not None:
            members.append(("doc", _quoted(one.doc)))
        if one.has_default:
            members.append(("default", _value(one.default)))
        if one.order != "ascending":
            members.append(("order", _quoted(one.order)))
        return _object([*members, *_printed_attributes(one.attributes)])


def _attributes(schema: Mapping[str, Any], keys: frozenset[str]) -> list[tuple[str, str]]:
    found = {k: v for k, v in schema.items() if isinstance(v, str) and k not in keys}
    return [(key, found[key]) for key in _hash_order(found, 1)]


def _aliases(aliases: Any, namespace: str | None) -> list[_Name]:
    # Avro 1.4.0 puts the texts into one HashSet, and their names into another.
    texts = _hash_order(dict.fromkeys(map(_string, _list(aliases))), 16)
    names = {(name := _Name.of(text, namespace)).full: name for text in texts}
    return [names[full] for full in _hash_order(names, 16)]


def _hash_order(keys: Iterable[str], capacity: int) -> list[str]:
    """Return keys in the order of a Java HashMap that they were put into one by one."""
    listed = list(keys)
    while len(listed) > capacity * 0.75:
        capacity *= 2
    # Within a bucket, and through each growth, keys stay in the order of their coming.
    return sorted(listed, key=lambda key: _spread(java_hash(key)) & (capacity - 1))


def _spread(java_hash_code: int) -> int:
    code = java_hash_code & 0xFFFFFFFF
    return code ^ (code >> 16)


def _printed_attributes(attributes: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    return ((key, _quoted(value)) for key, value in attributes)


def _value(value: Any) -> str:
    """Print a default as Jackson 1.4.2 prints a tree."""
    match value:
        case dict():
            return _object((key, _value(one)) for key, one in value.items())
        case list():
            return _array(map(_value, value))
        case str():
            return _quoted(value)
        case float():
            return _double(value)
        case bool() | None:
            return json.dumps(value)
    return str(_integer(value))


def _integer(value: int) -> int:
    if -(2**63) <= value < 2**63:
        return value
    return (value + 2**31) % 2**32 - 2**31


def _double(value: float) -> str:
    """Return the shortest text of a double that has a digit on each side of the point."""
    if math.isinf(value):
        return '"Infinity"' if value > 0 else '"-Infinity"'
    sign = "-" if math.copysign(1, value) < 0 else ""
    digits, exponent = _digits(abs(value))
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return sign + _with_point(digits, exponent)
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{exponent}"


def _digits(value: float) -> tuple[str, int]:
    """Return the fewest digits that mean this double, and its power of ten."""
    count = next(n for n in range(1, 17) if float(f"{value:.{n}e}") == value)
    mantissa, _, exponent = f"{value:.{count}e}".partition("e")
    digits = mantissa.replace(".", "").rstrip("0") or "0"
    return digits, int(exponent)


def _with_point(digits: str, exponent: int) -> str:
    if exponent < 0:
        return f"0.{'0' * (-exponent - 1)}{digits}"
    digits = digits.ljust(exponent + 2, "0")
    return f"{digits[: exponent + 1]}.{digits[exponent + 1 :]}"


def _quoted(text: str) -> str:
    return f'"{_MUST_ESCAPE.sub(_escaped, text)}"'


def _escaped(found: re.Match[str]) -> str:
    return _SHORT_ESCAPES.get(found[0]) or f"\\u{ord(found[0]):04X}"


def _object(members: Iterable[tuple[str, str]]) -> str:
    return "{" + ",".join(f"{_quoted(key)}:{value}" for key, value in members) + "}"


def _array(items: Iterable[str]) -> str:
    return f"[{','.join(items)}]"


def _text(schema: Mapping[str, Any], key: str) -> str | None:
    value = schema.get(key)
    return value if isinstance(value, str) else None


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no string")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is no list")
    return value


def _int(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**31:
        raise TypeError(f"{value!r} is no size")
    return value


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")
