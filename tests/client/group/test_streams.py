"""Which partitions are read together."""

from __future__ import annotations

from databus.client.group.streams import Stream, next_stream
from databus.schemas.checkpoint import Checkpoint

ONLINE = Checkpoint.at(10)
FIRST = ONLINE.start_bootstrap("a")
LATER = ONLINE.start_bootstrap("b")


def test_partitions_with_a_position_are_one_stream_however_far_they_are() -> None:
    newest = {1: ONLINE, 2: Checkpoint.at(900), 5: Checkpoint.at(0)}
    assert next_stream(newest) == Stream(frozenset((1, 2, 5)))


def test_partitions_without_a_checkpoint_are_read_alone_until_they_have_one() -> None:
    assert next_stream({1: None, 2: None}) == Stream(frozenset((1, 2)))
    assert next_stream({1: None, 2: ONLINE}) == Stream(frozenset((1,)), is_partial=True)


def test_a_bootstrap_goes_first_and_alone_with_those_that_are_at_the_same_place() -> None:
    newest = {1: None, 2: LATER, 3: FIRST, 4: LATER, 5: ONLINE}
    assert next_stream(newest) == Stream(frozenset((2, 4)), is_partial=True)
    assert next_stream({2: LATER, 4: LATER}) == Stream(frozenset((2, 4)))
