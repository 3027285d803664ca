"""A member of a group: what it does to its work when processes and the store come and go."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from databus.groups.assignment import moves
from databus.groups.group_record import GroupFacts
from databus.leases.errors import LeaseError, LeaseLostError
from databus.leases.file_records import FileRecords
from databus.schemas.errors import SettingsError
from tests import PATIENCE_S
from tests.client.membership.world import FACTS, FINISH_S, TTL_S, Clock, Node, World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(lambda: FileRecords(tmp_path))


def test_members_own_their_shares_and_few_partitions_move(world: World) -> None:
    a = world.start("a")
    world.run(1)
    assert world.shares() == [8]
    b = world.start("b")
    world.run(4)
    assert world.shares() == [4, 4]
    before = world.record()
    world.start("c")
    world.run(4)
    assert world.shares() == [2, 3, 3]
    assert len(moves(before.owners, world.record().owners)) == 2
    told = [one for one in a.work.told + b.work.told if one[0] == "finish"]
    assert len(told) == 4 + 2
    assert not [one for one in a.work.told + b.work.told if one[0] == "abort"]


def test_the_partitions_of_one_that_died_are_owned_again_in_time(world: World) -> None:
    for name in "abc":
        world.start(name)
    world.run(5)
    assert world.shares() == [2, 3, 3]
    world.kill("b")
    world.run(1.5 * TTL_S)
    assert world.shares() == [4, 4]


def test_one_that_was_frozen_may_do_nothing_when_it_wakes_and_takes_its_share_again(
    world: World,
) -> None:
    world.start("a")
    b = world.start("b")
    world.run(5)
    b.is_frozen = True
    partition, _ = next(iter(b.work.begun.items()))
    world.run(1.5 * TTL_S)
    assert len(world.nodes["a"].owned()) == 8
    with pytest.raises(LeaseLostError):
        b.member.term(partition)
    b.is_frozen = False
    world.run(5)
    assert world.shares() == [4, 4]
    assert ("abort", partition) in b.work.told


def test_while_the_store_is_away_a_member_goes_on_until_its_slot_runs_out(world: World) -> None:
    nodes = [world.start(name) for name in "ab"]
    world.run(5)
    for node in nodes:
        node.records.is_down = True
    world.run(TTL_S / 2)
    assert world.shares() == [4, 4]
    assert "it is down" in nodes[0].member.problem
    world.run(TTL_S)
    assert [node.owned() for node in nodes] == [set(), set()]
    assert [one for one in nodes[0].work.told if one[0] == "abort"]
    world.run(3 * TTL_S)
    for node in nodes:
        node.records.is_down = False
    world.run(TTL_S / 2)
    assert world.shares() == [4, 4]
    assert not nodes[0].member.problem
    assert world.record().number == 2, "both are the members that they were"


def test_a_partition_that_is_not_finished_in_time_is_taken_by_its_next_owner(world: World) -> None:
    a = world.start("a")
    a.work.is_slow = True
    world.run(2)
    b = world.start("b")
    world.run(FINISH_S - 1)
    assert b.owned() == set(), "a has not finished"
    slow = {partition for kind, partition in a.work.told if kind == "finish"}
    assert {a.member.term(one) for one in slow} == {1}
    world.run(4)
    with pytest.raises(LeaseLostError, match="not owned"):
        a.member.term(min(slow))
    world.run(TTL_S + 3)
    assert b.owned() == slow
    # The callback returns at last: that changes nothing for the one who has it now.
    for partition in slow:
        a.work.end(partition)
    world.run(5)
    assert world.shares() == [4, 4]


def test_one_that_leaves_finishes_and_is_not_waited_for(world: World) -> None:
    a, b = world.start("a"), world.start("b")
    world.run(5)
    mine = a.owned()
    a.member.leave()
    world.run(4)
    assert b.owned() == set(range(8))
    assert [kind for kind, one in a.work.told if one in mine][-1] == "finish"
    assert a.membership.slot is None


@pytest.mark.parametrize("is_wanted", [False, True])
def test_a_partition_whose_answer_was_lost_is_used_or_given_back(
    world: World, is_wanted: bool
) -> None:
    a = world.start("a")
    a.member.ask_store()  # takes its slot and learns what it is to own
    a.records.loses_answers = True
    assert a.member.ask_store() > 0
    assert a.owned() == set()
    a.records.loses_answers = False
    if is_wanted:
        world.run(1)
        assert a.owned() == set(range(8))
        assert max(a.work.begun.values()) == 2
    else:
        a.member.leave()
        b = world.start("b")
        world.run(5)
        assert a.work.told == []
        assert b.owned() == set(range(8))


def test_a_process_with_other_facts_fails_and_says_why(world: World) -> None:
    world.start("a")
    world.run(1)
    other = world.start("b", GroupFacts("billing", 8, ("shop.items",)))
    world.run(1)
    assert isinstance(other.work.failed, SettingsError)
    assert "sources = ('shop.orders',), not" in other.member.problem
    assert world.record().number == 1


def test_a_quiet_group_asks_the_store_as_often_whatever_its_partitions(world: World) -> None:
    nodes = [world.start(name) for name in "abcdef"]
    world.run(20)
    for node in nodes:
        node.records.requests.clear()
    world.run(10 * TTL_S)
    each = [node.records.requests for node in nodes]
    # In ttl_s it looks six times at the group and at three members, and renews three times.
    assert max(one["read"] for one in each) <= 10 * (6 * (1 + 3) + 3)
    assert max(one["replace"] for one in each) <= 10 * 3
    assert min(one["replace"] for one in each) >= 10 * 2
    assert world.shares() == [1, 1, 1, 1, 2, 2]


def test_a_mistake_in_the_work_ends_the_member_and_another_takes_over(world: World) -> None:
    a = world.start("a")
    a.work.cannot_begin = 3
    with pytest.raises(KeyError):
        # Told to abort what it had not begun, this work makes a second mistake.
        world.run(1)
    assert str(a.work.failed) == "a mistake"
    world.kill("a")
    b = world.start("b")
    world.run(2 * TTL_S)
    assert b.owned() == set(range(8))


# -- with its threads -------------------------------------------------------------------------


def threaded(folder: Path, facts: GroupFacts = FACTS) -> Node:
    node = Node("a", FileRecords(folder), Clock(), facts)
    node.member.start()
    return node


def wait_until_all_begun(node: Node) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while len(node.work.begun) < FACTS.partitions:
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def test_a_member_that_stops_in_time_has_given_all_back(tmp_path: Path) -> None:
    node = threaded(tmp_path)
    wait_until_all_begun(node)
    assert node.member.stop(PATIENCE_S)
    assert node.work.begun == {}
    next_one = threaded(tmp_path)
    wait_until_all_begun(next_one)
    assert next_one.membership.name == "0.2"
    assert next_one.member.stop(PATIENCE_S)


def test_a_member_that_does_not_finish_in_time_aborts_everything(tmp_path: Path) -> None:
    node = threaded(tmp_path)
    node.work.is_slow = True
    wait_until_all_begun(node)
    assert not node.member.stop(0)
    kinds = Counter(kind for kind, _ in node.work.told)
    assert kinds == {"begin": 8, "finish": 8, "abort": 8}
    with pytest.raises(LeaseLostError):
        node.member.term(0)


def test_a_member_that_fails_ends_by_itself(tmp_path: Path) -> None:
    node = threaded(tmp_path)
    wait_until_all_begun(node)
    record = next((tmp_path / "groups").glob("*.json"))
    record.write_bytes(b"{}")
    node.clock.now_s += TTL_S / 4  # it looks
    deadline_s = time.monotonic() + PATIENCE_S
    while node.work.failed is None:
        node.member.finished(99)  # wakes it: its clock stands still
        assert time.monotonic() < deadline_s
        time.sleep(0.005)
    assert isinstance(node.work.failed, LeaseError)
    assert node.work.begun == {}
    assert not node.member.stop(0)
