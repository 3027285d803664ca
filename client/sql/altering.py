"""SQL statements that change a database table's columns, or swap in another table.

In MySQL and MariaDB every ALTER commits. There the change is one statement, which
also writes a mark into the table's comment: after a crash the mark tells whether
the change was done. The server ends an ALTER whose client has died. In other
databases the statements are part of the transaction that writes the commit log.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator, Sequence
from datetime import UTC
from decimal import Decimal
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.schema import CreateColumn

from databus.client.sql.column_types import DecimalAsText
from databus.client.sql.names import MYSQL, quoted, quoted_table, quoted_text, undoubled
from databus.schemas.errors import IncompatibleSchemaError

log = logging.getLogger(__name__)

_LOOK_S = 0.5


class AlteredColumn(Protocol):
    """A column of the new table: the old column `was`, or `value` in all rows."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def was(self) -> str | None: ...  # noqa: D102
    @property
    def value(self) -> Any: ...  # noqa: D102


_MARK = re.compile(r" ?\[databus [^\]]*\]$")
_PASSING = "_databus_passing_"


class Altering:
    """The statements that make one table of another: `columns` are those of the new one."""

    def __init__(
        self,
        old: sa.Table,
        new: sa.Table,
        columns: Sequence[AlteredColumn],
        dialect: sa.Dialect,
    ) -> None:
        self._old, self._new = old, new
        self._columns = columns
        self._dialect = dialect
        self._table = quoted_table(dialect, old)

    @property
    def _added(self) -> list[AlteredColumn]:
        return [one for one in self._columns if one.was is None]

    @property
    def _kept(self) -> list[tuple[AlteredColumn, str]]:
        return [(one, one.was) for one in self._columns if one.was is not None]

    @property
    def _gone(self) -> list[str]:
        used = {was for _, was in self._kept}
        return [one.name for one in self._old.columns if one.name not in used]

    def in_one(self, comment: str | None = None) -> str:
        """Return one MySQL statement, which also sets the table's comment; "" if nothing is new."""
        parts = [f"DROP COLUMN {self._quoted(name)}" for name in self._gone]
        for one, was in self._kept:
            if self._type(one.name) != self._old_type(was):
                parts.append(f"CHANGE COLUMN {self._quoted(was)} {self._definition(one.name)}")
            elif one.name != was:
                parts.append(f"RENAME COLUMN {self._quoted(was)} TO {self._quoted(one.name)}")
        for one in self._added:
            value = "" if one.value is None else f" DEFAULT ({self._literal(one)})"
            parts.append(f"ADD COLUMN {self._definition(one.name)}{value}")
        if comment is not None:
            parts.append(f"COMMENT = {quoted_text(self._dialect, comment)}")
        return f"ALTER TABLE {self._table} {', '.join(parts)}" if parts else ""

    def one_by_one(self) -> Iterator[str]:
        """Yield the statements for a database whose transactions include DDL."""
        for name in self._gone:
            yield f"ALTER TABLE {self._table} DROP COLUMN {self._quoted(name)}"
        moved = [(one, was) for one, was in self._kept if one.name != was]
        # Through temporary names: two columns may have swapped their names.
        for number, (_, was) in enumerate(moved):
            yield self._rename(was, f"{_PASSING}{number}")
        for number, (one, _) in enumerate(moved):
            yield self._rename(f"{_PASSING}{number}", one.name)
        for one, was in self._kept:
            if self._type(one.name) != self._old_type(was):
                yield from self._retype(one)
            yield from self._padded(one.name, was)
        for one in self._added:
            yield f"ALTER TABLE {self._table} ADD COLUMN {self._definition(one.name)}"
            if one.value is not None:
                yield f"UPDATE {self._table} SET {self._quoted(one.name)} = {self._literal(one)}"

    def _retype(self, one: AlteredColumn) -> Iterator[str]:
        name, kind = self._quoted(one.name), self._type(one.name)
        if self._dialect.name != "sqlite":
            how = f"ALTER COLUMN {name} TYPE {kind} USING {name}::{kind}"
            yield f"ALTER TABLE {self._table} {how}"
        elif _affinity(kind) != _affinity(self._old_type(one.was or one.name)):
            if self._new.c[one.name].primary_key:
                raise IncompatibleSchemaError(
                    self._old.name,
                    one.name,
                    f"its type {self._old_type(one.was or one.name)} must become {kind}, but "
                    "SQLite cannot alter a key column: DROP the table, then fill it with "
                    "databus spark load … --again",
                )
            # SQLite cannot change a column's type: the values move to a new column of the same
            # name.
            yield self._rename(one.name, _PASSING)
            yield f"ALTER TABLE {self._table} ADD COLUMN {self._definition(one.name)}"
            yield f"UPDATE {self._table} SET {name} = CAST({_PASSING} AS {_affinity(kind)})"
            yield f"ALTER TABLE {self._table} DROP COLUMN {_PASSING}"

    def _padded(self, name: str, was: str) -> Iterator[str]:
        """Give decimals that are texts their new decimal places: keys are compared as texts."""
        old, new = self._old.c[was].type, self._new.c[name].type
        if not (isinstance(old, DecimalAsText) and isinstance(new, DecimalAsText)):
            return
        if new.places > old.places:
            text, point = self._quoted(name), f"instr({self._quoted(name)}, '.')"
            more = f"{new.places} - CASE {point} WHEN 0 THEN 0 ELSE length({text}) - {point} END"
            dot = f"CASE {point} WHEN 0 THEN '.' ELSE '' END"
            padded = f"{text} || {dot} || substr('{'0' * new.places}', 1, {more})"
            yield f"UPDATE {self._table} SET {text} = {padded}"

    def _rename(self, was: str, name: str) -> str:
        return (
            f"ALTER TABLE {self._table} RENAME COLUMN {self._quoted(was)} TO {self._quoted(name)}"
        )

    def _definition(self, name: str) -> str:
        # SQLAlchemy doubles percent signs for drivers that format parameters; `run` does that
        # again.
        words = str(CreateColumn(self._new.c[name]).compile(dialect=self._dialect))
        return undoubled(self._dialect, words)

    def _type(self, name: str) -> str:
        return str(self._new.c[name].type.compile(self._dialect))

    def _old_type(self, name: str) -> str:
        return str(self._old.c[name].type.compile(self._dialect))

    def _literal(self, one: AlteredColumn) -> str:
        value = one.value
        if isinstance(value, bytes):
            if not value and self._dialect.name in MYSQL:
                return "''"  # it takes x'' for a name
            return (
                f"x'{value.hex()}'" if self._dialect.name != "postgresql" else f"'\\x{value.hex()}'"
            )
        if isinstance(value, Decimal) and self._dialect.name != "sqlite":
            return f"{value:f}"  # with an exponent it would be a double
        if isinstance(value, str):
            return quoted_text(self._dialect, value)
        plain: Any = value
        if getattr(value, "tzinfo", None) is not None:
            plain = value.astimezone(UTC).replace(tzinfo=None)
        compiled = sa.literal(plain, self._new.c[one.name].type).compile(
            dialect=self._dialect, compile_kwargs={"literal_binds": True}
        )
        return undoubled(self._dialect, str(compiled))

    def _quoted(self, name: str) -> str:
        return quoted(self._dialect, name)


def swap(dialect: sa.Dialect, name: str, other: str, old: str) -> Sequence[str]:
    """Return the statements that replace a table with another one, in one step."""
    table, new, gone = (quoted(dialect, one) for one in (name, other, old))
    if dialect.name in MYSQL:
        return [f"RENAME TABLE {table} TO {gone}, {new} TO {table}"]
    return [f"DROP TABLE {table}", f"ALTER TABLE {new} RENAME TO {table}"]


def comment_of(connection: Connection, name: str, schema: str | None = None) -> str:
    """Return a table's comment."""
    return sa.inspect(connection).get_table_comment(name, schema)["text"] or ""


def marked(comment: str, mark: str) -> str:
    """Return a comment with a mark at its end; an earlier mark is replaced."""
    return f"{_MARK.sub('', comment)} [databus {mark}]".strip()


def has_mark(comment: str, mark: str) -> bool:
    """Return whether a comment ends with a mark."""
    return comment.endswith(f"[databus {mark}]")


def was_done(connection: Connection, name: str, mark: str, schema: str | None = None) -> bool:
    """Return whether MySQL has altered a table with a mark; wait for an ALTER that still runs."""
    while _runs(connection, mark):
        log.info("%s: waits for an ALTER that is under way in the database", name)
        time.sleep(_LOOK_S)
    is_there = sa.inspect(connection).has_table(name, schema)
    return is_there and has_mark(comment_of(connection, name, schema), mark)


def _runs(connection: Connection, mark: str) -> bool:
    statements = connection.execute(sa.text("SHOW FULL PROCESSLIST")).mappings()
    return any(mark in str(one["Info"]) for one in statements)


def _affinity(kind: str) -> str:
    """Return the affinity of a declared type, by the rules of https://sqlite.org/datatype3.html."""
    words = kind.upper()
    if "INT" in words:
        return "INTEGER"
    if any(part in words for part in ("CHAR", "CLOB", "TEXT")):
        return "TEXT"
    if "BLOB" in words:
        return "BLOB"
    return "REAL" if any(part in words for part in ("REAL", "FLOA", "DOUB")) else "NUMERIC"
