"""Rules for the names of sources and of their tables. Pure.

A source is captured from one table. Its name is the table's (`shop.orders`), or one of its
own (`com.example.shop.Orders`). Source kinds know tables only; events, schemas, requests,
stores and metrics have the source's name. `SourceNames` translates between the two.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from databus.conf.patterns import NamePatterns, head, is_pattern

# Each part is a name in an Avro schema: the last one the record's, the others its namespace.
_OWN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
_PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
# In a name without `table`, these schemes take what follows the first dot for the table.
_TABLE_SCHEMES = ("mysql", "sqlite")


class NamedTable(NamedTuple):
    """A source's name and table; `is_given` tells whether the settings give the table."""

    name: str
    table: str
    is_given: bool = True

    @property
    def has_own_name(self) -> bool:
        """Whether the name is not the table's."""
        return self.name != self.table


class SourceNames:
    """The sources of one physical source, by name and by table."""

    def __init__(self, sources: Iterable[NamedTable] = ()) -> None:
        self._tables = {source.name: source.table for source in sources}
        self._names = {table: name for name, table in self._tables.items()}

    def adopt(self, other: SourceNames) -> None:
        """Take the names and tables of another translation."""
        self._tables, self._names = other._tables, other._names

    @property
    def have_own(self) -> bool:
        """Whether any source has a name of its own."""
        return any(name != table for name, table in self._tables.items())

    def table_of(self, name: str) -> str:
        """Return a source's table. A table's name is returned as it is."""
        return self._tables.get(name, name)

    def name_of(self, table: str) -> str:
        """Return the name of the source that is captured from a table."""
        return self._names.get(table, table)


def name_problem(name: str) -> str:
    """Return why a request cannot name a source; empty if it can.

    A request lists names or ids of sources with commas between them, with or without spaces.
    """
    if not name or name != name.strip():
        return "is no source name: one begins and ends with something else than a space"
    if "," in name or not name.isprintable():
        return (
            "cannot be captured: a comma or a control character in a name cannot be told from "
            "what stands between two names in a request; give the source a name of its own: "
            '{ name = "…", table = "…" }'
        )
    if name.isdecimal():
        return "is no source name: in a request a number is a source's id; write DATABASE.TABLE"
    return ""


def source_problems(sources: Sequence[NamedTable], scheme: str) -> Iterator[str]:
    """Yield what is wrong with the sources of one physical source, whose URI has the scheme."""
    for source in sources:
        if problem := _problem(source, scheme):
            yield problem
    for name in doubles(source.name for source in sources):
        yield f"source {name} is listed more than once"
    for table in doubles(source.table for source in set(sources)):
        names = " and ".join(sorted({s.name for s in sources if s.table == table}))
        yield f"table {table} is captured as {names}: a table is one source"
    tables = {source.table for source in sources}
    for source in sources:
        if source.has_own_name and source.name in tables:
            yield (
                f"{source.name!r} is the name of the source of table {source.table} and the table "
                "of another source: choose another name"
            )


def pattern_problems(
    patterns: Iterable[object], listed: Iterable[NamedTable], scheme: str
) -> Iterator[str]:
    """Yield what is wrong with the patterns beside the listed sources of a physical source."""
    texts = [str(one) for one in patterns]
    if texts and scheme not in _TABLE_SCHEMES:
        yield f"{texts[0]!r} is a pattern, which {scheme}: does not know: list the sources"
    for text in texts:
        first = head(text)
        if scheme == "mysql" and not all(text.removeprefix("!").partition(".")):
            yield f"{text!r} names tables of no database: write DATABASE.TABLE, as in shop.*"
        if scheme == "sqlite" and "." in text and is_pattern(first):
            yield f"{text!r}: what is before the dot is a name that you choose, without * and ?"
    if texts and all(text.startswith("!") for text in texts):
        yield f"{texts[0]!r} leaves out of what no pattern takes in: add one, such as shop.*"
    left_out = NamePatterns(["*", *(text for text in texts if text.startswith("!"))])
    for name, table, _ in listed:
        if not left_out.match(table):
            yield f"source {name} is listed, and a pattern with ! leaves its table out"


def doubles(names: Iterable[str]) -> list[str]:
    """Return the names that occur more than once."""
    return sorted(name for name, count in Counter(names).items() if count > 1)


def unclear_sources(sources: Iterable[NamedTable], scheme: str) -> Iterator[str]:
    """Yield which names look like a source's own name, but are read as a table's."""
    for name, table, is_given in sources:
        first, _, rest = name.partition(".")
        if scheme in _TABLE_SCHEMES and not is_given and "." in rest:
            where = f"table {rest!r}" + (f" of database {first!r}" if scheme == "mysql" else "")
            last = ".".join(name.split(".")[-2:])
            yield (
                f"{name!r} is read as the name of {where}; for another table write "
                f'{{ name = "{name}", table = "{last}" }}, for that one '
                f'{{ name = "{name}", table = "{table}" }}'
            )


def espresso_names(sources: Iterable[NamedTable]) -> list[str]:
    """Return the names of two parts, which stock Databus 2 clients cannot read."""
    return [source.name for source in sources if source.name.count(".") == 1]


def name_warnings(sources: Iterable[NamedTable]) -> Iterator[str]:
    """Yield a warning for each name of its own that stock Databus 2 clients cannot read."""
    own = [source for source in sources if source.has_own_name]
    for name in espresso_names(own):
        yield (
            f"{name!r} has two parts: stock Databus 2 clients take such a source for one of "
            "Espresso and fail; a name of one part, or of three and more, is right for all clients"
        )


def _problem(source: NamedTable, scheme: str) -> str:
    name, table, is_given = source
    if problem := name_problem(name):
        return f"{name!r} {problem}"
    if source.has_own_name and not _OWN_NAME.fullmatch(name):
        return (
            f"{name!r} is no source name: the parts of a name that is not the table's have "
            "letters, digits and _, do not begin with a digit, and have dots between them"
        )
    if name in _PRIMITIVES:
        return (
            f"{name!r} is a type of Avro, which no schema may be named after: give the source "
            'another name, { name = "…", table = "' + table + '" }'
        )
    if not table or table != table.strip() or not table.isprintable():
        return f"{table!r} is no table"
    if scheme == "mysql" and not all(table.partition(".")):
        way = "write DATABASE.TABLE" + ("" if is_given else ", or `table` beside the name")
        return f"{table!r} is no table of a server: {way}"
    return ""
