"""Changes of one table become statements: the net change of each key, or a row of each change."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any

from sqlalchemy.engine import Connection

from databus.client.sinks.contract import Change, ChangeOp, Row
from databus.client.sinks.errors import SinkRefusedError
from databus.client.sinks.ready.net_changes import net_changes
from databus.client.sinks.ready.sql.tables import TargetTable
from databus.client.sinks.ready.sql.values import are_finite, check_number, has_nul
from databus.client.sinks.ready.sql.versions import Key, newer_than, versions_of
from databus.client.sql.modes import INDEX, SCN, TO, WriteMode
from databus.client.sql.statements import SqlRow, Statements
from databus.client.sql.values import Convert

log = logging.getLogger(__name__)

_Values = Callable[[Change], Row]
_after: _Values = attrgetter("after")
_key: _Values = attrgetter("key")


class TableWriter:
    """Writes to one table, within the transaction of its connection."""

    def __init__(self, connection: Connection, target: TargetTable, *, may_repeat: bool) -> None:
        self._target, self._may_repeat = target, may_repeat
        self._statements = Statements(connection, target.table)
        self._dialect = connection.dialect
        self._converts = dict(zip(target.columns, target.converts, strict=True))
        self._names = dict(zip(target.columns, target.names, strict=True))
        self._columns = frozenset(target.columns)

    def write(self, changes: Sequence[Change]) -> None:
        """Write changes without a TRUNCATE; raise SinkRefusedError for a value."""
        match self._target.shape.mode:
            case WriteMode.APPEND_HISTORY:
                self._append(changes)
            case WriteMode.SCD2:
                self._write_versions(changes)
            case _:
                self._write_rows(changes)

    def _write_rows(self, changes: Sequence[Change]) -> None:
        net = net_changes(changes, self._target.width)
        if self._target.shape.mode is WriteMode.MIRROR:
            gone = [one for one in net if one.after is None]
            self._delete(gone)
            net = [one for one in net if one.after is not None] if gone else net
        if self._target.unique:
            self._replace(net)
            return
        width = self._target.width
        full: list[Change] = []
        partial: list[Change] = []
        for one in net:
            is_full = one.after is not None and len(one.after) == width
            (full if is_full else partial).append(one)
        self._upsert(full, self._target.columns, _after)
        self._write_partial(partial)

    def truncate(self, change: Change) -> None:
        """Write a TRUNCATE."""
        shape, source = self._target.shape, (self._target.source,)
        where = (shape.source_column,) if shape.source_column else ()
        equals = source if where else ()
        if shape.mode is WriteMode.MIRROR:
            self._statements.delete_all(where, equals)
        elif shape.mode is WriteMode.SCD2:
            self._statements.set_all((TO,), (shape.time(change),), where, equals, nulls=(TO,))
        elif shape.mode.has_keys:
            self._statements.set_all(shape.marked, shape.marks(change), where, equals)
        else:
            rows = [shape.values(change)]
            self._statements.insert_new(shape.extras, self._target.key_names, rows)

    def _append(self, changes: Sequence[Change]) -> None:
        """Insert a row of each change: the row after it, of a delete that before it."""
        groups = _by_columns(changes, lambda one: one.after or one.before or one.key)
        for columns, group in groups.items():
            rows = self._rows(group, columns, lambda one: one.after or one.before or one.key)
            names = (*self._named(columns), *self._target.shape.extras)
            self._statements.insert_new(names, self._target.key_names, rows)

    def _write_versions(self, changes: Sequence[Change]) -> None:
        """Insert the versions that begin, and end those that changes have left open."""
        target, shape = self._target, self._target.shape
        changes = newer_than(changes, self._current_scns(changes))
        keys = self._key_rows(changes)
        key_of = dict(zip(map(id, changes), keys, strict=True))
        begun = {id(one.change): one for one in versions_of(changes)}
        lacking = [key_of[at] for at, one in begun.items() if len(one.row) != target.width]
        held = self._held(self._kept, lacking, nulls=(TO,))
        beginnings = [one.change for one in begun.values()]
        for named, group in _by_columns(beginnings, lambda one: begun[id(one)].row).items():
            columns = [name for name in named if name in self._columns]
            rows = self._rows(
                group,
                columns,
                lambda one: begun[id(one)].row,
                lambda one: shape.version(one, begun[id(one)].until),
            )
            names = (*self._named(columns), *shape.extras)
            if len(named) == target.width:
                self._insert_versions(names, rows)
                continue
            for change, row in zip(group, rows, strict=True):
                line = held.get(_place(key_of[id(change)]), {}) | dict(zip(names, row, strict=True))
                self._insert_versions(tuple(line), [tuple(line.values())])
        # Each change does, in their order: a version that came again is there, and may be open.
        ends = [(shape.time(one), *key, one.scn, one.index)
                for one, key in zip(changes, keys, strict=True)]  # fmt: skip
        self._statements.end_versions(TO, target.key_names, (SCN, INDEX), ends)

    def _insert_versions(self, names: Sequence[str], rows: Sequence[SqlRow]) -> None:
        # One that comes again is there already.
        keys = (*self._target.key_names, *self._target.shape.versions)
        self._statements.insert_new(names, keys, rows)

    def _current_scns(self, changes: Sequence[Change]) -> dict[Key, int]:
        """Return the SCN of the current version of each row of a snapshot."""
        rows = [one for one in changes if one.op is ChangeOp.SNAPSHOT]
        keys = self._key_rows(rows)
        held = self._held((*self._target.key_names, SCN), keys, nulls=(TO,))
        lines = ((one, held.get(_place(key))) for one, key in zip(rows, keys, strict=True))
        return {tuple(one.key.values()): line[SCN] for one, line in lines if line is not None}

    @property
    def _kept(self) -> tuple[str, ...]:
        """All columns of the table."""
        return (*self._target.names, *self._target.shape.extras, *self._target.others)

    def _held(
        self, columns: Sequence[str], keys: Sequence[SqlRow], nulls: Sequence[str] = ()
    ) -> dict[Key, dict[str, Any]]:
        """Return columns, those of the key among them, of the rows with these keys, by key."""
        places = [columns.index(name) for name in self._target.key_names]
        found = self._statements.select(columns, self._target.key_names, keys, nulls)
        return {
            _place(tuple(row[at] for at in places)): dict(zip(columns, row, strict=True))
            for row in found
        }

    def _write_partial(self, changes: Sequence[Change]) -> None:
        """Write changes that do not have all columns: the others keep their values."""
        updates = [one for one in changes if one.op is ChangeOp.UPDATE and one.after is not None]
        others = [one for one in changes if one.op is not ChangeOp.UPDATE or one.after is None]
        for columns, group in _by_columns(others, _left).items():
            self._upsert(group, columns, _left)
        for columns, group in _by_columns(updates, _left).items():
            self._update(group, columns)

    def _update(self, changes: Sequence[Change], columns: Sequence[str]) -> None:
        target = self._target
        written = [one for one in columns if one not in target.keys and one in self._columns]
        names = (*self._named(written), *target.shape.marked)
        if not names:
            return
        values = self._rows(changes, written, _left, target.shape.marks)
        keys = self._key_rows(changes)
        rows = [value + key for value, key in zip(values, keys, strict=True)]
        found = self._statements.update(names, target.key_names, rows)
        if found < len(rows):
            log.warning(
                "%s: %d rows that were changed are not in the table %s, and not all of their "
                "columns were logged: load the table again",
                target.source, len(rows) - found, target.table.name,
            )  # fmt: skip

    def _upsert(self, changes: Sequence[Change], columns: Sequence[str], values: _Values) -> None:
        if changes:
            written = [one for one in columns if one in self._columns]
            rows = self._rows(changes, written, values)
            names = (*self._named(written), *self._target.shape.extras)
            self._statements.upsert(names, self._target.key_names, rows)

    def _delete(self, changes: Sequence[Change]) -> None:
        keys = self._key_rows(changes)
        if self._dialect.name == "postgresql":
            # It cannot have rows with these keys.
            keys = [key for key in keys if not any(map(has_nul, key))]
        self._statements.delete(self._target.key_names, keys)

    def _replace(self, changes: Sequence[Change]) -> None:
        """Delete the rows and insert them anew: rows may have swapped a unique value."""
        target = self._target
        keys = self._key_rows(changes)
        held = self._held(self._kept, keys)
        lines: list[dict[str, Any]] = []
        for change, key in zip(changes, keys, strict=True):
            line = held.get(_place(key), {})
            columns = [one for one in _left(change) if one in self._columns]
            (values,) = self._rows([change], columns, _left)
            names = (*self._named(columns), *target.shape.extras)
            lines.append(line | dict(zip(names, values, strict=True)))
        self._statements.delete(target.key_names, keys)
        if self._may_repeat:
            self._make_room(lines)
        groups: dict[tuple[str, ...], list[SqlRow]] = {}
        for line in lines:
            groups.setdefault(tuple(line), []).append(tuple(line.values()))
        for names, rows in groups.items():
            self._statements.insert(names, rows)

    def _make_room(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Delete rows with the same unique values: they come again later, with others."""
        for unique in self._target.unique:
            rows = [tuple(line.get(name) for name in unique) for line in lines]
            self._statements.delete(unique, [row for row in rows if None not in row])

    def _named(self, columns: Sequence[str]) -> tuple[str, ...]:
        return tuple(self._names[one] for one in columns)

    def _key_rows(self, changes: Sequence[Change]) -> list[SqlRow]:
        target = self._target
        return self._rows(changes, target.keys, _key, target.shape.key_values, -1)

    def _rows(
        self,
        changes: Sequence[Change],
        columns: Sequence[str],
        values: _Values,
        extras: Callable[[Change], SqlRow] | None = None,
        place: int = 1,
    ) -> list[SqlRow]:
        """Return rows for the driver: the columns, and the extras behind them (-1: before)."""
        rows = list(map(values, changes))
        if not columns:
            found: list[SqlRow] = [()] * len(rows)
        elif len(columns) == 1:
            found = [(row[columns[0]],) for row in rows]
        else:
            found = list(map(itemgetter(*columns), rows))
        self._check_numbers(changes, columns, found)
        converts = [self._converts[one] for one in columns]
        if found and any(converts):
            found = _converted(found, converts)
        given = extras or self._target.shape.values
        if not given(changes[0]) if changes else True:
            return found
        if place < 0:
            return [given(one) + row for one, row in zip(changes, found, strict=True)]
        return [row + given(one) for one, row in zip(changes, found, strict=True)]

    def _check_numbers(
        self, changes: Sequence[Change], columns: Sequence[str], rows: Sequence[SqlRow]
    ) -> None:
        """Raise SinkRefusedError for a number that the database cannot store."""
        for at, column in enumerate(columns):
            if column not in self._target.checked or are_finite([row[at] for row in rows]):
                continue
            for change, row in zip(changes, rows, strict=True):
                try:
                    check_number(row[at], self._dialect)
                except ValueError as error:
                    problem = f"{change.source}, column {column}: {error}"
                    raise SinkRefusedError(problem, change) from error


def _converted(rows: Sequence[SqlRow], converts: Sequence[Convert | None]) -> list[SqlRow]:
    lists: list[Sequence[Any]] = list(zip(*rows, strict=True))
    for at, convert in enumerate(converts):
        if convert is not None:
            lists[at] = [None if one is None else convert(one) for one in lists[at]]
    return list(zip(*lists, strict=True))


def _left(change: Change) -> Row:
    """Return the values that are there after a change: of a delete, what is known of the row."""
    if change.after is not None:
        return {**change.key, **change.after}
    return {**(change.before or {}), **change.key}


def _by_columns(changes: Sequence[Change], values: _Values) -> dict[tuple[str, ...], list[Change]]:
    groups: dict[tuple[str, ...], list[Change]] = {}
    for one in changes:
        groups.setdefault(tuple(values(one)), []).append(one)
    return groups


def _place(key: SqlRow) -> Key:
    """Return a key of a row, as the driver takes it or returns it, as one of a dictionary."""
    return tuple(bytes(one) if isinstance(one, bytearray | memoryview) else one for one in key)
