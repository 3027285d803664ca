"""What a schema says beside Avro: the string attribute `meta` of a record and of its fields.

    "meta": "source=shop.orders;dialect=mysql;key=id,line;"
    "meta": "column=price;position=2;sqlType=decimal(10,2);precision=10;scale=2;"

Members are `name=value;` in a fixed order. In a value `%`, `;` and control characters are
written as in a URL (`%25`, `%3B`), in an item of the list `key` the comma is, too.

It is one string because Avro 1.4.0, which makes the id of a schema (`avro_normal_form`),
drops an attribute that is not a string, and keeps no order among several. LinkedIn's own
schemas have such a `meta`, with other names in it: nothing of those is read here.

Earlier versions of this project wrote a JSON object of the same names instead. Both forms
are read: a user's files may have the older one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote

Meta = Mapping[str, Any]

_VALUE_ESCAPES = re.compile(r"[%;\x00-\x1f]")
_ITEM_ESCAPES = re.compile(r"[%;,\x00-\x1f]")
_EMPTY = "%"  # an item without a character: SQLite allows such a name


def record_meta(record: Mapping[str, Any]) -> Meta:
    """Return what a record says of its table: `source`, `table`, `dialect`, `key` and more.

    What it does not say is left out. `key` is a list, and so is `leftOut`, the columns that the
    relay does not capture; `change` is the text of a JSON object.
    """
    return _read(record.get("meta"), _RECORD)


def field_meta(field: Mapping[str, Any]) -> Meta:
    """Return what a field says of its column: `column`, `position`, `sqlType`, `key` and more.

    `key` is the place in the primary key, from 0; `precision` and `scale` are a decimal's; `mask`
    is what the relay puts in place of the values.
    What it does not say is left out.
    """
    meta = field.get("meta")
    # Many tables have columns with the same text, and each is read several times.
    return _read_field(meta) if isinstance(meta, str) else _read(meta, _FIELD)


@lru_cache(maxsize=1 << 14)
def _read_field(meta: str) -> Meta:
    return MappingProxyType(_read(meta, _FIELD))


def column_of(field: Mapping[str, Any]) -> str:
    """Return the column's own name: Avro does not allow every one."""
    return str(field_meta(field).get("column", field["name"]))


def record_meta_text(meta: Meta) -> str:
    """Return the text that `record_meta` reads as these members."""
    return _write(meta, _RECORD)


def field_meta_text(meta: Meta) -> str:
    """Return the text that `field_meta` reads as these members."""
    return _write(meta, _FIELD)


def decimal_members(avro_type: Any) -> dict[str, int]:
    """Return the members for a field of this type: of a decimal, its precision and scale.

    The type has them as numbers, which the id of a schema does not see.
    """
    for branch in avro_type if isinstance(avro_type, list) else [avro_type]:
        if isinstance(branch, dict) and branch.get("logicalType") == "decimal":
            found = {name: branch.get(name) for name in ("precision", "scale")}
            return {name: value for name, value in found.items() if isinstance(value, int)}
    return {}


def _read(meta: object, kinds: Mapping[str, _Kind]) -> Meta:
    if isinstance(meta, dict):
        return meta
    if not isinstance(meta, str):
        return {}
    found = {}
    for member in meta.split(";"):
        name, is_member, value = member.partition("=")
        if is_member and name in kinds:
            read, _ = kinds[name]
            found[name] = read(value)
    return {name: value for name, value in found.items() if value is not None}


def _write(meta: Meta, kinds: Mapping[str, _Kind]) -> str:
    written = (f"{name}={write(meta[name])};" for name, (_, write) in kinds.items() if name in meta)
    return "".join(written)


def _read_int(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None


def _read_list(text: str) -> list[str]:
    return ["" if item == _EMPTY else unquote(item) for item in text.split(",")] if text else []


def _write_list(items: Iterable[str]) -> str:
    return ",".join(_ITEM_ESCAPES.sub(_escaped, item) or _EMPTY for item in items)


def _write_text(text: str) -> str:
    return _VALUE_ESCAPES.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    return f"%{ord(found[0]):02X}"


# How a member is read and written.
_Kind = tuple[Callable[[str], Any], Callable[[Any], str]]
_TEXT: _Kind = (unquote, _write_text)
_INT: _Kind = (_read_int, str)
_LIST: _Kind = (_read_list, _write_list)

_RECORD = {
    **{"source": _TEXT, "table": _TEXT, "dialect": _TEXT, "key": _LIST},
    **{"leftOut": _LIST, "change": _TEXT},
}
_FIELD = {
    **{"column": _TEXT, "position": _INT, "sqlType": _TEXT, "key": _INT},
    **{"precision": _INT, "scale": _INT, "mask": _TEXT},
}
RECORD_MEMBERS = frozenset(_RECORD)
FIELD_MEMBERS = frozenset(_FIELD)
