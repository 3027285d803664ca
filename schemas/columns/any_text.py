"""The text of a value of a column that may have several kinds of values. Pure."""

from __future__ import annotations

from decimal import Decimal
from typing import Any


def any_text(value: Any) -> str | None:
    """Return the text of a SQLite value: digits, a double as Python prints it, x'hex'."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    if isinstance(value, Decimal):
        return format(value, "f")
    return repr(value)
