"""How resident sizes are read and compared."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.memory import Sizes, resident_bytes, sample
from databus.demo.processes import Child, ChildError


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[Child]:
    code = "import threading; threading.Event().wait()"
    child = Child("sleeper", [sys.executable, "-c", code], tmp_path)
    child.start()
    yield child
    child.kill()


def test_a_process_that_allocates_is_seen_to_grow() -> None:
    before = resident_bytes(os.getpid())
    held = bytearray(os.urandom(1 << 20) * 32)
    assert resident_bytes(os.getpid()) - before >= len(held) * 0.9


def test_the_spread_is_from_smallest_to_largest() -> None:
    assert Sizes([100, 110, 105]).spread_percent == pytest.approx(10)
    assert Sizes([7, 7]).spread_percent == 0


def test_children_are_sampled_for_as_long_as_asked(sleeper: Child) -> None:
    slept: list[float] = []
    (sizes,) = sample([sleeper], 2.0, slept.append)
    assert sum(slept) == pytest.approx(2.0)
    assert len(sizes.samples) == len(slept)
    assert min(sizes.samples) > 0


def test_a_child_that_ends_while_sampled_is_an_error(tmp_path: Path) -> None:
    child = Child("short", [sys.executable, "-c", "raise SystemExit(3)"], tmp_path)
    child.start()
    assert child.wait(20) == 3
    with pytest.raises(ChildError, match="short ended with 3"):
        sample([child], 1.0, lambda seconds: None)
