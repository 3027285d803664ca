"""A process's place in its group, in every kind of store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from databus.client.membership.membership import Membership
from databus.groups.group_record import GroupFacts, GroupRecord, Process
from databus.leases.records import Records
from databus.leases.store import LeaseStore
from databus.schemas.errors import SettingsError
from tests.client.membership.world import FACTS, TTL_S, Clock

pytest_plugins = ["tests.record_stores"]

Open = Callable[[], Records]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def enter(open_store: Open, clock: Clock) -> Callable[..., Membership]:
    """Return a function that makes a process of the group."""

    def enter(name: str, facts: GroupFacts = FACTS) -> Membership:
        records = open_store()
        return Membership(records, LeaseStore(records, clock.read), facts, Process(name))

    return enter


def joined(one: Membership) -> GroupRecord:
    one.join(TTL_S)
    return one.look()


def pass_time(clock: Clock, seconds: float, looking: Membership) -> GroupRecord:
    for _ in range(8):
        clock.now_s += seconds / 8
        assert looking.slot is not None
        looking.slot.renew_if_due()
        looking.look()
    return looking.look()


def test_processes_that_join_share_the_partitions(enter: Callable[..., Membership]) -> None:
    a, b = enter("a"), enter("b")
    assert joined(a).owners == dict.fromkeys(range(8), "0.1")
    record = joined(b)
    assert a.look() == record
    assert (a.name, b.name) == ("0.1", "1.1")
    assert record.members == {"0.1": Process("a"), "1.1": Process("b")}
    assert [len(record.partitions_of(one.name)) for one in (a, b)] == [4, 4]
    assert a.look().number == 2, "nothing is written while nothing changes"


@pytest.mark.parametrize("changed", [{"partition_by": ("id",)}, {"sources": ("shop.person",)}])
def test_a_process_with_other_facts_takes_no_slot(
    enter: Callable[..., Membership], changed: dict[str, object]
) -> None:
    joined(enter("a"))
    other = enter("b", replace(FACTS, **changed))  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="give this process the same"):
        other.join(TTL_S)
    assert other.slot is None
    assert joined(enter("c")).members.keys() == {"0.1", "1.1"}


def test_the_number_of_partitions_is_the_groups_and_not_that_of_a_process_that_joins(
    enter: Callable[..., Membership],
) -> None:
    joined(enter("a"))
    other = enter("b", replace(FACTS, partitions=9))
    assert len(joined(other).owners) == other.facts.partitions == 8


def test_a_halted_group_has_members_and_no_owners(enter: Callable[..., Membership]) -> None:
    a = enter("a")
    stored = joined(a)
    halted = replace(stored, halted="resize").with_members(stored.members)
    assert (halted.members, halted.owners) == (stored.members, {})
    assert GroupRecord.decode(halted.encode(), "billing", "x") == halted


def test_one_that_leaves_is_out_of_the_assignment_before_it_gives_up_its_slot(
    enter: Callable[..., Membership],
) -> None:
    a, b, c = enter("a"), enter("b"), enter("c")
    joined(a)
    joined(b)
    assert a.look(is_leaving=True).owners == dict.fromkeys(range(8), "1.1")
    assert b.look().members.keys() == {"1.1"}
    joined(c)
    assert c.name == "2.1"
    a.leave()
    a.leave()
    d = enter("d")
    joined(d)
    assert d.name == "0.2", "a slot is used again, under a new term"


def test_one_that_died_is_removed_and_its_slot_is_used_again(
    enter: Callable[..., Membership], clock: Clock
) -> None:
    dead, a = enter("dead"), enter("a")
    joined(dead)
    joined(a)
    assert pass_time(clock, TTL_S, a).members.keys() == {"0.1", "1.1"}
    record = pass_time(clock, TTL_S / 2, a)
    assert record.members.keys() == {"1.1"}
    assert record.owners == dict.fromkeys(range(8), "1.1")
    # It was only stopped: it wakes, and has lost its slot.
    assert dead.slot is not None
    dead.slot.renew_if_due()
    assert dead.slot.is_lost
    dead.lose()
    joined(dead)
    assert dead.name == "0.2"
    assert dead.look().members.keys() == {"0.2", "1.1"}


def test_one_that_lost_its_slot_and_took_another_is_not_in_the_group_twice(
    enter: Callable[..., Membership],
) -> None:
    a, b = enter("a"), enter("b")
    joined(a)
    assert a.slot is not None
    a.slot.release()
    a.lose()
    b.join(TTL_S)  # takes the slot that is free
    assert b.look().members.keys() == {"0.2"}, "who had the slot before is gone"
    assert joined(a).members.keys() == {"0.2", "1.1"}


def test_a_partition_is_had_by_one_until_its_slot_has_gone(
    enter: Callable[..., Membership],
) -> None:
    a, b = enter("a"), enter("b")
    assert a.acquire(3) is None, "without a slot"
    joined(a)
    joined(b)
    assert (a.acquire(3), b.acquire(3), b.acquire(4)) == (1, None, 1)
    a.release(3, 1)
    assert b.acquire(3) == 2
    b.leave()
    assert a.acquire(3) == 3


def test_groups_are_apart(enter: Callable[..., Membership]) -> None:
    a, b = enter("a"), enter("b", replace(FACTS, group="Billing"))
    joined(a)
    assert joined(b).members == {"0.1": Process("b")}
    assert (a.acquire(3), b.acquire(3)) == (1, 1)
