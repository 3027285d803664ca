"""The SCN index: entries found by SCN or position; no stale one taken for a live one."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

import databus.relay.ring
from databus.relay.ring.layout import PAGE_BYTES, UNKNOWN_SCN
from databus.relay.ring.scn_index import IndexEntry, ScnIndex

SLOTS = 8
BEGIN = PAGE_BYTES // 8


@pytest.fixture
def cells() -> Iterator[memoryview]:
    view = memoryview(bytearray(PAGE_BYTES + SLOTS * 32)).cast("Q")
    yield view
    view.release()


def entry_of(number: int) -> IndexEntry:
    return IndexEntry(100 + 10 * number, 1000 * number, 95 + 10 * number)


def test_an_entry_is_read_as_it_was_written(cells: memoryview) -> None:
    index = ScnIndex(cells, SLOTS)
    index.put(3, IndexEntry((1 << 63) - 1, 1 << 62, UNKNOWN_SCN))
    assert index.get(3) == IndexEntry((1 << 63) - 1, 1 << 62, UNKNOWN_SCN)
    assert index.begin_of(3) == (1 << 62, UNKNOWN_SCN)


def test_an_empty_slot_holds_no_entry(cells: memoryview) -> None:
    index = ScnIndex(cells, SLOTS)
    index.put(2, entry_of(2))
    index.wipe(2)
    assert [index.get(number) for number in range(SLOTS)] == [None] * SLOTS


def test_a_wiped_slot_has_nothing_left_and_its_neighbours_have_all(cells: memoryview) -> None:
    index = ScnIndex(cells, SLOTS)
    for number in (2, 3, 4):
        index.put(number, entry_of(number))
    index.wipe(3)
    assert cells[BEGIN + 12 : BEGIN + 16].tolist() == [0, 0, 0, 0]
    assert (index.get(2), index.get(4)) == (entry_of(2), entry_of(4))


def test_an_entry_of_another_lap_is_not_taken_for_the_one_asked_for(cells: memoryview) -> None:
    index = ScnIndex(cells, SLOTS)
    index.put(3 + SLOTS, entry_of(3 + SLOTS))
    assert index.get(3) is None
    assert index.get(3 + 2 * SLOTS) is None


@pytest.mark.parametrize("bit", range(0, 64, 7))
def test_any_changed_bit_makes_an_entry_none(cells: memoryview, bit: int) -> None:
    index = ScnIndex(cells, SLOTS)
    index.put(5, entry_of(5))
    for word in range(4):
        cells[BEGIN + 5 * 4 + word] ^= 1 << bit
        assert index.get(5) is None
        cells[BEGIN + 5 * 4 + word] ^= 1 << bit
    assert index.get(5) == entry_of(5)


@given(first=st.integers(0, 50), count=st.integers(1, SLOTS), scn=st.integers(90, 800))
def test_find_scn_is_the_last_entry_not_after_it(first: int, count: int, scn: int) -> None:
    index = ScnIndex(memoryview(bytearray(PAGE_BYTES + SLOTS * 32)).cast("Q"), SLOTS)
    numbers = range(first, first + count)
    for number in numbers:
        index.put(number, entry_of(number))
    expected = max((n for n in numbers if entry_of(n).scn <= scn), default=first)
    assert index.find_scn(scn, first, first + count) == expected


def test_find_position_is_the_last_entry_not_after_it(cells: memoryview) -> None:
    index = ScnIndex(cells, SLOTS)
    numbers = range(6, 6 + SLOTS)
    for number in numbers:
        index.put(number, entry_of(number))
    for earlier, later in pairwise(numbers):
        found = [index.find_position(1000 * later + by, 6, 6 + SLOTS) for by in (-1, 0, 1)]
        assert found == [earlier, later, later]


@pytest.mark.parametrize(
    "name", ["scn_index", "layout", "events", "reader", "ring", "row_count", "event_selector"]
)
def test_no_part_of_a_ring_needs_the_compiled_module(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    full_name = f"databus.relay.ring.{name}"
    importlib.import_module(full_name)
    monkeypatch.setattr(databus.relay.ring, name, None)  # and put back what there was
    monkeypatch.delitem(sys.modules, full_name)
    monkeypatch.setitem(sys.modules, "databus.relay.ring._core", None)
    monkeypatch.delattr(databus.relay.ring, "_core", raising=False)
    assert importlib.import_module(full_name).__doc__
