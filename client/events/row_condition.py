"""A filter as SQL text: a condition over a row's columns, evaluated by the client.

The subset of SQL is that of `sql_condition`, with MySQL's quotes. Texts are compared exactly,
whatever the collation of their column.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any

from sqlglot import exp

from databus.client.events.data_event import DataEvent
from databus.client.events.sql_condition import SqlCondition
from databus.schemas.errors import RowError, SettingsError
from databus.schemas.event.metadata import Op

Row = Mapping[str, Any]
Value = Callable[[Row], Any]
Truth = Callable[[Row], bool | None]  # None = NULL: neither true nor false

_COMPARISONS: Mapping[type[exp.Expr], Callable[[Any, Any], bool]] = {
    exp.EQ: operator.eq,
    exp.NEQ: operator.ne,
    exp.LT: operator.lt,
    exp.LTE: operator.le,
    exp.GT: operator.gt,
    exp.GTE: operator.ge,
}
_TIME = re.compile(r"(-?)(\d{1,3}):(\d{2})(?::(\d{2}(?:\.\d{1,6})?))?")
_NUMBERS = (int, float, Decimal)


class _MissingError(Exception):
    """A row does not have a column. Never leaves this file."""


@lru_cache(maxsize=256)
def row_condition(text: str) -> RowCondition:
    """Return the condition of a text; raise SettingsError if it is not understood."""
    return RowCondition(text)


class RowCondition(SqlCondition[Truth]):
    """Decides whether an event is wanted. Thread-safe."""

    dialect = "mysql"

    def wants(self, event: DataEvent) -> bool:
        """Whether the row is wanted, or the row before an update.

        What cannot be known is wanted: all rows of a truncate, an update whose row before is not
        sent, a column that was not logged or did not exist yet. Raises RowError if values cannot be
        compared, SettingsError for a column that the table does not have.
        """
        if event.is_truncate or self.holds(event, event.row):
            return True
        if event.op is not Op.UPDATE:
            return False
        before = event.before
        return before is None or self.holds(event, before)

    def holds(self, event: DataEvent, row: Row) -> bool:
        """Whether the condition is true of a row of the event, its `row` or its `before`.

        True, too, if a column of it was not logged. Raises as `wants`.
        """
        try:
            return self.truth(row) is True
        except _MissingError as error:
            name = str(error)
            if name not in event.known_columns:
                known = ", ".join(sorted(event.known_columns))
                raise self._refusal(
                    f"has {name!r}, and {event.source} has the columns {known}"
                ) from None
            return True
        except TypeError as error:
            raise RowError(event.source, "?", f"filter {self.text!r}: {error}") from error

    def _negated(self, truth: Truth) -> Truth:
        def negated(row: Row) -> bool | None:
            found = truth(row)
            return None if found is None else not found

        return negated

    def _both(self, one: Truth, other: Truth) -> Truth:
        def both(row: Row) -> bool | None:
            first = one(row)
            if first is False:
                return False
            second = other(row)
            return second if first or second is False else None

        return both

    def _either(self, one: Truth, other: Truth) -> Truth:
        return self._negated(self._both(self._negated(one), self._negated(other)))

    def _is_null(self, node: exp.Expr) -> Truth:
        column = self._value(node)
        return lambda row: column(row) is None

    def _compared(self, kind: type[exp.Expr], left: exp.Expr, right: exp.Expr) -> Truth:
        if not isinstance(left, exp.Column) and not isinstance(right, exp.Column):
            raise self._unknown(left)
        one, other, compare = self._value(left), self._value(right), _COMPARISONS[kind]

        def truth(row: Row) -> bool | None:
            a, b = one(row), other(row)
            if a is None or b is None:
                return None
            return compare(*_comparable(a, b))

        return truth

    def _like(self, node: exp.Expr, pattern: str) -> Truth:
        column, compiled = self._value(node), _pattern(pattern)

        def truth(row: Row) -> bool | None:
            value = column(row)
            if value is None:
                return None
            if not isinstance(value, str):
                raise TypeError(f"LIKE needs a text, and this is {value!r}")
            return compiled.fullmatch(value) is not None

        return truth

    def _value(self, node: exp.Expr) -> Value:
        match node:
            case exp.Column() if not node.table:
                return _column(node.name)
            case exp.Paren(this=inner):
                return self._value(inner)
            case exp.Null():
                return lambda _row: None
            case exp.Boolean() | exp.Literal() | exp.Neg(this=exp.Literal(is_string=False)):
                literal = _literal(node)
                return lambda _row: literal
        raise self._unknown(node)

    def _unknown(self, node: exp.Expr) -> SettingsError:
        return self._refusal(
            f"{node.sql(dialect=self.dialect)!r} is not understood; use `if` instead"
        )

    def _refusal(self, problem: str) -> SettingsError:
        return SettingsError(f"filter {self.text!r}: {problem}")


def _column(name: str) -> Value:
    def value(row: Row) -> Any:
        try:
            return row[name]
        except KeyError:
            raise _MissingError(name) from None

    return value


def _literal(node: exp.Expr) -> Any:
    if isinstance(node, exp.Boolean):
        return bool(node.this)
    if isinstance(node, exp.Neg):
        return -Decimal(node.this.this)
    return str(node.this) if node.args.get("is_string") else Decimal(node.this)


def _comparable(a: Any, b: Any) -> tuple[Any, Any]:
    """Return two values that can be compared; raise TypeError if none is like the other."""
    for one, other, is_turned in ((a, b, False), (b, a, True)):
        if isinstance(one, str) and isinstance(other, timedelta):
            span = _span(one)
            return (other, span) if is_turned else (span, other)
        if isinstance(one, str) and isinstance(other, date):
            parsed = _moment(one, other)
            return (other, parsed) if is_turned else (parsed, other)
    if isinstance(a, _NUMBERS) and isinstance(b, _NUMBERS):
        # As a database does: 0.1 as a double is not 0.1 exactly.
        is_inexact = isinstance(a, float) or isinstance(b, float)
        return (float(a), float(b)) if is_inexact else (a, b)
    if type(a) is type(b):
        return a, b
    raise TypeError(f"{type(a).__name__} {a!r} cannot be compared with {type(b).__name__} {b!r}")


def _moment(text: str, like: date) -> date:
    """Read a literal as a value of a column: a date, or a time with a zone or without."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise TypeError(f"{text!r} is no date or time") from error
    if not isinstance(like, datetime):
        if found.time() != time():
            raise TypeError(f"{text!r} is a time, and the column has dates")
        return found.date()
    if like.tzinfo is None:
        if found.tzinfo is not None:
            raise TypeError(f"{text!r} has a zone, and the column has none")
        return found
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _span(text: str) -> timedelta:
    """Read a literal as an SQL TIME, such as '-838:59:59.5'."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise TypeError(f"{text!r} is no time such as '12:30:00'")
    span = timedelta(hours=int(found[2]), minutes=int(found[3]), seconds=float(found[4] or 0))
    return -span if found[1] else span


def _pattern(like: str) -> re.Pattern[str]:
    """Return the regular expression of a LIKE pattern; a backslash escapes."""
    parts, at = [], 0
    wild = {"%": ".*", "_": "."}
    while at < len(like):
        if like[at] == "\\" and at + 1 < len(like):
            at += 1
            parts.append(re.escape(like[at]))
        else:
            parts.append(wild.get(like[at]) or re.escape(like[at]))
        at += 1
    return re.compile("".join(parts), re.DOTALL)
