"""Applies the JSON differences that an update logged to the value before it. Pure.

With `binlog_row_value_options=PARTIAL_JSON` MySQL logs differences, one after
another until the field ends:

    operation (1): 0 replace, 1 insert, 2 remove
    path      length-encoded length, text: $ and then .name, ."quoted name", [index],
              [last] or [last-index]; a value that is no array counts as an array of itself
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
_LEG = re.compile(r'\.(?:("(?:[^"\\]|\\.)*")|([^.\["]+))|\[(last-|last|)(\d*)\]', re.DOTALL)


class _Number(str):
    """A number as the server writes it, digit for digit."""

    __slots__ = ()


class _Index(NamedTuple):
    """A position in an array, counted from its beginning or from its last element."""

    number: int
    from_end: bool

    def of(self, array: list[Any]) -> int:
        """Return the index in an array; a position before its beginning gives 0."""
        return max(len(array) - 1 - self.number, 0) if self.from_end else self.number

    def is_in(self, array: list[Any]) -> bool:
        """Whether an array has that position."""
        return self.number < len(array)


_Leg = str | _Index


class _Difference(NamedTuple):
    operation: int
    path: str
    legs: list[_Leg]
    value: Any


def apply_differences(before: str, data: bytes) -> str:
    """Apply differences to a JSON text; raises ValueError when they do not fit it."""
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


def _legs(path: str) -> list[_Leg]:
    if not path.startswith("$"):
        raise ValueError(f"JSON path {path!r} cannot be read")
    legs: list[_Leg] = []
    at = 1
    while at < len(path):
        found = _LEG.match(path, at)
        if found is None or found[0] in ("[]", "[last-]"):
            raise ValueError(f"JSON path {path!r} cannot be read")
        quoted, plain, end, index = found.groups()
        if end is not None:
            legs.append(_Index(int(index or 0), bool(end)))
        else:
            legs.append(json.loads(quoted) if quoted else plain)
        at = found.end()
    return legs


def _apply(document: Any, difference: _Difference) -> Any:
    operation, path, legs, value = difference
    if not legs and operation != _REPLACE:
        raise ValueError("a whole JSON value can only be replaced")
    whole = [document]  # so that the root, too, is an element of a container
    holder: Any = whole
    key: Any = 0
    for leg in legs if operation == _REPLACE else legs[:-1]:
        container = holder[key]
        if not _has(container, leg):
            raise ValueError(f"the JSON value before has no {path}")
        if isinstance(leg, str):
            holder, key = container, leg
        elif isinstance(container, list):
            holder, key = container, leg.of(container)
    if operation == _REPLACE:
        holder[key] = value
    elif operation == _INSERT:
        _insert(holder[key], legs[-1], value, path)
    else:
        _remove(holder[key], legs[-1], path)
    return whole[0]


def _has(container: Any, leg: _Leg) -> bool:
    if isinstance(leg, str):
        return isinstance(container, dict) and leg in container
    return leg.is_in(container if isinstance(container, list) else [container])


def _insert(parent: Any, leg: _Leg, value: Any, path: str) -> None:
    if isinstance(parent, list) and isinstance(leg, _Index):
        parent.insert(leg.of(parent), value)
    elif isinstance(parent, dict) and isinstance(leg, str) and leg not in parent:
        parent[leg] = value
    else:
        raise ValueError(f"nothing can be inserted into the JSON value before at {path}")


def _remove(parent: Any, leg: _Leg, path: str) -> None:
    if not _has(parent, leg):
        raise ValueError(f"the JSON value before has no {path}")
    if isinstance(leg, str):
        del parent[leg]
    elif isinstance(parent, list):
        del parent[leg.of(parent)]
    else:
        raise ValueError(f"nothing can be removed from the JSON value before at {path}")


def _load(text: str) -> Any:
    return json.loads(text, parse_int=_Number, parse_float=_Number, parse_constant=_Number)


def _text(value: Any) -> str:
    if isinstance(value, dict):
        # The order of keys in binary JSON, which the server's text has, too.
        names = sorted(value, key=lambda name: (len(name.encode()), name.encode()))
        return "{" + ", ".join(f"{_quoted(name)}: {_text(value[name])}" for name in names) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_text, value)) + "]"
    return value if isinstance(value, _Number) else _quoted(value)


def _quoted(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
