"""A table scan whose sources have names of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from databus.conf.source_names import SourceNames
from databus.relay.sources.table_scan import Chunk, KeyRange, TableScan
from databus.schemas.table import Table


class NamedScan:
    """Reads by the sources' names with a scan that knows tables only."""

    def __init__(self, scan: TableScan, names: SourceNames) -> None:
        self.name = scan.name
        self._scan = scan
        self._names = names

    def open(self) -> None:
        """Connect, and check that the tables can be read."""
        self._scan.open()

    def close(self) -> None:
        """Close every connection; may be called twice."""
        self._scan.close()

    def table(self, source: str) -> Table:
        """Return a source's table as it is now."""
        return self._scan.table(self._names.table_of(source)).named(source)

    def is_chunked(self, source: str) -> bool:
        """Return whether reading can go on after a restart."""
        return self._scan.is_chunked(self._names.table_of(source))

    def estimate_rows(self, source: str) -> int:
        """Return an estimate of the table's rows."""
        return self._scan.estimate_rows(self._names.table_of(source))

    def visible_scn(self) -> int:
        """Return an SCN up to which every transaction is visible to later reads."""
        return self._scan.visible_scn()

    def newest_scn(self) -> int:
        """Return the SCN at which the change log ends now."""
        return self._scan.newest_scn()

    def chunks(self, source: str, rows: int, resume: str | None = None) -> Iterator[Chunk]:
        """Read a table in chunks; see `TableScan.chunks`."""
        return _named(source, self._scan.chunks(self._names.table_of(source), rows, resume))

    def key_range(self, source: str) -> KeyRange | None:
        """Return the least and the greatest key; see `TableScan.key_range`."""
        return self._scan.key_range(self._names.table_of(source))

    def chunks_within(self, source: str, rows: int, within: KeyRange) -> Iterator[Chunk]:
        """Read the rows of a key range in chunks; see `TableScan.chunks_within`."""
        return _named(source, self._scan.chunks_within(self._names.table_of(source), rows, within))


def _named(source: str, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    found: Table | None = None
    named: Table | None = None
    for chunk in chunks:
        # One object for each definition, as the scan itself gives.
        if named is None or chunk.table is not found:
            found, named = chunk.table, chunk.table.named(source)
        yield replace(chunk, table=named)
