"""What is judged of the values that the stock client of Ptubes has."""

from __future__ import annotations

from benchmarks.ptubes_clients.every_type import change_of, wrong_columns
from benchmarks.ptubes_clients.sdk import Cell, Handed
from benchmarks.shared.every_type import Change


def test_columns_that_are_not_ptubes_are_named() -> None:
    row = {"id": Cell("7", -5, {}), "ver": Cell("0", -5, {})}
    event = Handed("INSERT", False, "shop.every_type", {}, row, "", (0, 1, 2, 3, 4))
    assert change_of(event) == Change("INSERT", 7, 0)
    assert wrong_columns(event) == ["columns"]
    assert wrong_columns(event._replace(before=row)) == ["before row", "columns"]
