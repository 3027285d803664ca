"""The garbage collector of a process of databus."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from databus.client.sinks.serving.garbage import collect_rarely


class Node:
    """Something that can be in a cycle."""

    def __init__(self) -> None:
        self.other = self


@pytest.fixture
def thresholds() -> Iterator[tuple[int, ...]]:
    """Give Python's own thresholds: a sink that ran in this process before has set its own."""
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield gc.get_threshold()
    gc.set_threshold(*before)


def test_cycles_are_looked_for_less_often_and_still_found(thresholds: tuple[int, ...]) -> None:
    collect_rarely()
    rare = gc.get_threshold()[0]
    assert rare > 10 * thresholds[0]
    gone = weakref.ref(Node())
    kept = [[number] for number in range(2 * rare)]
    assert gone() is None, len(kept)
