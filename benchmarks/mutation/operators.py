"""The operators that change code: Cosmic Ray's, and two more.

Left out of Cosmic Ray's: those that put a variable in another's place (nearly all of
what they make is no valid program) and those that take a decorator away (a dataclass
without it fails at import, whatever the tests are), and `is` for `==` and back: of
None, enum members and small numbers the two are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator, operator_names
from parso import parse

_LEFT_OUT = (
    "core/Variable",
    "core/RemoveDecorator",
    "core/ExceptionReplacer",
    *(f"core/ReplaceComparisonOperator_{pair}" for pair in ("Eq_Is", "Is_Eq")),
    *(f"core/ReplaceComparisonOperator_{pair}" for pair in ("NotEq_IsNot", "IsNot_NotEq")),
)
_LOGICAL = ("or_test", "and_test")
_STATEMENTS = ("expr_stmt", "atom_expr", "raise_stmt", "return_stmt", "del_stmt")

Span = tuple[tuple[int, int], tuple[int, int]]


class RemoveStatement(Operator):  # type: ignore[misc]  # has no types
    """`pass` in place of a simple statement."""

    def mutation_positions(self, node: Any) -> Iterator[Span]:
        """Yield the position of each statement."""
        if node.type != "simple_stmt" or node.children[0].type not in _STATEMENTS:
            return
        # Log messages are for people; they are no rule.
        if not node.children[0].get_code(include_prefix=False).startswith("log."):
            yield node.children[0].start_pos, node.children[0].end_pos

    def mutate(self, node: Any, index: int) -> Any:  # noqa: ARG002 - of the interface
        """Return a `pass` statement."""
        prefix = node.children[0].get_first_leaf().prefix
        node.children[0] = parse(f"{prefix}pass")  # type: ignore[no-untyped-call]
        return node

    @classmethod
    def examples(cls) -> tuple[Any, ...]:
        """Return none: the tests of this package have them."""
        return ()


class RemoveOperand(Operator):  # type: ignore[misc]
    """One operand less of an `and` or `or`."""

    def mutation_positions(self, node: Any) -> Iterator[Span]:
        """Yield the position of each operand."""
        if node.type in _LOGICAL:
            for operand in node.children[::2]:
                yield operand.start_pos, operand.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """Return the expression without the operand."""
        # The operator before the operand goes, too; for the first operand the one after it.
        at = max(0, 2 * index - 1)
        gone = node.children[at : at + 2]
        del node.children[at : at + 2]
        if not index:
            node.children[0].get_first_leaf().prefix = gone[0].get_first_leaf().prefix
        return node

    @classmethod
    def examples(cls) -> tuple[Any, ...]:
        """Return none: the tests of this package have them."""
        return ()


def operators() -> dict[str, Operator]:
    """Return every operator by its name, in a fixed order."""
    found: dict[str, Operator] = {
        name.removeprefix("core/"): get_operator(name)()
        for name in sorted(operator_names())
        if not name.startswith(_LEFT_OUT)
    }
    return found | {"RemoveOperand": RemoveOperand(), "RemoveStatement": RemoveStatement()}
