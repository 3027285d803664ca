"""How resident sizes are read and compared."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.memory import Sizes, resident_bytes, sample
from databus.demo.processes import Child, ChildError
from tests import PATIENCE_S


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[Child]:
    code = "import threading; threading.Event().wait()"
    child = Child("sleeper", [sys.executable, "-c", code], tmp_path)
    child.start()
    yield child
    child.kill()


def test_a_process_that_allocates_is_seen_to_grow() -> None:
    # A process of its own: a large one may hand out memory that it has freed, and not grow.
    size = 32 << 20
    code = f"print(flush=True); input(); held = b'x' * {size}; print(flush=True); input()"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        before = resident_bytes(process.pid)
        process.stdin.write("\n")
        process.stdout.readline()
        after = resident_bytes(process.pid)
        process.stdin.write("\n")
    assert after - before >= size * 0.9


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
    assert child.wait(PATIENCE_S) == 3
    with pytest.raises(ChildError, match="short ended with 3"):
        sample([child], 1.0, lambda seconds: None)
