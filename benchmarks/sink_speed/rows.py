"""The rows that both write: five columns, about 120 bytes, each an update of its key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from databus.client.sinks.contract import Change, Position
from databus.schemas.checkpoint import Checkpoint
from tests.client.sinks.ready.sql.targets import Source

COLUMNS = {
    "id": "bigint", "name": "varchar(40)", "price": "double", "note": "varchar(99)", "n": "int",
}  # fmt: skip
FLUSH = 5_000
Row = tuple[Any, ...]


def rows(turn: int, count: int) -> list[Row]:
    """Return the rows of a turn."""
    return [(at, f"name {at}", at * 1.5, "x" * 60, turn) for at in range(count)]


def changes(turn: int, count: int, source: str = "shop.sink") -> list[Change]:
    """Return updates to these rows, each the last of its transaction."""
    made = Source(COLUMNS, source)
    found = []
    for at, row in enumerate(rows(turn, count)):
        scn = turn * count + at + 1
        place = Position("shop", Checkpoint.at(scn))
        found.append(replace(made.update(*row, scn=scn), position=place))
    return found


def parts(listed: list[Any], size: int) -> Iterator[list[Any]]:
    """Yield a list in parts."""
    return (listed[start : start + size] for start in range(0, len(listed), size))
