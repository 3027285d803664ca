"""The sink `clickhouse`: copies of tables, or all their changes, in ClickHouse.

At least once, and harmless: each row has the version of its change, and what is older than the row
that is there, or comes again, changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from databus.client.sinks.contract import Change, ChangeOp, Opening, Position
from databus.client.sinks.ready.clickhouse.options import ClickHouseOptions
from databus.client.sinks.ready.clickhouse.server import Server
from databus.client.sinks.ready.clickhouse.tables import Tables
from databus.client.sinks.ready.clickhouse.writing import TableWriter
from databus.client.sinks.ready.following import may_truncate

_WITHOUT_ROWS = frozenset({ChangeOp.DDL, ChangeOp.STATEMENT})


class ClickHouseSink:
    """Inserts rows with versions; at least once."""

    follows_schemas = True

    Options = ClickHouseOptions

    def __init__(self, options: ClickHouseOptions) -> None:
        """Raises SettingsError for files that cannot be read."""
        self._options = options
        self._server = Server(options)
        self._tables: Tables | None = None
        self._held: dict[str, list[Change]] = {}  # by source: their order matters within it only

    def open(self, opening: Opening) -> Position | None:
        """Make the table of notes, or find it. The target keeps no position."""
        self._tables = Tables(self._options, self._server, opening)
        self._tables.notes.begin(is_first=opening.is_first)
        return None

    def write(self, changes: Sequence[Change]) -> None:
        """Hold the changes until `flush`."""
        for change in changes:
            if change.op not in _WITHOUT_ROWS:
                self._held.setdefault(change.source, []).append(change)

    def flush(self) -> Position | None:
        """Insert what is held: of each table and schema at once."""
        held, self._held = self._held, {}
        for source, changes in held.items():
            self._write(source, changes)
        return None

    def close(self) -> None:
        """Close the connection; what was not flushed is dropped."""
        self._held = {}
        self._server.close()

    def _write(self, source: str, changes: Sequence[Change]) -> None:
        tables = self._tables
        assert tables is not None
        # A history may be pruned by those who read it.
        is_checked = not self._options.mode.has_keys
        for run in _runs(changes):
            target = tables.of(source, run[0].schema)
            if target is None:
                continue
            if not is_checked:
                tables.notes.check_rows(target.name, source)
                is_checked = True
            writer = TableWriter(self._server, target, self._options.batch_bytes)
            if run[0].op is not ChangeOp.TRUNCATE:
                writer.write(run)
            elif may_truncate(run[0], self._options.ddl):
                writer.truncate(run[0])
            else:
                continue
            tables.notes.filled(target.name, source)


def _runs(changes: Sequence[Change]) -> Iterator[list[Change]]:
    """Yield changes of one schema together, and each TRUNCATE alone."""
    for (is_truncate, _), run in groupby(changes, _group):
        if is_truncate:
            yield from ([one] for one in run)
        else:
            yield list(run)


def _group(change: Change) -> tuple[bool, object]:
    return change.op is ChangeOp.TRUNCATE, change.schema
