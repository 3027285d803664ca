"""INSERT, upsert, UPDATE and DELETE of many rows at once, for each database.

Rows are tuples of what the driver takes: no value goes through SQLAlchemy, whose types are those of
definitions, and the table may be another's. PostgreSQL and MySQL get statements of many rows, and
SQLite, which is no network away, one prepared statement for all rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from databus.client.sql.names import MYSQL, formats, quoted, quoted_table
from databus.client.sql.unprepared import unprepared

SqlRow = tuple[Any, ...]

_ROWS = 500
# Of a statement: below the 65,535 of PostgreSQL.
_VALUES = 30_000
# Texts and bytes of a statement; servers take 16 MiB unless they are told otherwise.
_CHARS = 4 << 20


class Statements:
    """Statements on one table, on one connection."""

    def __init__(self, connection: Connection, table: sa.Table) -> None:
        self._connection, self._table = connection, table
        self._dialect = connection.dialect

    def insert(self, columns: Sequence[str], rows: Sequence[SqlRow]) -> None:
        """Insert rows."""
        self._run(self._insert(columns), "", rows)

    def insert_new(
        self, columns: Sequence[str], keys: Sequence[str], rows: Sequence[SqlRow]
    ) -> None:
        """Insert rows whose key is not there."""
        if self._is_mysql:
            # IGNORE would make warnings of all errors.
            key = self._name(keys[0])
            end = f" ON DUPLICATE KEY UPDATE {key} = {key}"
        else:
            end = f" ON CONFLICT ({self._names(keys)}) DO NOTHING"
        self._run(self._insert(columns), end, rows)

    def upsert(self, columns: Sequence[str], keys: Sequence[str], rows: Sequence[SqlRow]) -> None:
        """Insert rows, or update those that are there; each key must be in one row."""
        others = [one for one in columns if one not in keys]
        if not others:
            self.insert_new(columns, keys, rows)
            return
        if self._is_mysql:
            sets = (f"{name} = VALUES({name})" for name in map(self._name, others))
            end = f" ON DUPLICATE KEY UPDATE {', '.join(sets)}"
        else:
            sets = (f"{name} = excluded.{name}" for name in map(self._name, others))
            end = f" ON CONFLICT ({self._names(keys)}) DO UPDATE SET {', '.join(sets)}"
        self._run(self._insert(columns), end, rows)

    def update(self, columns: Sequence[str], keys: Sequence[str], rows: Sequence[SqlRow]) -> int:
        """Update rows: each has the columns, then the key; return how many were there."""
        text = f"UPDATE {self._target} SET {self._equal(columns, ', ')} WHERE {self._equal(keys)}"
        return sum(self._execute(text, row) for row in rows)

    def end_versions(
        self, end: str, keys: Sequence[str], version: tuple[str, str], rows: Sequence[SqlRow]
    ) -> None:
        """Set `end` of the rows with a key where it is NULL and the version is an older one.

        A row has the end, the key, and the two parts of the version that follows.
        """
        major, minor = map(self._name, version)
        place = self._place
        older = f"({major} < {place} OR ({major} = {place} AND {minor} < {place}))"
        is_open = f"{self._name(end)} IS NULL AND {older}"
        text = f"UPDATE {self._target} SET {self._equal([end])} "
        text += f"WHERE {self._equal(keys)} AND {is_open}"
        self._many(text, [(*row[:-1], row[-2], row[-1]) for row in rows])

    def delete(self, keys: Sequence[str], rows: Sequence[SqlRow]) -> None:
        """Delete the rows with these keys."""
        if self._is_sqlite:
            self._many(f"DELETE FROM {self._target} WHERE {self._equal(keys)}", rows)
            return
        start = f"DELETE FROM {self._target} WHERE {self._tuple(keys)} IN ("
        for part in _parts(rows):
            self._execute(f"{start}{self._places(part)})", _flat(part))

    def select(
        self,
        columns: Sequence[str],
        keys: Sequence[str],
        rows: Sequence[SqlRow],
        nulls: Sequence[str] = (),
    ) -> Iterator[SqlRow]:
        """Yield these columns of the rows with these keys in which the columns `nulls` are NULL."""
        where = "".join(f"{self._name(one)} IS NULL AND " for one in nulls) + self._tuple(keys)
        start = f"SELECT {self._names(columns)} FROM {self._target} WHERE {where} IN ("
        for part in _parts(rows):
            places = self._places(part)
            values = f"VALUES {places}" if self._is_sqlite and len(keys) > 1 else places
            with unprepared(self._connection):
                found = self._connection.exec_driver_sql(f"{start}{values})", _flat(part))
            yield from map(tuple, found)

    def set_all(
        self,
        columns: Sequence[str],
        values: SqlRow,
        where: Sequence[str] = (),
        equals: SqlRow = (),
        nulls: Sequence[str] = (),
    ) -> None:
        """Update all rows in which the columns `where` have these values, and `nulls` are NULL."""
        sets = self._equal(columns, ", ")
        conditions = [f"{self._name(one)} = {self._place}" for one in where]
        conditions += [f"{self._name(one)} IS NULL" for one in nulls]
        end = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        self._execute(f"UPDATE {self._target} SET {sets}{end}", values + equals)

    def delete_all(self, where: Sequence[str] = (), equals: SqlRow = ()) -> None:
        """Delete all rows in which the columns `where` have these values."""
        self._execute(f"DELETE FROM {self._target}{self._where(where)}", equals)

    @cached_property
    def _target(self) -> str:
        return self._escaped(quoted_table(self._dialect, self._table))

    @property
    def _is_mysql(self) -> bool:
        return self._dialect.name in MYSQL

    @property
    def _is_sqlite(self) -> bool:
        return self._dialect.name == "sqlite"

    @cached_property
    def _place(self) -> str:
        return "%s" if formats(self._dialect) else "?"

    def _insert(self, columns: Sequence[str]) -> str:
        return f"INSERT INTO {self._target} ({self._names(columns)}) VALUES "

    def _run(self, start: str, end: str, rows: Sequence[SqlRow]) -> None:
        if self._is_sqlite:
            if rows:
                self._many(f"{start}{self._line(len(rows[0]))}{end}", rows)
            return
        for part in _parts(rows):
            places = ",".join([self._line(len(part[0]))] * len(part))
            self._execute(f"{start}{places}{end}", _flat(part))

    def _places(self, rows: Sequence[SqlRow]) -> str:
        width = len(rows[0])
        return ",".join([self._place if width == 1 else self._line(width)] * len(rows))

    def _line(self, width: int) -> str:
        return f"({','.join([self._place] * width)})"

    def _execute(self, text: str, values: SqlRow) -> int:
        return self._connection.exec_driver_sql(text, values).rowcount

    def _many(self, text: str, rows: Sequence[SqlRow]) -> None:
        if rows:
            self._connection.exec_driver_sql(text, list(rows))

    def _where(self, columns: Sequence[str]) -> str:
        return f" WHERE {self._equal(columns)}" if columns else ""

    def _equal(self, columns: Iterable[str], between: str = " AND ") -> str:
        return between.join(f"{self._name(one)} = {self._place}" for one in columns)

    def _tuple(self, columns: Sequence[str]) -> str:
        names = self._names(columns)
        return names if len(columns) == 1 else f"({names})"

    def _names(self, columns: Iterable[str]) -> str:
        return ", ".join(map(self._name, columns))

    def _name(self, column: str) -> str:
        return self._escaped(quoted(self._dialect, column))

    def _escaped(self, text: str) -> str:
        return text.replace("%", "%%") if formats(self._dialect) else text


def _parts(rows: Sequence[SqlRow]) -> Iterator[Sequence[SqlRow]]:
    """Yield rows in parts that one statement may have."""
    if not rows:
        return
    most = max(1, min(_ROWS, _VALUES // len(rows[0])))
    for start in range(0, len(rows), most):
        part = rows[start : start + most]
        if _chars(part) <= _CHARS:
            yield part
        else:
            yield from _below(part)


def _chars(rows: Sequence[SqlRow]) -> int:
    """Return about how long the texts and bytes of rows are together."""
    total = 0
    for column in zip(*rows, strict=True):
        try:
            total += len("".join(filter(None, column)))
        except TypeError:  # numbers, bytes
            total += sum(map(_length, column)) if any(map(_is_bytes, column)) else 0
    return total


def _below(rows: Sequence[SqlRow]) -> Iterator[Sequence[SqlRow]]:
    """Yield rows in parts whose texts are not too long together."""
    start = chars = 0
    for at, row in enumerate(rows):
        size = sum(map(_length, row))
        if chars + size > _CHARS and at > start:
            yield rows[start:at]
            start, chars = at, 0
        chars += size
    yield rows[start:]


def _length(value: object) -> int:
    return len(value) if isinstance(value, str | bytes) else 0


def _is_bytes(value: object) -> bool:
    return isinstance(value, bytes)


def _flat(rows: Sequence[SqlRow]) -> SqlRow:
    return tuple(chain.from_iterable(rows))
