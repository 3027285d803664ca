"""The changes that stock clients of Canal must have, and their texts."""

from __future__ import annotations

from itertools import chain

from benchmarks.canal_clients.clients import Row
from benchmarks.canal_clients.every_type import change_of, wrong_columns
from benchmarks.shared.every_type import Change, changes


def test_changes_are_of_every_kind_and_each_is_made_once() -> None:
    wanted = list(chain.from_iterable(changes(1000)))
    assert len(set(wanted)) == len(wanted) >= 1000
    assert {change.kind for change in wanted} == {"INSERT", "UPDATE", "DELETE"}


def test_a_text_or_type_that_is_not_canals_is_named() -> None:
    found = Row("INSERT", "shop.every_type", (("id", "7", 4), ("ver", "0", 5)))
    assert change_of(found) == Change("INSERT", 7, 0)
    assert {"price", "ver"} <= set(wrong_columns(found))
    assert "id" not in wrong_columns(found)
