"""A resize loses no row and delivers none twice, whatever was consumed before it."""

from __future__ import annotations

import json
from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given, strategies as st

from databus.groups.generations import NOTHING, Generation, Resize, Vector

SIZES = st.integers(1, 12)


class Group:
    """A group that consumes rows: one hash for each SCN, in any order of the partitions."""

    def __init__(self, hashes: list[int], partitions: int) -> None:
        self.hashes = hashes
        self.generation = Generation.first(partitions)
        self.delivered: Counter[int] = Counter()

    def consume(self, partition: int, until_scn: int) -> None:
        """Let one partition read on from its checkpoint, and store the next one."""
        generation = self.generation
        for scn in range(generation.checkpoints.scns[partition] + 1, until_scn + 1):
            row_hash = self.hashes[scn]
            if row_hash % generation.partitions != partition:
                continue
            if not generation.is_consumed(scn, row_hash):
                self.delivered[scn] += 1
        if until_scn > generation.checkpoints.scns[partition]:
            self.generation = generation.advanced(partition, until_scn)

    def resize(self, partitions: int) -> None:
        made = Resize(self.generation, partitions)
        for partition, scn in enumerate(self.generation.checkpoints.scns):
            made.found_final(partition, scn)
        self.generation = made.finish()

    def finish(self) -> None:
        for partition in range(self.generation.partitions):
            self.consume(partition, len(self.hashes) - 1)


@given(
    st.lists(st.integers(0, (1 << 32) - 1), min_size=1, max_size=60),
    SIZES,
    st.lists(
        st.integers(0, 11).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, 60))) | SIZES,
        max_size=40,
    ),
)
def test_no_row_is_lost_and_none_comes_twice(
    hashes: list[int], partitions: int, steps: list[tuple[int, int] | int]
) -> None:
    group = Group(hashes, partitions)
    for step in steps:
        if isinstance(step, int):
            group.resize(step)
        else:
            partition, until = step
            group.consume(partition % group.generation.partitions, min(until, len(hashes) - 1))
    group.finish()
    assert group.delivered == dict.fromkeys(range(len(hashes)), 1)
    assert group.generation.former == (), "at the end no vector is needed any more"


@pytest.mark.parametrize("seed", range(5))
def test_32_partitions_become_48_and_16_while_rows_come(seed: int) -> None:
    random = Random(seed)
    group = Group([random.randrange(1 << 32) for _ in range(4000)], 32)
    until = 0
    for partitions in (48, 16, 64, 3, 5, 2):
        until += 500
        for partition in range(group.generation.partitions):
            group.consume(partition, random.randrange(until))
        group.resize(partitions)
        if partitions == 48:
            group.resize(16)  # during a resize
            group.resize(48)
    group.finish()
    assert set(group.delivered.values()) == {1}
    assert len(group.delivered) == 4000


def test_a_resize_rewinds_to_the_minimum() -> None:
    generation = Generation(0, Vector((50, 20, 40))).resized(2)
    assert generation == Generation(1, Vector((20, 20)), (Vector((50, 20, 40)),))
    assert generation.is_consumed(30, 3)  # 3 % 3 = 0, which had consumed window 50
    assert not generation.is_consumed(30, 4)


def test_a_partition_begins_where_those_began_that_it_has_keys_of() -> None:
    made = Generation(0, Vector((50, 20))).resized(4)
    assert made.checkpoints.scns == (50, 20, 50, 20)
    assert Generation(0, Vector((1, 2, 3, 4))).resized(2).checkpoints.scns == (1, 2)


def test_a_vector_is_dropped_once_every_checkpoint_is_past_its_maximum() -> None:
    former = Vector((50, 20, 40))
    generation = Generation(0, former).resized(2).advanced(0, 60)
    assert generation.former == (former,)
    assert generation.advanced(1, 49).former == (former,)
    assert generation.advanced(1, 50).former == ()


def test_a_resize_of_partitions_that_are_all_at_one_place_needs_no_vector() -> None:
    assert Generation.first(3, 7).resized(5) == Generation(1, Vector((7,) * 5))


def test_a_checkpoint_does_not_go_back() -> None:
    with pytest.raises(ValueError, match="partition 1 has consumed window 20, after 19"):
        Generation(0, Vector((50, 20))).advanced(1, 19)


def test_a_resize_needs_the_final_checkpoint_of_every_partition() -> None:
    made = Resize(Generation(0, Vector((50, 20))), 3)
    made.found_final(1, 25)
    assert made.missing == {0}
    with pytest.raises(ValueError, match=r"no final checkpoint of partitions \[0\]"):
        made.finish()
    made.found_final(0, 50)
    made.found_final(0, 50)  # the same one, read again
    assert made.finish().checkpoints.scns == (25, 25, 25)


@pytest.mark.parametrize("partitions", [0, -1, 32769])
def test_a_group_has_some_partitions_and_not_too_many(partitions: int) -> None:
    with pytest.raises(ValueError, match="1 to 32768 partitions"):
        Resize(Generation.first(2), partitions)


@given(
    st.integers(0, 9),
    st.lists(st.lists(st.integers(NOTHING, 99), min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_a_generation_comes_back_from_its_json(number: int, vectors: list[list[int]]) -> None:
    first, *others = (Vector(tuple(scns)) for scns in vectors)
    generation = Generation(number, first, tuple(others))
    assert Generation.from_json_value(json.loads(json.dumps(generation.to_json_value()))) == (
        generation
    )


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"generation": -1, "scns": [1], "former": []},
        {"generation": 0, "scns": [], "former": []},
        {"generation": 0, "scns": ["1"], "former": []},
        {"generation": 0, "scns": [1], "former": [[-2]]},
        {"generation": 0, "scns": 5, "former": []},
    ],
)
def test_what_is_no_generation_is_refused(value: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"generation|partitions"):
        Generation.from_json_value(value)
