"""Statements that changed rows which the log does not have, as the schema versions tell of them.

Each made a version of its tables, and the registry keeps those: the count survives a restart, and a
relay that reads another one counts the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from databus.registry.registry import SchemaRegistry
from databus.schemas.errors import SchemaError
from databus.schemas.table_change import UNLOGGED_ROWS, WHOLE_TABLE, change_of


class UnloggedRows(NamedTuple):
    """One source of which there are such statements."""

    source: str
    windows: int  # with such statements
    scn: int  # of the last one

    @property
    def warning(self) -> str:
        """What a person must know."""
        return (
            f"{self.source}: {self.windows} transactions changed rows by statements that the log "
            f"has without the rows, the last one at scn {self.scn}: these rows are unknown here. "
            "Bootstrap servers and `databus spark sync` read the table again by themselves, all "
            "other consumers must; and let sessions set binlog_format = ROW"
        )


class UnloggedCounts:
    """Counts them; looks at each schema version once. Used by one thread at a time."""

    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry
        self._seen: dict[str, tuple[int, UnloggedRows]] = {}  # versions looked at, and the result

    def of(self, sources: tuple[str, ...]) -> tuple[UnloggedRows, ...]:
        """Return what there is of some sources; nothing for those without such statements."""
        known = self._registry.sources()
        found = (self._count(source) for source in sources if source in known)
        return tuple(one for one in found if one.windows)

    def _count(self, source: str) -> UnloggedRows:
        versions = self._registry.versions(source)
        looked, found = self._seen.get(source, (0, UnloggedRows(source, 0, -1)))
        for scn in _scns(version.text for version in versions[looked:]):
            found = UnloggedRows(source, found.windows + 1, max(scn, found.scn))
        self._seen[source] = len(versions), found
        return found


def _scns(texts: Iterator[str]) -> Iterator[int]:
    for text in texts:
        try:
            change = change_of(text)
        except SchemaError:
            continue
        if change is not None and change.reload.get(WHOLE_TABLE) == UNLOGGED_ROWS:
            yield change.scn
