"""Parts of a JSON value that an update changed, put into the value before it. Pure.

With `binlog_row_value_options=PARTIAL_JSON` MySQL logs differences, one after
another until the field ends:

    operation (1): 0 replace, 1 insert, 2 remove
    path      length-encoded length, text: $ and then .name, ."quoted name" or [index]
    value     length-encoded length, binary JSON; not for remove

They are applied to the text that `rows/json_text.py` makes of the value before. Names
and numbers keep the server's order and digits.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from databus.relay.sources.mysql.rows.columns import ByteReader
from databus.relay.sources.mysql.rows.json_text import json_text

_REPLACE, _INSERT, _REMOVE = range(3)
_LEG = re.compile(r'\.(?:("(?:[^"\\]|\\.)*")|([^.\["]+))|\[(\d+)\]', re.DOTALL)


class _Number(str):
    """A number as the server writes it, digit for digit."""

    __slots__ = ()


class _Difference(NamedTuple):
    operation: int
    path: str
    legs: list[str | int]
    value: Any


def apply_differences(before: str, data: bytes) -> str:
    """Return a JSON text after differences; raises ValueError when they do not fit it."""
    try:
        document = _load(before)
        reader = ByteReader(data)
        while reader.position < len(data):
            document = _apply(document, _read(reader))
        return _text(document)
    except RecursionError as error:
        raise ValueError("JSON is nested too deep") from error


def _read(reader: ByteReader) -> _Difference:
    operation = reader.number(1)
    if operation > _REMOVE:
        raise ValueError(f"JSON operation {operation} is not known")
    path = reader.take(reader.packed()).decode("utf-8")
    value = None if operation == _REMOVE else _load(json_text(reader.take(reader.packed())))
    return _Difference(operation, path, _legs(path), value)


def _legs(path: str) -> list[str | int]:
    if not path.startswith("$"):
        raise ValueError(f"JSON path {path!r} cannot be read")
    legs: list[str | int] = []
    at = 1
    while at < len(path):
        found = _LEG.match(path, at)
        if found is None:
            raise ValueError(f"JSON path {path!r} cannot be read")
        quoted, plain, index = found.groups()
        legs.append(int(index) if index else json.loads(quoted) if quoted else plain)
        at = found.end()
    return legs


def _apply(document: Any, difference: _Difference) -> Any:
    operation, path, legs, value = difference
    if not legs:
        if operation != _REPLACE:
            raise ValueError("a whole JSON value can only be replaced")
        return value
    parent = document
    for leg in legs[:-1]:
        parent = parent[leg] if _has(parent, leg) else None
    last: Any = legs[-1]
    if operation == _INSERT:
        _insert(parent, last, value, path)
    elif not _has(parent, last):
        raise ValueError(f"the JSON value before has no {path}")
    elif operation == _REPLACE:
        parent[last] = value
    else:
        del parent[last]
    return document


def _has(container: Any, leg: str | int) -> bool:
    if isinstance(container, dict):
        return leg in container
    return isinstance(container, list) and isinstance(leg, int) and leg < len(container)


def _insert(parent: Any, leg: Any, value: Any, path: str) -> None:
    if isinstance(parent, list) and isinstance(leg, int):
        parent.insert(leg, value)
    elif isinstance(parent, dict) and isinstance(leg, str) and leg not in parent:
        parent[leg] = value
    else:
        raise ValueError(f"nothing can be inserted into the JSON value before at {path}")


def _load(text: str) -> Any:
    return json.loads(text, parse_int=_Number, parse_float=_Number, parse_constant=_Number)


def _text(value: Any) -> str:
    if isinstance(value, dict):
        names = sorted(value, key=lambda name: (len(name.encode()), name.encode()))
        return "{" + ", ".join(f"{_quoted(name)}: {_text(value[name])}" for name in names) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_text, value)) + "]"
    return value if isinstance(value, _Number) else _quoted(value)


def _quoted(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
