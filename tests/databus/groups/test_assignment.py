"""The assignment of partitions: balanced, and with as few moves as there can be."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given, strategies as st

from databus.groups.assignment import assign, members_of_room, moves

NAMES = [f"m{number}" for number in range(7)]
MEMBERS = st.frozensets(st.sampled_from(NAMES), min_size=1)
OWNERS = st.dictionaries(st.integers(0, 24), st.sampled_from(NAMES))


def fewest_moves(members: frozenset[str], partitions: int, present: dict[int, str]) -> int:
    """Try every way to say who has one more; whoever has too much gives the rest away."""
    held = Counter(owner for partition, owner in present.items() if partition < partitions)
    least, remainder = divmod(partitions, len(members))
    most_kept = max(
        sum(min(held[member], least + (member in larger)) for member in members)
        for larger in map(frozenset, combinations(sorted(members), remainder))
    )
    return partitions - most_kept


@given(MEMBERS, st.integers(1, 24), OWNERS)
def test_owners_are_balanced_and_move_as_little_as_possible(
    members: frozenset[str], partitions: int, present: dict[int, str]
) -> None:
    owners = assign(members, partitions, present)
    assert sorted(owners) == list(range(partitions))
    counts = Counter(dict.fromkeys(members, 0))
    counts.update(owners.values())
    assert counts.keys() == members
    assert max(counts.values()) - min(counts.values()) <= 1
    assert len(moves(present, owners)) == fewest_moves(members, partitions, present)


@given(MEMBERS, st.integers(1, 24), OWNERS)
def test_nothing_moves_once_it_is_assigned(
    members: frozenset[str], partitions: int, present: dict[int, str]
) -> None:
    owners = assign(members, partitions, present)
    assert assign(sorted(members, reverse=True), partitions, owners) == owners


@given(st.lists(MEMBERS, min_size=1, max_size=6), st.integers(1, 24))
def test_members_come_and_go_one_or_several_at_once(
    history: list[frozenset[str]], partitions: int
) -> None:
    owners: dict[int, str] = {}
    for members in history:
        before, owners = owners, assign(members, partitions, owners)
        assert len(moves(before, owners)) == fewest_moves(members, partitions, before)


def test_eleven_partitions_of_three_members_are_four_four_and_three() -> None:
    owners = assign({"a", "b", "c"}, 11, {})
    assert sorted(Counter(owners.values()).values()) == [3, 4, 4]
    # c dies: its three go to the others, and nothing else moves.
    after = assign({"a", "b"}, 11, owners)
    gone = [partition for partition, owner in owners.items() if owner == "c"]
    assert moves(owners, after) == gone


def test_without_members_nobody_owns_anything() -> None:
    assert assign([], 4, {0: "a"}) == {}


def test_more_members_than_partitions_stand_by() -> None:
    assert sorted(assign("cab", 1, {0: "b"}).items()) == [(0, "b")]


@pytest.mark.parametrize(
    ("preferred", "chosen"),
    [("", ["a", "b", "c"]), ("east", ["a", "c"]), ("south", ["a", "b", "c"])],
)
def test_members_of_the_preferred_room_come_before_others(
    preferred: str, chosen: list[str]
) -> None:
    assert members_of_room({"c": "east", "b": "west", "a": "east"}, preferred) == chosen
