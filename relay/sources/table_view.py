"""A table without some columns and with masks: what leaves the relay of it. Pure.

A view is made of one version of a table. All that is known of the table's rows passes through it
before it is written anywhere: rows, the rows before them, notes on columns, and what a statement
did to rows at rest.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from databus.relay.sources.masks import ChangeValue
from databus.relay.sources.source import Row, RowChange
from databus.schemas.avro_meta import column_of, field_meta, record_meta
from databus.schemas.errors import SchemaError
from databus.schemas.event.metadata import Notes
from databus.schemas.table import Column, Table
from databus.schemas.table_change import WHOLE_TABLE, TableChange

ALL_OTHERS = "*"  # in `Table.left_out`: all columns that are not listed
_MASKED = "its values are masked, and were changed before"
_MASKED_ANEW = "it is masked in another way now"
_SHOWN_NOW = "it was not captured before"


class ViewedColumn(NamedTuple):
    """A captured column: its place in the database's table, itself, and the mask on its values."""

    position: int
    column: Column
    change: ChangeValue | None

    @property
    def form(self) -> tuple[str, str, bool]:
        """What decides how a value is masked."""
        return self.column.mask, self.column.sql_type, self.column.nullable


@dataclass(frozen=True, slots=True, eq=False)
class TableView:
    """What is captured of a table.

    `raw` is the table as its database has it, and `table` has its columns as they leave the relay.
    """

    raw: Table
    table: Table
    columns: tuple[ViewedColumn, ...]

    @property
    def hides_key(self) -> bool:
        """Whether values of the key do not leave the relay as they are."""
        return any(column.mask for column in self.table.key_columns or self.table.columns)

    def protects(self, name: str) -> bool:
        """Return whether a column's values do not leave the relay as they are."""
        return all(one.column.name != name or one.change is not None for one in self.columns)

    def row(self, row: Row) -> dict[str, Any]:
        """Return a row's captured columns; those that the row lacks stay absent."""
        return {
            column.name: row[column.name] if change is None else change(row[column.name])
            for _, column, change in self.columns
            if column.name in row
        }

    def row_change(self, change: RowChange) -> RowChange:
        """Return a row change without the statement's comment, which may have any value in it."""
        before = None if change.before is None else self.row(change.before)
        notes = None if change.notes is None else self._notes(change.notes)
        row = self.row(change.row)
        return RowChange(self.table, change.op, row, before, None, notes, change.scn)

    def alteration(self, change: TableChange, before: TableView | None) -> TableChange:
        """Return what a statement did to the captured values of the rows at rest.

        `before` is the view of the table before it, None if it is not known. Raises SchemaError
        if a protected column is shown under another name now.
        """
        if change.is_emptied:
            return replace(change, renamed={}, added={}, reload={})
        if WHOLE_TABLE in change.reload:
            whole = {WHOLE_TABLE: change.reload[WHOLE_TABLE]}
            return replace(change, renamed={}, added={}, reload=whole)
        if before is None:
            return TableChange.unknown(change.scn, change.before)
        for name, old in change.renamed.items():
            if before.protects(old) and not self.protects(name):
                raise shown_as(self.table.source, old, name)
        now = {one.column.name: one for one in self.columns}
        was = {one.column.name: one for one in before.columns}
        renamed = {n: old for n, old in change.renamed.items() if n in now and old in was}
        added = {n: _masked(now[n], value) for n, value in change.added.items() if n in now}
        reload = {}
        for name, one in now.items():
            why = _why_reload(one, was.get(change.renamed.get(name, name)), change)
            if why:
                reload[name] = why
        return replace(change, renamed=renamed, added=added, reload=reload)

    def _notes(self, notes: Notes) -> Notes:
        places = {one.position: place for place, one in enumerate(self.columns)}
        plain = {one.column.name for one in self.columns if one.change is None}

        def kept(absent: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(places[position] for position in absent if position in places)

        def texts(raw: Mapping[str, str]) -> dict[str, str]:
            return {name: text for name, text in raw.items() if name in plain}

        absent, before_absent, raw, before_raw = notes
        return Notes(kept(absent), kept(before_absent), texts(raw), texts(before_raw))


def _masked(one: ViewedColumn, value: Any) -> Any:
    return value if one.change is None else one.change(value)


def _why_reload(one: ViewedColumn, was: ViewedColumn | None, change: TableChange) -> str:
    """Return why the values of a column must be read again; empty if they need not."""
    name = one.column.name
    if name in change.reload:
        return change.reload[name] if one.change is None else _MASKED
    if was is None:
        return "" if name in change.added else _SHOWN_NOW
    # Of a column without masks the change says it all.
    is_masked = one.column.mask or was.column.mask
    return _MASKED_ANEW if is_masked and one.form != was.form else ""


class Protected(NamedTuple):
    """What a schema version says of protected columns: masks by column, and which are left out."""

    masks: Mapping[str, str]
    left_out: frozenset[str]
    plain: frozenset[str]

    @classmethod
    def in_text(cls, text: str) -> Protected:
        """Return what a schema's text says."""
        record = json.loads(text)
        masks = {column_of(one): str(field_meta(one).get("mask", "")) for one in record["fields"]}
        return cls._of(masks, record_meta(record).get("leftOut", ()))

    @classmethod
    def in_table(cls, table: Table) -> Protected:
        """Return what a table that was viewed says."""
        return cls._of({column.name: column.mask for column in table.columns}, table.left_out)

    @classmethod
    def _of(cls, masks: Mapping[str, str], left_out: Collection[str]) -> Protected:
        masked = {name: mask for name, mask in masks.items() if mask}
        return cls(masked, frozenset(left_out), frozenset(masks) - masked.keys())

    def not_in(self, now: Protected) -> list[str]:
        """Return what is protected here and is not, or otherwise, in `now`: columns, and how."""
        found = [f"{name} (left out)" for name in self.left_out & now.plain]
        for name, mask in self.masks.items():
            kind, new = _kind(mask), _kind(now.masks.get(name, ""))
            if name in now.plain or (kind == "hash" and new not in ("hash", "redact", "")):
                found.append(f"{name} ({mask})")
            elif kind == new == "hash" and mask != now.masks[name]:
                found.append(f"{name} (hash with another key)")
        if ALL_OTHERS in self.left_out and ALL_OTHERS not in now.left_out:
            found.append("all columns that are not listed (left out)")
        return sorted(found)


def _kind(mask: str) -> str:
    return mask.partition(":")[0]


def refuse_another_name(text: str, view: TableView) -> None:
    """Raise SchemaError if a protected column may be shown under another name now.

    `text` is the version before. What was done to the table since is not known.
    """
    before, now = Protected.in_text(text), Protected.in_table(view.table)
    protected = before.left_out | before.masks.keys()
    gone = protected - {column.name for column in view.raw.columns} - {ALL_OTHERS}
    new = now.plain - before.plain - protected
    if gone and new:
        raise shown_as(view.raw.source, min(gone), min(new))


def shown_as(table: str, column: str, name: str) -> SchemaError:
    """Return the error about a protected column that may have another name now."""
    return SchemaError(
        f"table {table}: column {column} is protected by `columns`, and is or may be called {name} "
        f"now, which is not: write {name} where the settings have {column}, and restart the relay"
    )


def unprotected_here(table: Table, texts: Sequence[str]) -> str:
    """Return what the relay protects of a table and its reader here does not; empty if nothing.

    `texts` are the versions of the relay's schema, the newest last.
    """
    shown = Protected.in_text(texts[-1]).not_in(Protected.in_table(table)) if texts else []
    if not shown:
        return ""
    return (
        f"source {table.source}: the relay protects {', '.join(shown)}, and the settings here do "
        "not: write the same `columns` and `mask_key_file` in both settings files"
    )
