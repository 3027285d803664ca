"""Makes queries that read a table in primary key order and resume after a row. Pure.

A position is the key's column values as the server sent them. The query has them as
literals that compare in the order of the index: texts as bytes of the column's own
character set, so that the column's collation decides, and numbers as numbers. A key that
cannot be compared in this way has no order here: ENUM and SET
compare as texts and are sorted by number; a YEAR compares with 0 as with 2000
on some servers; floating point numbers and BIT would need luck; an index over
prefixes or in several directions does not have the rows in the order of ORDER BY.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from databus.relay.sources.mysql.rows.charsets import BINARY
from databus.relay.sources.mysql.rows.columns import parse_sql_type
from databus.relay.sources.mysql.tables.ddl_tokens import quote

_INTEGERS = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint"})
_NUMBERS = _INTEGERS | {"decimal"}
_QUOTED = frozenset({"date", "time", "datetime", "timestamp", "uuid", "inet4", "inet6"})
_HEX = frozenset({"char", "varchar", "binary", "varbinary"})
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_QUOTABLE = re.compile(r"[0-9a-f:. -]+")


@dataclass(frozen=True, slots=True)
class KeyPart:
    """One column of a primary key; `collation` is "" for a column without text."""

    name: str
    sql_type: str
    charset: str | None
    collation: str
    is_prefix: bool = False
    is_descending: bool = False

    @property
    def is_ordered(self) -> bool:
        """Whether comparisons with a literal follow the order of the index."""
        known = parse_sql_type(self.sql_type).name in _NUMBERS | _QUOTED | _HEX
        return known and not self.is_prefix and not self.is_descending


@dataclass(frozen=True, slots=True)
class KeyOrder:
    """The order of a key's columns, as SQL."""

    parts: tuple[KeyPart, ...]

    @property
    def terms(self) -> str:
        """The columns of ORDER BY."""
        return ", ".join(quote(part.name) for part in self.parts)

    @property
    def is_integer(self) -> bool:
        """Whether the key is one integer column, so that it can be split into ranges."""
        return [parse_sql_type(part.sql_type).name in _INTEGERS for part in self.parts] == [True]

    def within(self, first: int, last: int) -> str:
        """Return the condition of a range of an integer key."""
        return f"{self.terms} BETWEEN {first} AND {last}"

    def resume(self, key: Sequence[bytes]) -> str:
        """Return the resume text for the position after a row with this key."""
        texts = [_text(part, raw) for part, raw in zip(self.parts, key, strict=True)]
        return json.dumps({"order": self._name(), "after": texts})

    def condition(self, resume: str | None) -> str:
        """Return the condition for the rows after a position; empty for none or another order.

        Raises ValueError when the text is not a position.
        """
        if not resume:
            return ""
        place = json.loads(resume)
        if place["order"] != self._name():
            return ""
        literals = [_literal(p, text) for p, text in zip(self.parts, place["after"], strict=True)]
        return _after([quote(part.name) for part in self.parts], literals)

    def _name(self) -> str:
        return ", ".join(f"{p.name} {p.sql_type} {p.collation}".rstrip() for p in self.parts)


def order_of(parts: Sequence[KeyPart]) -> KeyOrder | None:
    """Return a key's order; None when there is no key or a read could not resume in it."""
    if not parts or not all(part.is_ordered for part in parts):
        return None
    return KeyOrder(tuple(parts))


def _after(columns: Sequence[str], literals: Sequence[str]) -> str:
    # Not `(a, b) > (x, y)`: servers do not look that up in an index.
    column, literal = columns[0], literals[0]
    if len(columns) == 1:
        return f"{column} > {literal}"
    rest = _after(columns[1:], literals[1:])
    return f"{column} >= {literal} AND ({column} > {literal} OR ({column} = {literal} AND {rest}))"


def _text(part: KeyPart, raw: bytes) -> str:
    return raw.hex() if parse_sql_type(part.sql_type).name in _HEX else raw.decode("ascii")


def _literal(part: KeyPart, text: str) -> str:
    kind = parse_sql_type(part.sql_type).name
    if kind in _HEX:
        return f"{_introducer(part.charset)}x'{bytes.fromhex(text).hex()}'"
    pattern = _NUMBER if kind in _NUMBERS else _QUOTABLE
    if not pattern.fullmatch(text):
        raise ValueError(f"{text!r} is not a {part.sql_type}, so reading cannot continue after it")
    return text if kind in _NUMBERS else f"'{text}'"


def _introducer(charset: str | None) -> str:
    if charset in (None, BINARY):
        return ""
    # Servers have several names for the three-byte one; the bytes are the same.
    return f"_{'utf8mb4' if charset == 'utf8mb3' else charset} "
