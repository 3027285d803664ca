"""The names of the watched tables. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from databus.conf.patterns import NO_PATTERNS, NamePatterns
from databus.relay.sources.mysql.tables.ddl_tokens import TableName
from databus.schemas.errors import SettingsError


class Names:
    """The watched tables' names, compared by the server's rule for upper and lower case."""

    def __init__(
        self,
        sources: Sequence[str],
        *,
        fold_case: bool = False,
        patterns: NamePatterns = NO_PATTERNS,
        found: Collection[str] = (),
        matched: Collection[str] = (),
    ) -> None:
        """`found` are sources that the patterns have found, in the databases `matched`."""
        self._fold_case = fold_case
        self._patterns = patterns.folding_case() if fold_case else patterns
        self._matched = frozenset(self.key((name, ""))[0] for name in matched)
        self.sources = tuple(sources)
        self.keys = {source: self.key(split_name(source)) for source in sources}
        self._found = frozenset(found)
        self._known = {key: source for source, key in self.keys.items()}
        for source, key in self.keys.items():
            if self._known[key] != source:
                raise SettingsError(
                    f"sources {source} and {self._known[key]} are one table: this server does not "
                    "tell upper from lower case (lower_case_table_names); list it once"
                )

    @property
    def databases(self) -> frozenset[str]:
        """The databases of the watched tables."""
        return self._matched.union(database for database, _ in self._known)

    def find(self, database: str, table: str) -> str | None:
        """Return a table's source name, or None when it is not watched."""
        return self._known.get(self.key((database, table)))

    def is_found(self, source: str) -> bool:
        """Return whether a pattern has found a source, so that nobody has named it."""
        return source in self._found

    def is_wanted(self, name: TableName) -> bool:
        """Return whether the patterns match a table that is not watched."""
        return self.key(name) not in self._known and self._patterns.match(".".join(name))

    def unmatched(self, tables: Iterable[TableName]) -> list[str]:
        """Return the patterns that match none of some tables."""
        return self._patterns.unmatched(map(".".join, tables))

    def key(self, name: TableName) -> TableName:
        """Return the form that all names of the same table share."""
        return (name[0].lower(), name[1].lower()) if self._fold_case else name


def split_name(source: str) -> TableName:
    """Return a source's database and table; raises SettingsError."""
    database, dot, table = source.partition(".")
    if not database or not dot or not table:
        raise SettingsError(f"source {source!r}: write database.table")
    return database, table
