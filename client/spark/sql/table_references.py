"""Find the sources that a SELECT names, and replace them by views. Pure.

Only the names are replaced: Spark runs the rest of the text as it was written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from databus.schemas.errors import SettingsError


class TablePlace:
    """A table's name in a text: the source, and the characters from `begin` to `end`.

    `needs_alias`: the text may qualify columns with the table's own name.
    """

    def __init__(self, table: exp.Table) -> None:
        if table.args.get("catalog"):
            name = ".".join(part.name for part in table.parts)
            raise SettingsError(
                f"{name}: a name of three parts or more is written in backquotes, `{name}`"
            )
        # `com.example.shop.Orders`, in one pair of backquotes, is a source's whole name.
        parts = [table.args["db"], table.this] if table.args.get("db") else [table.this]
        self.source = ".".join(part.name for part in parts)
        self.name = table.this.name
        self.needs_alias = not table.alias
        self.begin: int = parts[0].meta["start"]
        self.end: int = parts[-1].meta["end"] + 1


def table_places(sql: str) -> list[TablePlace]:
    """Return the places where a SELECT names sources; raises SettingsError if it is no SELECT."""
    try:
        parsed = sqlglot.parse_one(sql, dialect="spark")
    except SqlglotError as error:
        raise SettingsError(f"{sql!r} is not Spark SQL: {error}") from error
    if not isinstance(parsed, exp.Query):
        raise SettingsError(f"{sql!r} is not a SELECT")
    return [TablePlace(table) for table in parsed.find_all(exp.Table) if _is_source(table)]


def _is_source(table: exp.Table) -> bool:
    # A name without a schema is a WITH step or a view of the session.
    return bool(table.args.get("db")) or "." in table.name


def with_views(sql: str, places: Sequence[TablePlace], views: Mapping[str, str]) -> str:
    """Return the text with views in place of tables; the rest is unchanged."""
    for place in sorted(places, key=lambda one: one.begin, reverse=True):
        alias = f" AS `{place.name}`" if place.needs_alias else ""
        sql = f"{sql[: place.begin]}{views[place.source]}{alias}{sql[place.end :]}"
    return sql
