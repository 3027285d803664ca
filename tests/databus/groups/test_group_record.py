"""The record of a group: facts, members, the newest assignment."""

from __future__ import annotations

from collections import Counter

import pytest

from databus.groups.assignment import moves
from databus.groups.group_record import (
    GroupFacts,
    GroupRecord,
    Process,
    member_name,
    slot_and_term,
)
from databus.leases.errors import LeaseError
from databus.schemas.errors import SettingsError

FACTS = GroupFacts("billing", 8, ("shop.orders", "shop.person"), ("customer_id",))


def group(*members: str, facts: GroupFacts = FACTS) -> GroupRecord:
    return GroupRecord(facts).with_members({one: Process(f"host:{one}") for one in members})


def test_a_record_comes_back_from_its_json() -> None:
    for record in (GroupRecord(FACTS), group("0.1"), group("0.1", "1.1", "2.9")):
        assert GroupRecord.decode(record.encode(), "billing", "file:x") == record


def test_each_member_has_its_share_and_a_change_moves_no_more_than_it_must() -> None:
    two = group("0.1", "1.1")
    assert two.number == 1
    assert two.partitions_of("0.1") == frozenset(range(4))
    three = two.with_members({**two.members, "2.1": Process("host:c")})
    assert three.number == 2
    assert sorted(Counter(three.owners.values()).values()) == [2, 3, 3]
    assert len(moves(two.owners, three.owners)) == 2
    assert three.with_members({}).owners == {}


def test_members_of_the_preferred_room_own_all_while_it_has_any() -> None:
    record = GroupRecord(GroupFacts("billing", 4, ("a.b",), room="x"))
    here, there = Process("h1", "x"), Process("h2", "y")
    both = record.with_members({"0.1": there, "1.1": here})
    assert both.partitions_of("1.1") == frozenset(range(4))
    assert both.with_members({"0.1": there}).partitions_of("0.1") == frozenset(range(4))


def test_members_are_in_a_circle_by_slot_and_not_by_letters() -> None:
    record = group("2.1", "10.1", "0.5", "1.3")
    assert record.after("1.3", 2) == ["2.1", "10.1"]
    assert record.after("2.1", 9) == ["10.1", "0.5", "1.3"]
    assert record.after("3.7", 1) == ["10.1"], "also after one that is not there yet"
    assert slot_and_term(member_name(10, 4)) == (10, 4)


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (GroupFacts("billing", 9, FACTS.sources, FACTS.partition_by), "partitions = 8, not 9"),
        (GroupFacts("billing", 8, ("shop.orders",), FACTS.partition_by), "sources = .*person"),
        (GroupFacts("billing", 8, FACTS.sources), r"partition_by = \('customer_id',\), not \(\)"),
        (GroupFacts("billing", 8, FACTS.sources, FACTS.partition_by, 1), "generation = 0, not 1"),
    ],
)
def test_a_process_with_other_facts_is_told_both(other: GroupFacts, text: str) -> None:
    FACTS.check_same(FACTS)
    with pytest.raises(SettingsError, match=f"group 'billing' has {text}.*or another group"):
        FACTS.check_same(other)


@pytest.mark.parametrize(("name", "partitions"), [("", 8), ("billing", 0), ("billing", 1 << 16)])
def test_a_group_has_a_name_and_partitions(name: str, partitions: int) -> None:
    with pytest.raises(SettingsError, match="give a name, and 1 to 32768"):
        GroupFacts(name, partitions, ("a.b",))


def broken(record: GroupRecord, **changed: object) -> bytes:
    for name, value in changed.items():
        object.__setattr__(record, name, value)
    return record.encode()


@pytest.mark.parametrize(
    "data",
    [
        b"{}",
        group("0.1").encode().replace(b'"number": 1', b'"number": 2'),
        broken(group("0.1"), facts=GroupFacts("other", 8, ("a.b",))),
        broken(group("0.1"), owners={0: "0.1"}),
        broken(group("0.1"), owners=dict.fromkeys(range(8), "1.1")),
        broken(group("0.1"), members={"x": Process("y")}, owners={}),
    ],
)
def test_a_damaged_record_is_an_error_that_says_what_to_do(data: bytes) -> None:
    with pytest.raises(LeaseError, match=r"group 'billing' in file:x.*remove it"):
        GroupRecord.decode(data, "billing", "file:x")
