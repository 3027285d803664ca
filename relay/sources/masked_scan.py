"""A table scan that reads what a relay captures of the tables' columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from databus.relay.sources.column_rules import ColumnRules
from databus.relay.sources.table_scan import Chunk, KeyRange, TableScan
from databus.relay.sources.table_view import TableView
from databus.schemas.errors import SchemaError, SourceStoppedError
from databus.schemas.table import Table


class MaskedScan:
    """Reads with a scan that knows whole tables, and passes on what the rules show of them.

    Rows are read whole from the database, and masked before anything else has them. A `resume` has
    values of the key, and is kept: a table whose key is masked is read at once, without one.
    """

    def __init__(self, scan: TableScan, rules: ColumnRules) -> None:
        self.name = scan.name
        self._scan = scan
        self._rules = rules

    def open(self) -> None:
        """Connect, and check that the tables can be read."""
        self._scan.open()

    def close(self) -> None:
        """Close every connection; may be called twice."""
        self._scan.close()

    def table(self, source: str) -> Table:
        """Return what is captured of a source's table as it is now."""
        table = self._scan.table(source)
        view = self._view(table)
        return table if view is None else view.table

    def is_chunked(self, source: str) -> bool:
        """Return whether reading can go on after a restart."""
        return not self._hides_key(source) and self._scan.is_chunked(source)

    def estimate_rows(self, source: str) -> int:
        """Return an estimate of the table's rows."""
        return self._scan.estimate_rows(source)

    def visible_scn(self) -> int:
        """Return an SCN up to which every transaction is visible to later reads."""
        return self._scan.visible_scn()

    def newest_scn(self) -> int:
        """Return the SCN at which the change log ends now."""
        return self._scan.newest_scn()

    def chunks(self, source: str, rows: int, resume: str | None = None) -> Iterator[Chunk]:
        """Read a table in chunks; see `TableScan.chunks`."""
        return self._shown(self._scan.chunks(source, rows, resume))

    def key_range(self, source: str) -> KeyRange | None:
        """Return the least and the greatest key; see `TableScan.key_range`."""
        return None if self._hides_key(source) else self._scan.key_range(source)

    def chunks_within(self, source: str, rows: int, within: KeyRange) -> Iterator[Chunk]:
        """Read the rows of a key range in chunks; see `TableScan.chunks_within`."""
        return self._shown(self._scan.chunks_within(source, rows, within))

    def _shown(self, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        for chunk in chunks:
            view = self._view(chunk.table)
            if view is None:
                yield chunk
                continue
            rows = [view.row(row) for row in chunk.rows]
            resume = "" if chunk.resume is not None and view.hides_key else chunk.resume
            yield replace(chunk, table=view.table, rows=rows, resume=resume, write_events=None)

    def _hides_key(self, source: str) -> bool:
        view = self._view(self._scan.table(source))
        return view is not None and view.hides_key

    def _view(self, table: Table) -> TableView | None:
        try:
            return self._rules.view(table)
        except SchemaError as error:
            raise SourceStoppedError(self.name, 0, str(error)) from None
