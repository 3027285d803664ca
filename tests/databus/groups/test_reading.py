"""What the records of a group say of it, on every kind of store."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from databus.client.checkpoints.fenced import RecordCheckpoints
from databus.groups.moves import read_moves
from databus.groups.names import checkpoint_name, member_lease, partition_lease
from databus.groups.reading import read_group, read_partitions
from databus.leases.errors import LeaseError
from databus.leases.records import Records
from databus.leases.store import key_of
from databus.schemas.checkpoint import Checkpoint
from tests.client.membership.world import FACTS, World

pytest_plugins = ["tests.record_stores"]


def test_each_partition_has_its_owner_term_and_position(open_store: Callable[[], Records]) -> None:
    world, records = World(open_store), open_store()
    world.start("a")
    world.run(5.0)
    store = RecordCheckpoints(records)
    for partition, scn in ((0, 70), (5, 75)):
        name = checkpoint_name("billing", 0, partition)
        store.begin_term(name, FACTS.sources, 1)
        store.save_under(name, FACTS.sources, Checkpoint.at(scn), 1)
    world.start("b")
    world.run(10.0)
    record = read_group(records, "billing")
    found = list(read_partitions(records, record))
    assert [one.partition for one in found] == list(range(FACTS.partitions))
    for name, node in world.nodes.items():
        assert {one.partition for one in found if one.owner == name} == node.owned()
        assert {one.partition: one.term for one in found if one.owner == name} == node.work.begun
    assert all(one.owner == one.assigned and one.taken_at is not None for one in found)
    assert [one.scn for one in found] == [70, *[None] * 4, 75, *[None] * 2]
    moves = read_moves(records, "billing")
    assert moves is not None
    assert moves.total == FACTS.partitions // 2
    assert [(one.former, one.owner) for one in moves.moves] == [("", "a"), ("a", "b")]
    assert set(moves.moves[1].partitions) == world.nodes["b"].owned()


def test_who_was_killed_is_the_owner_until_others_know(open_store: Callable[[], Records]) -> None:
    world, records = World(open_store), open_store()
    world.start("a")
    world.start("b")
    world.run(10.0)
    lost = world.nodes["b"].owned()
    world.kill("b")
    found = read_partitions(records, read_group(records, "billing"))
    assert {one.partition for one in found if one.owner == "b"} == lost
    world.run(20.0)
    found = read_partitions(records, read_group(records, "billing"))
    assert {one.owner for one in found} == {"a"}
    moves = read_moves(records, "billing")
    assert moves is not None
    assert (moves.moves[-1].former, moves.moves[-1].owner) == ("b", "a")
    assert set(moves.moves[-1].partitions) == lost


def test_what_cannot_be_read_is_named_and_the_rest_is_shown(
    open_store: Callable[[], Records],
) -> None:
    world, records = World(open_store), open_store()
    world.start("a")
    world.run(3.0)
    for name in (key_of(partition_lease("billing", 3)), key_of(member_lease("billing", 0))):
        stored = records.read(name)
        assert stored is not None
        assert records.replace(name, stored.data.replace(b"billing", b"billinh"), stored)
    found = list(read_partitions(records, read_group(records, "billing")))
    assert "partitions/3" in found[3].problem
    assert "members/0" in found[0].problem
    assert found[3].owner is None
    with pytest.raises(LeaseError, match="no group 'others'"):
        read_group(records, "others")
