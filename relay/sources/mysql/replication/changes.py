"""Collects the changes of a transaction for the assembler.

The assembler adds changes, removes them on a rollback and ends transactions. The classes of
this file collect changes in a list and make a `Transaction`, which is encoded later.
`compiled_assembler.py` encodes events immediately.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from databus.relay.sources.mysql.binlog.events import Query
from databus.relay.sources.mysql.rows.changes import RowLayout, row_changes
from databus.relay.sources.mysql.tables.captured_tables import ChangeKind, TableChange
from databus.relay.sources.source import (
    Change,
    Origin,
    TableDefined,
    TableEmptied,
    Transaction,
)


class Changes(Protocol):
    """The changes of one transaction, in order."""

    def __bool__(self) -> bool:
        """Return whether there are changes."""
        ...

    def add(self, changes: Iterable[Change], scn: int) -> None:
        """Add changes; `scn` is their position in the log."""

    def add_rows(
        self, layout: RowLayout, type_code: int, body: bytes, comment: str | None, scn: int
    ) -> None:
        """Add the changes of a rows event: all of them, or none and raise ValueError."""

    def mark(self) -> Any:
        """Return the current length, as `cut` takes it."""
        ...

    def cut(self, mark: Any) -> None:
        """Remove the changes added since `mark`."""


class Windows(Protocol):
    """Makes windows or transactions of changes."""

    def begin(self, origin: Origin) -> Changes:
        """Begin a transaction."""
        ...

    def announce(self, table_id: int, content: bytes, layout: RowLayout | None, scn: int) -> None:
        """Set the layout of the rows that follow a TABLE_MAP."""

    def join(self, earlier: Changes | None, later: Changes, origin: Origin) -> Changes:
        """Append the changes of a later transaction to those of an earlier one, if any."""
        ...

    def finish(
        self, scn: int, timestamp_ns: int, changes: Changes, origin: Origin
    ) -> Transaction | None:
        """End a transaction that has changes; return it, or None if it was written already."""
        ...


class ChangeList:
    """A list of changes."""

    def __init__(self, changes: Iterable[Change] = ()) -> None:
        self.changes: list[Change] = list(changes)

    def __bool__(self) -> bool:
        """Return whether there are changes."""
        return bool(self.changes)

    def add(self, changes: Iterable[Change], scn: int) -> None:  # noqa: ARG002 - each has its own
        """Add changes."""
        self.changes.extend(changes)

    def add_rows(
        self, layout: RowLayout, type_code: int, body: bytes, comment: str | None, scn: int
    ) -> None:
        """Add the changes of a rows event."""
        self.add(row_changes(layout, type_code, body, comment, scn), scn)

    def mark(self) -> int:
        """Return the number of changes."""
        return len(self.changes)

    def cut(self, mark: int) -> None:
        """Drop the changes added since `mark`."""
        del self.changes[mark:]


class TransactionWindows:
    """Makes transactions that are encoded later."""

    def begin(self, origin: Origin) -> ChangeList:  # noqa: ARG002
        """Return an empty list."""
        return ChangeList()

    def announce(self, table_id: int, content: bytes, layout: RowLayout | None, scn: int) -> None:
        """Do nothing: rows are read in Python."""

    def join(self, earlier: Any, later: Any, origin: Origin) -> ChangeList:  # noqa: ARG002
        """Join two lists."""
        return ChangeList((*(() if earlier is None else earlier.changes), *later.changes))

    def finish(
        self, scn: int, timestamp_ns: int, changes: Any, origin: Origin
    ) -> Transaction | None:
        """Return the transaction."""
        return Transaction(scn, timestamp_ns, tuple(changes.changes), origin)


def changes_of(found: Sequence[TableChange], query: Query, scn: int) -> list[Change]:
    """Return the changes that consumers get for a statement, given its effects on tables."""
    emptied: list[Change] = [
        TableEmptied(change.table)
        for change in found
        if change.kind is ChangeKind.EMPTIED and change.table is not None
    ]
    kinds = ChangeKind.ALTERED, ChangeKind.UNLOGGED
    touched = tuple(change.source for change in found if change.kind in kinds)
    is_dml = any(change.kind is ChangeKind.UNLOGGED for change in found)
    altered = tuple(
        replace(change.altered, change=replace(change.altered.change, scn=scn))
        for change in found
        if change.altered is not None
    )
    defined = TableDefined(touched, query.database, query.text, altered, is_dml)
    return [*emptied, *([defined] if touched else [])]
