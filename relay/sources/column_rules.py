"""Chooses which columns of a table are captured, and masks values, as the settings say.

This is the one place where that is decided. All that a relay writes of a captured table passes
through `ColumnRules.shown`, whatever the kind of its source; what a scan reads, through
`masked_scan.py`. A compiled reader that would go round them is not used for a table with a view.

A column named in the settings must be in the table, so that one that was misspelt or has another
name now is not captured by mistake; a pattern may match no column.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace

from databus.conf.column_settings import ColumnSettings
from databus.conf.patterns import NamePatterns, is_pattern, unescaped
from databus.conf.settings import PhysicalSourceSettings
from databus.relay.sources.masks import Mask, MaskKey
from databus.relay.sources.source import (
    Change,
    RowChange,
    TableAltered,
    TableEmptied,
)
from databus.relay.sources.table_view import (
    ALL_OTHERS,
    Protected,
    TableView,
    ViewedColumn,
    refuse_another_name,
)
from databus.schemas.errors import SchemaError, SourceStoppedError
from databus.schemas.table import Column, Table
from databus.schemas.table_schema import avro_schema

_NO_KEY = "it has no primary key, so that all its columns are its key"


class ColumnRules:
    """The settings of columns of one physical source; without any, everything is shown as it is.

    Tables have the names that they have in the database.
    """

    def __init__(
        self,
        name: str = "",
        columns: Iterable[ColumnSettings] = (),
        key: MaskKey | None = None,
        listed: Iterable[str] = (),
    ) -> None:
        """`listed` are the tables that the settings list by name: no pattern has found them."""
        self._name = name
        self._entries = [_Entry(one, key) for one in columns]
        self._listed = frozenset(listed)
        self._views: dict[str, tuple[Table, TableView | None]] = {}

    @classmethod
    def of(cls, settings: PhysicalSourceSettings) -> ColumnRules:
        """Return the rules of a physical source; raises SettingsError for a key that it lacks."""
        entries = settings.columns
        file = settings.mask_key_file if any(one.hashes for one in entries) else None
        key = None if file is None else MaskKey.read(file)
        found = settings.found
        listed = [one.table for one in settings.named_tables if one.table not in found]
        return cls(settings.name, entries, key, listed)

    def __bool__(self) -> bool:
        return bool(self._entries)

    def apply_to(self, table: str) -> bool:
        """Return whether a table's columns are chosen or masked."""
        return any(entry.tables.may_match(table) for entry in self._entries)

    def shown(self, change: Change) -> Change:
        """Return what may be written of a change; raises SchemaError if that cannot be told."""
        if isinstance(change, RowChange):
            view = self.view(change.table)
            return change if view is None else view.row_change(change)
        if isinstance(change, TableEmptied):
            is_whole = not self.apply_to(change.table.source)
            return change if is_whole else replace(change, comment=None)
        if not any(map(self.apply_to, change.sources)):
            return change
        altered = tuple(map(self._altered, change.altered))
        return replace(change, altered=altered, statement=without_values(change.statement))

    def table(self, table: Table) -> Table:
        """Return what is captured of a table."""
        view = self.view(table)
        return table if view is None else view.table

    def view(self, table: Table) -> TableView | None:
        """Return what is captured of a table's rows; None if that is all, as it is.

        Raises SchemaError if the settings do not fit the table.
        """
        # Sources pass the same object for equal tables.
        known = self._views.get(table.source)
        if known is not None and (known[0] is table or known[0] == table):
            return known[1]
        view = self._view_of(table)
        self._views[table.source] = table, view
        return view

    def check(self, tables: Iterable[Table], scn: int) -> None:
        """Raise SourceStoppedError if the settings do not fit the tables as they are now."""
        tables = list(tables)
        for table in tables:
            try:
                self.view(table)
            except SchemaError as error:
                raise self._stopped(str(error), scn, [table]) from None
        for entry in self._entries:
            matching = [table for table in tables if entry.tables.may_match(table.source)]
            names = {column.name.lower() for table in matching for column in table.columns}
            for name in entry.names if matching else ():
                if name.lower() not in names:
                    text = f"`columns` names {name}, and none of the tables {entry} has that column"
                    raise self._stopped(text, scn, matching)

    def refuse_another_name(self, source: str, text: str) -> None:
        """Raise SchemaError if a protected column may have another name; see `table_view`."""
        _, view = self._views.get(source, (None, None))
        if view is not None:
            refuse_another_name(text, view)

    def weakened(self, table: Table, text: str) -> list[str]:
        """Return what a version protected of a table and is not any more: columns, and how."""
        return Protected.in_text(text).not_in(Protected.in_table(self.table(table)))

    def _stopped(self, text: str, scn: int, tables: list[Table]) -> SourceStoppedError:
        names = tuple(table.source for table in tables)
        return SourceStoppedError(self._name, scn, text, tables=names)

    def _altered(self, altered: TableAltered) -> TableAltered:
        if not self.apply_to(altered.table.source):
            return altered
        before = self._view_before(altered.before)
        view = self.view(altered.table)
        assert view is not None
        change = view.alteration(altered.change, before)
        return TableAltered(view.table, None if before is None else before.table, change)

    def _view_before(self, table: Table | None) -> TableView | None:
        """Return the view of a table as it was; None if today's settings do not fit it."""
        try:
            return None if table is None else self.view(table)
        except SchemaError:
            return None

    def _view_of(self, table: Table) -> TableView | None:
        entries = [entry for entry in self._entries if entry.tables.may_match(table.source)]
        if not entries:
            self._refuse_copies(table)
            return None
        _check_names(table, entries)
        types = [one["type"] for one in json.loads(avro_schema(table))["fields"]]
        shown: list[ViewedColumn] = []
        left_out = []
        for column, avro_type in zip(table.columns, types, strict=True):
            if any(entry.leaves_out(column.name) for entry in entries):
                _check_key(table, column, None)
                left_out.append(column.name)
                continue
            mask = _mask_of(table, column, entries)
            shown.append(_viewed(table, column, avro_type, mask, len(shown)))
        if not shown:
            raise SchemaError(f"table {table.source}: `columns` leaves all its columns out")
        # All that is not listed: a new column makes no new version.
        others = (ALL_OTHERS,) if any(entry.include for entry in entries) else ()
        columns = tuple(one.column for one in shown)
        kept = replace(table, columns=columns, left_out=others or tuple(left_out))
        return TableView(table, kept, tuple(shown))

    def _refuse_copies(self, table: Table) -> None:
        """Raise SchemaError for a table that a pattern found, and that looks like a copy.

        Tools that alter tables write all rows to a table of another name, and rename it.
        """
        if table.source in self._listed or not self._entries:
            return
        names = {column.name for column in table.columns}
        for _, view in self._views.values():
            if view is None:
                continue
            every = {column.name for column in view.raw.columns}
            protected = {name for name in every if view.protects(name)}
            if protected and protected <= names and 4 * len(names & every) >= 3 * len(every):
                raise SchemaError(
                    f"table {table.source} has the columns of {view.raw.source}, of which "
                    f"{', '.join(sorted(protected))} are protected, and no entry of `columns` "
                    "names it: add it to the `tables` of one, leave it out of `sources`, or list "
                    "it there by its name"
                )


class _Entry:
    """One entry of the settings."""

    def __init__(self, settings: ColumnSettings, key: MaskKey | None) -> None:
        self.tables = NamePatterns(settings.tables)
        self.include = NamePatterns(settings.include, fold_case=True)
        self._exclude = NamePatterns(settings.exclude, fold_case=True)
        self._masks = [
            (NamePatterns([name], fold_case=True), Mask(text, key if text == "hash" else None))
            for name, text in settings.mask.items()
        ]
        every = (*settings.include, *settings.exclude, *settings.mask)
        self.names = [unescaped(one) for one in every if not is_pattern(one)]
        # Tables that a pattern matches need not all have the same columns.
        self.is_exact = not any(map(is_pattern, settings.tables))

    def __str__(self) -> str:
        return ", ".join(self.tables.texts)

    def leaves_out(self, column: str) -> bool:
        """Return whether a column is not captured."""
        is_listed = not self.include or self.include.match(column)
        return not is_listed or self._exclude.match(column)

    def masks(self, column: str) -> Iterator[Mask]:
        """Yield the masks on a column's values."""
        return (mask for names, mask in self._masks if names.match(column))


def without_values(statement: str) -> str:
    """Return of a statement what it does: its first two words.

    Texts and numbers may be anywhere in it, and where a text ends depends on the SQL mode.
    """
    first = statement.split(maxsplit=2)[:2]
    return " ".join([*(word for word in first if word.isascii() and word.isalpha()), "…"])


def _check_names(table: Table, entries: Iterable[_Entry]) -> None:
    there = {column.name.lower() for column in table.columns}
    for entry in entries:
        for name in entry.names if entry.is_exact else ():
            if name.lower() not in there:
                columns = ", ".join(column.name for column in table.columns)
                raise SchemaError(
                    f"table {table.source} has no column {name}, which `columns` names; it has "
                    f"{columns}. If {name} has, or had, another name, write that, too, and both as "
                    f"patterns ({name[:-1]}?), which need not match; if it is gone, take it out; "
                    "then restart the relay"
                )


def _mask_of(table: Table, column: Column, entries: Iterable[_Entry]) -> Mask | None:
    found = {mask.text: mask for entry in entries for mask in entry.masks(column.name)}
    if len(found) > 1:
        raise SchemaError(
            f"table {table.source}, column {column.name}: `columns` masks it by "
            f"{' and by '.join(found)}: write one of them"
        )
    mask = next(iter(found.values()), None)
    if mask is not None:
        _check_key(table, column, mask)
    return mask


def _check_key(table: Table, column: Column, mask: Mask | None) -> None:
    """Raise SchemaError if rows could not be told apart any more."""
    is_key = column.key_position is not None or not table.key_columns
    if not is_key or (mask is not None and mask.is_hash):
        return
    why = "it is part of the key" if table.key_columns else _NO_KEY
    what = "left out" if mask is None else f"masked by {mask.text}"
    raise SchemaError(
        f"table {table.source}, column {column.name} cannot be {what}: {why}, by which rows are "
        "told apart; mask it by `hash`"
    )


def _viewed(
    table: Table, column: Column, avro_type: object, mask: Mask | None, position: int
) -> ViewedColumn:
    kinds = avro_type if isinstance(avro_type, list) else [avro_type]
    placed = replace(column, position=position)
    if mask is None:
        return ViewedColumn(column.position, placed, None)
    if mask.is_truncation and [one for one in kinds if one != "null"] != ["string"]:
        raise SchemaError(
            f"table {table.source}, column {column.name} ({column.sql_type}): only texts can be "
            "truncated; mask it by `hash` or `redact`"
        )
    # A date of MySQL may be null in any column, where it is none elsewhere.
    nullable = column.key_position is None and (column.nullable or "null" in kinds)
    masked = mask.column(placed, table.dialect, nullable=nullable)
    return ViewedColumn(column.position, masked, mask.change(nullable=nullable))
