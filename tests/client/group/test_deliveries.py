"""Which events a process consumes, and what it is told of rows that move."""

from __future__ import annotations

from hypothesis import given, strategies as st

from databus.client.group.deliveries import Delivery, Move, Ownership
from databus.groups.generations import Generation, Vector
from databus.schemas.partitions.row_hashes import RowHashes

GENERATION = Generation(0, Vector((10, 20, 30, 40)))
HASHES = st.integers(0, 11)


def owner(*partitions: int) -> Ownership:
    return Ownership(frozenset(partitions), GENERATION)


def test_a_row_is_delivered_to_the_owner_of_its_partition_alone() -> None:
    assert owner(1, 2).of_row(31, RowHashes(6)) == Delivery((2,))
    assert owner(0, 1).of_row(31, RowHashes(6)) is None


def test_what_the_partition_has_consumed_is_dropped() -> None:
    assert owner(0, 2).of_row(30, RowHashes(6)) is None
    assert owner(0, 2).of_row(30, RowHashes(4)) == Delivery((0,))


def test_what_a_former_partition_had_consumed_is_dropped() -> None:
    resized = Ownership(frozenset((0, 1, 2)), GENERATION.resized(3))
    assert resized.of_row(35, RowHashes(3)) is None  # 3 % 4 = 3, which had consumed window 40
    assert resized.of_row(35, RowHashes(6)) == Delivery((0,))


def test_an_update_that_changes_the_partition_is_told_to_both_owners() -> None:
    moved = RowHashes(1, 2)
    assert owner(1).of_row(50, moved) == Delivery((1,), Move.ENTERED)
    assert owner(2).of_row(50, moved) == Delivery((2,), Move.LEFT)
    assert owner(0, 3).of_row(50, moved) is None


def test_an_update_inside_what_one_process_owns_is_an_update() -> None:
    assert owner(1, 2).of_row(50, RowHashes(1, 2)) == Delivery((1, 2))
    assert owner(1).of_row(50, RowHashes(1, 5)) == Delivery((1,))
    # One of the two had consumed it before: it comes for the other one.
    assert owner(1, 2).of_row(25, RowHashes(1, 2)) == Delivery((1,))


def test_the_removal_of_all_rows_is_for_each_partition_that_is_not_past_it() -> None:
    assert owner(0, 2).of_whole_table(20) == Delivery((0,))
    assert owner(0, 2).of_whole_table(31) == Delivery((0, 2))
    assert owner(2).of_whole_table(30) is None


@given(
    HASHES,
    HASHES | st.none(),
    st.integers(0, 50),
    st.lists(st.integers(0, 2), min_size=4, max_size=4),
)
def test_each_side_of_an_update_is_delivered_to_one_process(
    row: int, before: int | None, scn: int, owners: list[int]
) -> None:
    hashes = RowHashes(row, before)
    delivered: list[int] = []
    for process in range(3):
        owned = frozenset(p for p, by in enumerate(owners) if by == process)
        found = Ownership(owned, GENERATION).of_row(scn, hashes)
        delivered += found.partitions if found else ()
    waiting = {one % 4 for one in hashes.each if not GENERATION.is_consumed(scn, one)}
    assert sorted(delivered) == sorted(waiting)
