"""Where the assembler puts the changes of a transaction.

The assembler adds changes, takes them back and ends transactions. The classes of this file
collect changes in a list and make a `Transaction`, which is encoded later;
`compiled_assembler.py` encodes events at once.
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
        """Say whether there are any."""
        ...

    def add(self, changes: Iterable[Change], scn: int) -> None:
        """Add changes; `scn` is where in the log they stand."""

    def add_rows(
        self, layout: RowLayout, type_code: int, body: bytes, comment: str | None, scn: int
    ) -> None:
        """Add those of a rows event; raises ValueError, and then none of it was added."""

    def mark(self) -> Any:
        """Return what `cut` takes to come back to here."""
        ...

    def cut(self, mark: Any) -> None:
        """Take back what was added since `mark`."""


class Windows(Protocol):
    """Where changes go, and what is made of them."""

    def begin(self, origin: Origin) -> Changes:
        """Begin a transaction."""
        ...

    def announce(self, table_id: int, content: bytes, layout: RowLayout | None, scn: int) -> None:
        """Take note of the layout of the rows behind a TABLE_MAP."""

    def join(self, earlier: Changes | None, later: Changes, origin: Origin) -> Changes:
        """Append changes that end later to those of an earlier transaction, if any."""
        ...

    def finish(
        self, scn: int, timestamp_ns: int, changes: Changes, origin: Origin
    ) -> Transaction | None:
        """End a transaction that has changes; return it, or None if it was written already."""
        ...


class ChangeList:
    """Changes as they are."""

    def __init__(self, changes: Iterable[Change] = ()) -> None:
        self.changes: list[Change] = list(changes)

    def __bool__(self) -> bool:
        """Say whether there are any."""
        return bool(self.changes)

    def add(self, changes: Iterable[Change], scn: int) -> None:  # noqa: ARG002 - kept with each
        """Add changes."""
        self.changes.extend(changes)

    def add_rows(
        self, layout: RowLayout, type_code: int, body: bytes, comment: str | None, scn: int
    ) -> None:
        """Add those of a rows event."""
        self.add(row_changes(layout, type_code, body, comment), scn)

    def mark(self) -> int:
        """Return how many there are."""
        return len(self.changes)

    def cut(self, mark: int) -> None:
        """Drop the changes added since `mark`."""
        del self.changes[mark:]


class TransactionWindows:
    """Makes transactions, which are encoded later."""

    def begin(self, origin: Origin) -> ChangeList:  # noqa: ARG002
        """Begin a list."""
        return ChangeList()

    def announce(self, table_id: int, content: bytes, layout: RowLayout | None, scn: int) -> None:
        """Do nothing: rows are read in Python."""

    def join(self, earlier: Any, later: Any, origin: Origin) -> ChangeList:  # noqa: ARG002
        """Put two lists together."""
        return ChangeList((*(() if earlier is None else earlier.changes), *later.changes))

    def finish(
        self, scn: int, timestamp_ns: int, changes: Any, origin: Origin
    ) -> Transaction | None:
        """Return the transaction."""
        return Transaction(scn, timestamp_ns, tuple(changes.changes), origin)


def changes_of(found: Sequence[TableChange], query: Query, scn: int) -> list[Change]:
    """Return what a statement that did this to tables, as of an SCN, is to consumers."""
    emptied: list[Change] = [
        TableEmptied(change.table)
        for change in found
        if change.kind is ChangeKind.EMPTIED and change.table is not None
    ]
    touched = tuple(change.source for change in found if change.kind is ChangeKind.ALTERED)
    altered = tuple(
        replace(change.altered, change=replace(change.altered.change, scn=scn))
        for change in found
        if change.altered is not None
    )
    defined = TableDefined(touched, query.database, query.text, altered)
    return [*emptied, *([defined] if touched else [])]
