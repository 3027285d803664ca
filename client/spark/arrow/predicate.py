"""The condition of option `where`: an SQL expression, compiled to a filter of Arrow batches.

Rows are read in Python workers, without Spark SQL, so this module supports a small
subset of SQL: comparisons of columns and literals, IN, BETWEEN, LIKE, IS NULL, AND,
OR and NOT, with three-valued logic. Anything else is refused by name;
`DataFrame.where` supports it, one step later. A moment needs its zone: that of the
session, which `DataFrame.where` takes, is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from databus.client.events.sql_condition import SqlCondition
from databus.schemas.errors import SettingsError

DIALECT = "spark"
_COMPARISONS: Mapping[type[exp.Expr], Callable[[Any, Any], pc.Expression]] = {
    exp.EQ: lambda a, b: a == b,
    exp.NEQ: lambda a, b: a != b,
    exp.LT: lambda a, b: a < b,
    exp.LTE: lambda a, b: a <= b,
    exp.GT: lambda a, b: a > b,
    exp.GTE: lambda a, b: a >= b,
}


class _NoZoneError(Exception):
    """A moment has no time zone, and its column has instants."""


class RowCondition(SqlCondition[pc.Expression]):
    """A condition over the columns of a schema.

    Raises SettingsError, with the option's name, for unsupported SQL and for unknown
    columns.
    """

    dialect = DIALECT

    def __init__(self, text: str, schema: pa.Schema) -> None:
        self._schema = schema
        self._names: set[str] = set()
        super().__init__(text)
        # Without a row nothing is computed.
        row = pa.table([pa.nulls(1, field.type) for field in schema], schema=schema)
        try:
            row.filter(self.truth)
        except pa.ArrowException as error:
            raise self._refusal(f"cannot be computed: {error}") from error

    @property
    def columns(self) -> frozenset[str]:
        """The columns that the condition uses."""
        return frozenset(self._names)

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows for which the condition is true."""
        return batch.filter(self.truth)

    def _negated(self, truth: pc.Expression) -> pc.Expression:
        return ~truth

    def _both(self, one: pc.Expression, other: pc.Expression) -> pc.Expression:
        return one & other

    def _either(self, one: pc.Expression, other: pc.Expression) -> pc.Expression:
        return one | other

    def _is_null(self, node: exp.Expr) -> pc.Expression:
        return self._column(node)[0].is_null()

    def _compared(self, kind: type[exp.Expr], left: exp.Expr, right: exp.Expr) -> pc.Expression:
        compare = _COMPARISONS[kind]
        if isinstance(left, exp.Column) and isinstance(right, exp.Column):
            (one, one_type), (other, other_type) = self._column(left), self._column(right)
            if _is_text(one_type) != _is_text(other_type):
                raise self._refusal(f"compares {one_type} with {other_type}")
            return compare(one, other)
        if isinstance(left, exp.Column):
            field, of_type = self._column(left)
            return compare(field, self._literal(right, of_type, left.name))
        if isinstance(right, exp.Column):
            field, of_type = self._column(right)
            return compare(self._literal(left, of_type, right.name), field)
        raise self._unknown(left)

    def _any_of(self, node: exp.In) -> pc.Expression:
        field, of_type = self._column(node.this)
        of_column = [self._literal(one, of_type, node.this.name) for one in node.expressions]
        # Not is_in: with a NULL in the list the result must be NULL, not false.
        return reduce(self._either, [field == literal for literal in of_column])

    def _like(self, node: exp.Expr, pattern: str) -> pc.Expression:
        field, of_type = self._column(node)
        if not _is_text(of_type):
            raise self._refusal(f"LIKE needs a text, and {node.name} is {of_type}")
        return pc.match_like(field, pattern)

    def _column(self, node: exp.Expr) -> tuple[pc.Expression, pa.DataType]:
        if not isinstance(node, exp.Column) or node.table:
            raise self._unknown(node)
        name = self._name(node.name)
        self._names.add(name)
        return pc.field(name), self._schema.field(name).type

    def _name(self, name: str) -> str:
        known: list[str] = self._schema.names
        alike = [one for one in known if one.lower() == name.lower()]
        if name in known:
            return name
        if len(alike) == 1:
            return alike[0]
        raise self._refusal(f"there is no column {name!r}; the columns are {', '.join(known)}")

    def _literal(self, node: exp.Expr, of_type: pa.DataType, column: str) -> pc.Expression:
        value: Any
        match node:
            case exp.Null():
                return pc.scalar(pa.scalar(None, of_type))
            case exp.Boolean(this=truth):
                value = int(truth)
            case exp.Literal(is_string=True, this=text):
                value = text
            case exp.Literal(this=text):
                value = Decimal(text)
            # sqlglot reads -5 as the negation of 5.
            case exp.Neg(this=exp.Literal(is_string=False, this=text)):
                value = -Decimal(text)
            case exp.Cast(this=exp.Literal(is_string=True, this=text), to=to) if to.this in (
                exp.DataType.Type.DATE,
                exp.DataType.Type.TIMESTAMP,
                exp.DataType.Type.TIMESTAMPTZ,
                exp.DataType.Type.TIMESTAMPNTZ,
            ):
                value = text
            case exp.HexString(this=digits):
                value = bytes.fromhex(digits)
            case _:
                raise self._unknown(node)
        try:
            return pc.scalar(_scalar(value, of_type))
        except _NoZoneError as error:
            raise self._refusal(
                f"{node.sql(DIALECT)} has no time zone, and column {column} is a {of_type}: write "
                "it, such as '2026-03-10 07:00:00Z'; DataFrame.where takes that of the session"
            ) from error
        except (ValueError, TypeError, InvalidOperation, pa.ArrowException) as error:
            shown = node.sql(DIALECT)
            raise self._refusal(f"{shown} is not a value of {column}, a {of_type}") from error

    def _unknown(self, node: exp.Expr) -> SettingsError:
        return self._refusal(
            f"does not support {node.sql(DIALECT)}: a condition may compare columns with "
            "literals, and may use AND, OR, NOT, IN, BETWEEN, LIKE and IS NULL; for more use "
            "DataFrame.where"
        )

    def _refusal(self, problem: str) -> SettingsError:
        return SettingsError(f"where = {self.text!r}: {problem}")


def condition_of(text: str, schema: pa.Schema) -> RowCondition | None:
    """Return the condition of option `where`, None for an empty one; raises SettingsError."""
    return RowCondition(text, schema) if text else None


def _is_text(of_type: pa.DataType) -> bool:
    return bool(pa.types.is_string(of_type))


def _scalar(value: str | bytes | int | Decimal, of_type: pa.DataType) -> pa.Scalar:
    """Return a literal in a type comparable to the column's; raises ValueError, TypeError."""
    types = pa.types
    if _is_text(of_type) or types.is_binary(of_type):
        if isinstance(value, str) and types.is_binary(of_type):
            value = value.encode()
        if not isinstance(value, str | bytes):
            raise TypeError("a number")
        return pa.scalar(value, of_type)
    if types.is_date(of_type) or types.is_timestamp(of_type):
        return _moment(value, of_type)
    if isinstance(value, str | bytes):
        raise TypeError("not a number")
    number = Decimal(value)
    if types.is_floating(of_type):
        return pa.scalar(float(number), pa.float64())
    if number == number.to_integral_value():
        return pa.scalar(int(number), pa.int64()) if types.is_integer(of_type) else _exact(number)
    return _exact(number)


def _exact(number: Decimal) -> pa.Scalar:
    return pa.scalar(number.quantize(Decimal(1)) if number == int(number) else number)


def _moment(value: object, of_type: pa.DataType) -> pa.Scalar:
    if not isinstance(value, str):
        raise TypeError("not a time")
    if pa.types.is_date(of_type):
        return pa.scalar(date.fromisoformat(value), of_type)
    moment = datetime.fromisoformat(value)
    if of_type.tz is None:
        if moment.tzinfo is not None:
            raise ValueError("the column has no time zone")
        return pa.scalar(moment, of_type)
    if moment.tzinfo is None:
        raise _NoZoneError
    return pa.scalar(moment.astimezone(UTC), of_type)
