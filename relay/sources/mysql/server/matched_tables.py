"""Finds the tables that the patterns of a source match, as the server has them now."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from databus.conf.patterns import NamePatterns, head, is_pattern, unescaped
from databus.conf.settings import PhysicalSourceSettings
from databus.relay.sources.mysql.server.catalog import ServerCatalog
from databus.relay.sources.mysql.server.checks import cascade_problems
from databus.relay.sources.mysql.tables.ddl_tokens import TableName
from databus.relay.sources.mysql.tables.names import Names
from databus.relay.sources.source import TablesFoundError


class WatchedNames(NamedTuple):
    """The names of a source's tables, and warnings about others that patterns match."""

    names: Names
    warnings: tuple[str, ...] = ()


def watched_names(
    catalog: ServerCatalog,
    settings: PhysicalSourceSettings,
    must_exist: Callable[[Names], list[str]],
    fold_case: bool,
    stop_on: Callable[[Sequence[str], Collection[str]], None],
) -> WatchedNames:
    """Return the names to watch; `must_exist` returns those that the server must have now.

    `stop_on` raises an error if there are problems, of some tables alone or of all.

    A table that a pattern has found may be gone: its rows may still be in the log. One that
    cannot be captured is left out, with a warning. Raises TablesFoundError for the others.
    """
    listed = [name for name in settings.source_names if name not in settings.found]
    names = catalog.names = Names(listed, fold_case=fold_case)
    new = must_exist(names)
    stop_on(catalog.table_problems(new), ())
    known = [source for source in names.sources if source not in new]
    cascades, shown = catalog.cascades(known), catalog.shown_unnamed(known)
    stop_on([*cascade_problems(cascades), *shown.values()], {*shown, *(c.source for c in cascades)})
    if not settings.patterns:
        return WatchedNames(names)
    matched = match(catalog, settings, fold_case=fold_case)
    catalog.names = matched.names
    if matched.found:
        raise TablesFoundError(matched.found)
    return WatchedNames(matched.names, tuple(matched.warnings()))


class Matched(NamedTuple):
    """What the patterns of a source match at a server, beside the sources that it has.

    `unusable` has the problem of each table that cannot be captured, `unmatched` the patterns
    that match no table.
    """

    names: Names
    found: list[str]
    unusable: dict[str, str]
    unmatched: list[str]

    def warnings(self) -> Iterator[str]:
        """Yield what a person should know."""
        for problem in self.unusable.values():
            yield f"{problem}; a pattern of `sources` matches it, and it is left out"
        if self.unmatched:
            yield f"no table matches {', '.join(self.unmatched)} yet (sources)"


def match(catalog: ServerCatalog, settings: PhysicalSourceSettings, *, fold_case: bool) -> Matched:
    """Return what the patterns of a source match now."""
    tables, patterns = catalog.tables(), settings.patterns
    names = Names(
        settings.source_names,
        fold_case=fold_case,
        patterns=patterns,
        found=settings.found,
        matched=_databases(patterns.texts, tables, fold_case=fold_case),
    )
    new = [".".join(name) for name in tables if names.is_wanted(name)]
    unusable = _unusable(catalog, new, fold_case=fold_case)
    found = [name for name in new if name not in unusable]
    return Matched(names, found, unusable, names.unmatched(tables))


def _databases(
    patterns: Iterable[str], tables: Iterable[TableName], *, fold_case: bool
) -> set[str]:
    """Return the databases whose tables the patterns may match, now or later."""
    heads = {head(one) for one in patterns if not one.startswith("!")}
    matching = NamePatterns(heads)
    matching = matching.folding_case() if fold_case else matching
    named = {unescaped(one) for one in heads if not is_pattern(one)}
    return named.union(database for database, _ in tables if matching.match(database))


def _unusable(catalog: ServerCatalog, tables: list[str], *, fold_case: bool) -> dict[str, str]:
    """Return why some tables cannot be captured, by name."""
    found = {}
    for table in tables:
        catalog.names = Names((table,), fold_case=fold_case)
        if problems := catalog.table_problems((table,)):
            found[table] = "; ".join(problems)
    return found
