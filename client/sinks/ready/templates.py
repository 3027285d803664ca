"""Templates of topics and keys: `{source}`, `{schema}`, `{table}` and the columns of the row."""

from __future__ import annotations

from decimal import Decimal
from string import Formatter
from typing import Any

from databus.client.sinks.contract import Change
from databus.client.sinks.errors import SinkRefusedError
from databus.client.sinks.formats.source_names import split_source

_OF_SOURCE = frozenset({"source", "schema", "table"})  # the names of no column


class Template:
    """A text with names in braces; `{{` is a brace. Immutable.

    `names` are those in braces. With `has_columns` some of them are of columns.
    """

    def __init__(self, text: str) -> None:
        """Raises ValueError for a name with an index, an attribute or a format."""
        self._parts: list[tuple[str, str | None]] = []
        for literal, name, form, conversion in Formatter().parse(text):
            if name is not None and (not name or form or conversion or set(name) & set(".[]")):
                raise ValueError(f"{text!r}: write the names of columns in braces, and only them")
            self._parts.append((literal, name))
        self.names = frozenset(name for _, name in self._parts if name is not None)
        self.has_columns = not self.names <= _OF_SOURCE

    def of_source(self, source: str) -> str:
        """Return the text for a source, of a template without columns."""
        database, table = split_source(source)
        values = {"source": source, "schema": database, "table": table}
        return "".join(a if name is None else a + values[name] for a, name in self._parts)

    def fill(self, change: Change) -> str:
        """Return the text for a change; raise SinkRefusedError if a column is not there."""
        return "".join(
            literal if name is None else literal + _value(name, change)
            for literal, name in self._parts
        )


def check_without_columns(text: str) -> str:
    """Return the text of a template that names no columns; raise ValueError."""
    if strange := Template(text).names - _OF_SOURCE:
        raise ValueError(f"{{{min(strange)}}} is none of {{source}}, {{schema}} and {{table}}")
    return text


def part_sources(*templates: Template) -> bool:
    """Return whether all rows of a source have one place by templates, and no others have it."""
    names = frozenset[str]().union(*(one.names for one in templates))
    is_its_own = "source" in names or {"schema", "table"} <= names
    return names <= _OF_SOURCE and is_its_own


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
