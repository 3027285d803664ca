"""The position that may be stored while lanes are done in any order."""

from __future__ import annotations

import random
import threading
import time

import pytest
from hypothesis import given, strategies as st

from databus.client.sinks.rules.commit_ring import CommitRing
from databus.client.sinks.running.shared_ring import RingClosedError, SharedRing
from databus.schemas.errors import IllegalTransitionError
from tests import PATIENCE_S


def test_the_example_of_the_design_comes_out() -> None:
    ring = CommitRing[int](capacity=100, interval=5)
    numbers = {position: ring.begin(position) for position in range(1, 15)}
    stored = [ring.done(numbers[one]) for one in (1, 2, 3, 4, 5, 8, 10, 14)]
    assert [one for one in stored if one is not None] == [5]
    stored += [ring.done(numbers[one]) for one in (6, 7, 9)]
    assert [one for one in stored if one is not None] == [5, 10]


def test_in_ten_thousand_random_orders_everything_before_a_stored_position_is_done() -> None:
    rng = random.Random(4)
    for _ in range(10_000):
        count, interval = rng.randint(1, 20), rng.randint(1, 6)
        ring = CommitRing[int](count, interval)
        ends = [rng.random() < 0.6 for _ in range(count)]
        numbers = [ring.begin(at if ends[at] else None) for at in range(count)]
        done = set[int]()
        last = -1
        for at in rng.sample(range(count), count):
            done.add(at)
            stored = ring.done(numbers[at])
            if stored is not None:
                assert ends[stored]
                assert stored > last
                assert done.issuperset(range(stored + 1))
                last = stored
        newest = max((at for at in range(count) if ends[at]), default=-1)
        rest = ring.take()
        assert max(last, -1 if rest is None else rest) == newest
        assert ring.is_empty


def test_bytes_are_bounded_as_rows_are_and_one_that_is_too_large_is_alone() -> None:
    ring = CommitRing[int](capacity=10, most_bytes=100)
    first = ring.begin(1, 2, 60)
    assert not ring.has_room(1, 41)
    second = ring.begin(2, 2, 40)
    assert not ring.has_room(1, 1)
    ring.done(first)
    assert ring.has_room(1, 60)
    ring.done(second)
    large = ring.begin(3, 1, 1000)
    assert not ring.has_room(1, 0)
    ring.done(large)
    assert ring.has_room(10, 100)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=30), st.integers(1, 8))
def test_a_ring_never_holds_more_than_its_capacity_or_one_entry(
    sizes: list[int], capacity: int
) -> None:
    ring = CommitRing[int](capacity)
    begun: list[int] = []
    for at, size in enumerate(sizes):
        while not ring.has_room(size):
            ring.done(begun.pop(0))
        begun.append(ring.begin(at, size))
        assert ring.held <= capacity or len(begun) == 1


def test_an_entry_is_done_once_and_begun_before() -> None:
    ring = CommitRing[int](3)
    number = ring.begin(1)
    second = ring.begin(2)
    ring.done(second)
    for wrong in (second, number - 1, second + 1):
        with pytest.raises(IllegalTransitionError):
            ring.done(wrong)
    ring.begin(3)
    with pytest.raises(IllegalTransitionError):
        ring.begin(4)


def test_a_full_ring_lets_who_begins_wait() -> None:
    ring = SharedRing[int](2)
    first, _ = ring.begin(1), ring.begin(2)
    begun = threading.Event()

    def begin() -> None:
        ring.begin(3)
        begun.set()

    thread = threading.Thread(target=begin)
    thread.start()
    assert not begun.wait(0.1)
    assert ring.done([first]) == 1
    assert begun.wait(PATIENCE_S)
    thread.join()


def test_a_ring_that_is_closed_wakes_who_waits() -> None:
    ring = SharedRing[int](1)
    ring.begin(1)
    found: list[BaseException] = []

    def wait() -> None:
        try:
            ring.begin(2)
        except RingClosedError as error:
            found.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.02)
    ring.close()
    thread.join(PATIENCE_S)
    assert len(found) == 1
    with pytest.raises(RingClosedError):
        ring.wait_until_empty()
