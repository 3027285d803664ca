"""The subset of SQL that conditions over rows have; what they are made into is up to the subclass.

Comparisons, IN, BETWEEN, LIKE, IS NULL, AND, OR, NOT and parentheses, with three-valued logic.
Anything else is refused by name, when the condition is made.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import reduce
from typing import Any, ClassVar, Generic, TypeVar

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from databus.schemas.errors import SettingsError

Truth = TypeVar("Truth")

COMPARISONS: tuple[type[exp.Expr], ...] = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)
_UNDERSTOOD = {"this", "expression", "expressions", "low", "high", "negate"}


class SqlCondition(ABC, Generic[Truth]):
    """A condition, made into a `Truth` by the methods of a subclass. Raises SettingsError."""

    dialect: ClassVar[str]

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            parsed: Any = sqlglot.parse_one(text, dialect=self.dialect)
        except SqlglotError as error:
            raise self._refusal(f"is not an SQL condition: {error}") from error
        self.truth = self._truth(parsed)

    def _truth(self, node: exp.Expr) -> Truth:
        # An argument that a newer sqlglot adds must be refused, not ignored.
        if {name for name, value in node.args.items() if value} - _UNDERSTOOD:
            raise self._unknown(node)
        found = self._positive(node)
        return self._negated(found) if node.args.get("negate") else found

    def _positive(self, node: exp.Expr) -> Truth:
        match node:
            case exp.Paren(this=inner):
                return self._truth(inner)
            case exp.And(this=left, expression=right):
                return self._both(self._truth(left), self._truth(right))
            case exp.Or(this=left, expression=right):
                return self._either(self._truth(left), self._truth(right))
            case exp.Not(this=inner):
                return self._negated(self._truth(inner))
            case exp.Is(this=inner, expression=exp.Null()):
                return self._is_null(inner)
            case exp.Between():
                low, high = node.args["low"], node.args["high"]
                first = self._compared(exp.GTE, node.this, low)
                return self._both(first, self._compared(exp.LTE, node.this, high))
            case exp.In() if node.expressions:
                return self._any_of(node)
            case exp.Like(this=inner, expression=exp.Literal(is_string=True) as pattern):
                return self._like(inner, pattern.this)
        if type(node) in COMPARISONS:
            return self._compared(type(node), node.this, node.expression)
        raise self._unknown(node)

    def _any_of(self, node: exp.In) -> Truth:
        # Each is compared: with a NULL in the list the result must be NULL, not false.
        equal = [self._compared(exp.EQ, node.this, one) for one in node.expressions]
        return reduce(self._either, equal)

    @abstractmethod
    def _negated(self, truth: Truth) -> Truth: ...

    @abstractmethod
    def _both(self, one: Truth, other: Truth) -> Truth: ...

    @abstractmethod
    def _either(self, one: Truth, other: Truth) -> Truth: ...

    @abstractmethod
    def _is_null(self, node: exp.Expr) -> Truth: ...

    @abstractmethod
    def _compared(self, kind: type[exp.Expr], left: exp.Expr, right: exp.Expr) -> Truth: ...

    @abstractmethod
    def _like(self, node: exp.Expr, pattern: str) -> Truth: ...

    @abstractmethod
    def _unknown(self, node: exp.Expr) -> SettingsError:
        """Return the error of what is not supported."""

    @abstractmethod
    def _refusal(self, problem: str) -> SettingsError:
        """Return the error of the whole text."""
