"""The table that is read: seven columns, about 150 bytes per row."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from databus.schemas.table import Column, Table

SOURCE, SRC_ID = "shop.orders", 1
TABLE = Table(
    SOURCE,
    (
        Column("id", "bigint", 0, False, 0),
        Column("customer", "bigint", 1),
        Column("quantity", "int", 2),
        Column("price", "double", 3),
        Column("placed", "timestamp(6)", 4),
        Column("status", "varchar(10)", 5),
        Column("note", "varchar(200)", 6),
    ),
)
STATUSES = ("new", "open", "paid", "sent")
NOTE_CHARACTERS = 100
_FIRST = datetime(2026, 1, 1, tzinfo=UTC)


def row(number: int) -> dict[str, Any]:
    """Return the row of a key."""
    return {
        "id": number,
        "customer": number * 7919 % 100_003,
        "quantity": number % 17,
        "price": number * 0.37,
        "placed": _FIRST + timedelta(seconds=number),
        "status": STATUSES[number % len(STATUSES)],
        "note": f"order {number} ".ljust(NOTE_CHARACTERS, "x"),
    }
