"""The database and the table in the name of a source."""

from __future__ import annotations

from typing import NamedTuple


class SourceName(NamedTuple):
    """The parts of `shop.orders`; without a dot all of it is the table."""

    database: str
    table: str


def split_source(source: str) -> SourceName:
    """Return the parts of the name of a source."""
    database, dot, table = source.partition(".")
    return SourceName(database, table) if dot else SourceName("", source)
