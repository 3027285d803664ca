"""Values as a driver takes and returns them, by the types of columns.

The conversions are those of SQLAlchemy's types: SQLite has dates, moments and decimals as texts,
and MySQL booleans as numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import CursorResult
from sqlalchemy.types import TypeEngine

Convert = Callable[[Any], Any]


def to_driver(kind: TypeEngine[Any], dialect: sa.Dialect) -> Convert | None:
    """Return what converts values of a column for the driver; None = it takes them as they are."""
    return kind.dialect_impl(dialect).bind_processor(dialect)


def from_driver(
    found: CursorResult[Any], types: Sequence[TypeEngine[Any]], dialect: sa.Dialect
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a result as columns of these types have them."""
    assert found.cursor is not None
    # By the driver's own types, too: it may return a number as a decimal, or as a float.
    kinds = [column[1] for column in found.cursor.description]
    converts = [
        one.dialect_impl(dialect).result_processor(dialect, kind)
        for one, kind in zip(types, kinds, strict=True)
    ]
    for row in found:
        yield tuple(
            value if convert is None else convert(value)
            for value, convert in zip(row, converts, strict=True)
        )
