"""Templates of topics and keys: `{source}`, `{schema}`, `{table}` and the columns of the row."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from string import Formatter
from typing import Any

from databus.client.sinks.contract import Change
from databus.client.sinks.errors import SinkRefusedError
from databus.client.sinks.formats.source_names import split_source


class Template:
    """A text with names in braces; `{{` is a brace. Immutable."""

    def __init__(self, text: str) -> None:
        """Raises ValueError for a name with an index, an attribute or a format."""
        self._parts: list[tuple[str, str | None]] = []
        for literal, name, form, conversion in Formatter().parse(text):
            if name is not None and (not name or form or conversion or set(name) & set(".[]")):
                raise ValueError(f"{text!r}: write the names of columns in braces, and only them")
            self._parts.append((literal, name))

    @property
    def names(self) -> frozenset[str]:
        """The names in braces."""
        return frozenset(name for _, name in self._parts if name is not None)

    def text(self, values: Mapping[str, str]) -> str:
        """Return the text with these values."""
        return "".join(a if name is None else a + values[name] for a, name in self._parts)

    def fill(self, change: Change) -> str:
        """Return the text for a change; raise SinkRefusedError if a column is not there."""
        return "".join(
            literal if name is None else literal + _value(name, change)
            for literal, name in self._parts
        )


NAMES_OF_SOURCES = frozenset({"source", "schema", "table"})  # those of no column


def _value(name: str, change: Change) -> str:
    if name == "source":
        return change.source
    if name in ("schema", "table"):
        database, table = split_source(change.source)
        return database if name == "schema" else table
    for row in (change.after, change.key, change.before):
        if row is not None and name in row:
            return value_text(row[name])
    raise SinkRefusedError(f"{change.source}: there is no column {name} for the template", change)


def value_text(value: Any) -> str:
    """Return a value of a row as a part of a name: bytes in hexadecimal, plain digits."""
    if isinstance(value, bytes):
        return value.hex()
    return f"{value:f}" if isinstance(value, Decimal) else str(value)
