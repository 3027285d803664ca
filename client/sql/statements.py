"""INSERT, upsert, UPDATE and DELETE of many rows at once, for each database.

Rows are tuples of what the driver takes (`client.sql.values`). What is written has no types: the
table may be another's. PostgreSQL and MySQL get statements of many rows, and SQLite, which is no
network away, one prepared statement for all rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, CursorResult
from sqlalchemy.types import TypeEngine

from databus.client.sql.names import MYSQL, formats, quoted, quoted_table
from databus.client.sql.numbered import numbered, with_numbers
from databus.client.sql.unprepared import unprepared
from databus.client.sql.values import from_driver

SqlRow = tuple[Any, ...]

_ROWS = 500
# Of a statement: below the 65,535 of PostgreSQL.
_VALUES = 30_000
# Texts and bytes of a statement; servers take 16 MiB unless they are told otherwise.
_CHARS = 4 << 20
# PostgreSQL plans (a, b) IN ((1, 2), …) in a time that grows with the square of the rows. With
# VALUES it does not, but then the types must be said.
_TUPLES = 40
# Of a parameter, until the driver is known to the text: no name has this character.
_PLACE = "\0"


class Statements:
    """Statements on one table, on one connection.

    `is_typed`: keys in the table compare with values of the types in its definition.
    """

    def __init__(self, connection: Connection, table: sa.Table, *, is_typed: bool = False) -> None:
        self._connection, self._table = connection, table
        self._dialect = connection.dialect
        self._is_typed = is_typed

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
        if self._dialect.supports_sane_multi_rowcount:
            return self._many(text, rows)
        return sum(self._execute(text, row).rowcount for row in rows)

    def set_rows(
        self, columns: Sequence[str], values: SqlRow, keys: Sequence[str], rows: Sequence[SqlRow]
    ) -> None:
        """Update the rows with these keys: all get the same values."""
        self._by_keys(f"UPDATE {self._target} SET {self._equal(columns, ', ')}", values, keys, rows)

    def end_versions(
        self, end: str, keys: Sequence[str], version: tuple[str, str], rows: Sequence[SqlRow]
    ) -> None:
        """Set `end` of the rows with a key where it is NULL and the version is an older one.

        A row has the end, the key, and the two parts of the version that follows.
        """
        major, minor = map(self._name, version)
        older = f"({major} < {_PLACE} OR ({major} = {_PLACE} AND {minor} < {_PLACE}))"
        is_open = f"{self._name(end)} IS NULL AND {older}"
        text = f"UPDATE {self._target} SET {self._equal([end])} "
        text += f"WHERE {self._equal(keys)} AND {is_open}"
        self._many(text, [(*row[:-1], row[-2], row[-1]) for row in rows])

    def delete(self, keys: Sequence[str], rows: Sequence[SqlRow]) -> None:
        """Delete the rows with these keys."""
        self._by_keys(f"DELETE FROM {self._target}", (), keys, rows)

    def select(
        self,
        columns: Sequence[str],
        keys: Sequence[str],
        rows: Sequence[SqlRow],
        nulls: Sequence[str] = (),
        types: Sequence[TypeEngine[Any]] = (),
    ) -> Iterator[SqlRow]:
        """Yield these columns of the rows with these keys in which the columns `nulls` are NULL.

        With the columns' `types` their values are Python's, else those of the driver.
        """
        where = "".join(f"{self._name(one)} IS NULL AND " for one in nulls)
        start = f"SELECT {self._names(columns)} FROM {self._target} WHERE {where}"
        for part in self._key_parts(keys, rows):
            with unprepared(self._connection):
                found = self._execute(f"{start}{self._among(keys, part)}", _flat(part))
            yield from from_driver(found, types, self._dialect) if types else map(tuple, found)

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
        conditions = [f"{self._name(one)} = {_PLACE}" for one in where]
        conditions += [f"{self._name(one)} IS NULL" for one in nulls]
        end = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        self._execute(f"UPDATE {self._target} SET {sets}{end}", values + equals)

    def delete_all(self, where: Sequence[str] = (), equals: SqlRow = ()) -> None:
        """Delete all rows in which the columns `where` have these values."""
        self._execute(f"DELETE FROM {self._target}{self._where(where)}", equals)

    @cached_property
    def _target(self) -> str:
        return quoted_table(self._dialect, self._table)

    @property
    def _is_mysql(self) -> bool:
        return self._dialect.name in MYSQL

    @property
    def _is_sqlite(self) -> bool:
        return self._dialect.name == "sqlite"

    @property
    def _is_postgres(self) -> bool:
        return self._dialect.name == "postgresql"

    def _insert(self, columns: Sequence[str]) -> str:
        return f"INSERT INTO {self._target} ({self._names(columns)}) VALUES "

    def _run(self, start: str, end: str, rows: Sequence[SqlRow]) -> None:
        if self._is_sqlite:
            if rows:
                self._many(f"{start}{_line(len(rows[0]))}{end}", rows)
            return
        for part in _parts(rows):
            places = ",".join([_line(len(part[0]))] * len(part))
            self._execute(f"{start}{places}{end}", _flat(part))

    def _by_keys(
        self, start: str, values: SqlRow, keys: Sequence[str], rows: Sequence[SqlRow]
    ) -> None:
        if self._is_sqlite:
            self._many(f"{start} WHERE {self._equal(keys)}", [values + row for row in rows])
            return
        for part in self._key_parts(keys, rows):
            self._execute(f"{start} WHERE {self._among(keys, part)}", values + _flat(part))

    def _key_parts(self, keys: Sequence[str], rows: Sequence[SqlRow]) -> Iterator[Sequence[SqlRow]]:
        is_short = self._is_postgres and len(keys) > 1 and not self._is_typed
        return _parts(rows, _TUPLES if is_short else _ROWS)

    def _among(self, keys: Sequence[str], rows: Sequence[SqlRow]) -> str:
        """Return the condition that a row has one of these keys."""
        if len(rows) == 1:
            # MariaDB reads the whole table for (a, b) IN ((1, 2)).
            return self._equal(keys)
        if len(keys) == 1:
            return f"{self._name(keys[0])} IN ({','.join([_PLACE] * len(rows))})"
        lines = [_line(len(keys))] * len(rows)
        is_list = not self._is_sqlite
        if self._is_postgres and self._is_typed:
            lines[0], is_list = f"({', '.join(map(self._cast, keys))})", False
        return f"({self._names(keys)}) IN ({'' if is_list else 'VALUES '}{','.join(lines)})"

    def _cast(self, column: str) -> str:
        kind = self._table.c[column].type
        # Without the length, to which a cast would cut texts.
        plain = sa.String() if isinstance(kind, sa.String) else kind
        return f"{_PLACE}::{plain.compile(self._dialect)}"

    def _execute(self, text: str, values: SqlRow) -> CursorResult[Any]:
        with numbered(self._connection) as is_numbered:
            text = with_numbers(text, _PLACE) if is_numbered else self._formatted(text)
            return self._connection.exec_driver_sql(text, values)

    def _many(self, text: str, rows: Sequence[SqlRow]) -> int:
        if not rows:
            return 0
        return self._connection.exec_driver_sql(self._formatted(text), list(rows)).rowcount

    def _formatted(self, text: str) -> str:
        if formats(self._dialect):
            return text.replace("%", "%%").replace(_PLACE, "%s")
        return text.replace(_PLACE, "?")

    def _where(self, columns: Sequence[str]) -> str:
        return f" WHERE {self._equal(columns)}" if columns else ""

    def _equal(self, columns: Iterable[str], between: str = " AND ") -> str:
        return between.join(f"{self._name(one)} = {_PLACE}" for one in columns)

    def _names(self, columns: Iterable[str]) -> str:
        return ", ".join(map(self._name, columns))

    def _name(self, column: str) -> str:
        return quoted(self._dialect, column)


def _line(width: int) -> str:
    return f"({','.join([_PLACE] * width)})"


def _parts(rows: Sequence[SqlRow], most: int = _ROWS) -> Iterator[Sequence[SqlRow]]:
    """Yield rows in parts that one statement may have."""
    if not rows:
        return
    most = max(1, min(most, _VALUES // len(rows[0])))
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
