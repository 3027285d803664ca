"""Readers at different speeds, in threads and in another process, while the ring wraps."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path

from databus.relay.ring.reader import RingReader
from databus.relay.ring.ring import Ring
from tests import PATIENCE_S
from tests.relay.ring.child import follow
from tests.relay.ring.model import make_window, window_of
from tools.repository import ROOT

CAPACITY = 64 << 10
WRAPS = 5


def windows_for(size_bytes: int) -> int:
    """Return how many windows it takes to write so many bytes."""
    scn = total = 0
    while total < size_bytes:
        scn += 1
        total += len(window_of(scn).data)
    return scn


def wait_until(is_so: Callable[[], bool]) -> None:
    tick = threading.Event()
    for _ in range(round(PATIENCE_S / 0.001)):
        if is_so():
            return
        tick.wait(0.001)
    raise AssertionError("waited in vain")


def test_five_wraps_with_four_readers_at_different_speeds(tmp_path: Path) -> None:
    path = tmp_path / "shop.ring"
    last_scn = windows_for(WRAPS * CAPACITY)
    ring = Ring.open(path, "shop", CAPACITY, start_scn=0)
    command = [sys.executable, "-m", "tests.relay.ring.child", "read", str(path), str(last_scn)]
    readers = [RingReader.open(path) for _ in range(3)]
    seen_by_fast = [0]

    class Fast(RingReader):
        """Tells how far it is, so that the writer can keep within its reach."""

        def find(self, scn: int, window_offset: int) -> int | None:
            seen_by_fast[0] = scn
            return super().find(scn, window_offset)

    fast = Fast.open(path)
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as other,
        ThreadPoolExecutor(4) as pool,
    ):
        try:
            ring.append([window_of(1)])
            assert other.stdout is not None
            assert other.stdout.readline() == b"reading\n"
            chunks = (1200, 4000, 20_000)  # the largest window has 1000 bytes
            slow = [
                pool.submit(follow, reader, last_scn, chunk)
                for reader, chunk in zip(readers, chunks, strict=True)
            ]
            kept_up = pool.submit(follow, fast, last_scn, 1 << 20)

            def is_near(scn: int) -> bool:
                return kept_up.done() or seen_by_fast[0] > scn - 100

            for scn in range(2, last_scn + 1):
                ring.append([window_of(scn)])
                if scn % 50 == 0:
                    wait_until(partial(is_near, scn))
            results = [future.result(PATIENCE_S) for future in (*slow, kept_up)]
            results.append(json.loads(other.communicate(timeout=PATIENCE_S)[0]))
        finally:
            other.kill()
    for reader in (*readers, fast):
        reader.close()
    assert ring.tail >= WRAPS * CAPACITY
    ring.close()
    for seen in results:
        assert seen["scn"] == last_scn
        assert seen["windows"] + seen["missed"] == last_scn
    assert results[3]["missed"] == 0, "the one the writer waited for missed a window"


def test_a_reader_remembers_the_ends_of_a_few_windows_only(tmp_path: Path) -> None:
    path = tmp_path / "shop.ring"
    with closing(Ring.open(path, "shop", 1 << 20, start_scn=0)) as ring:
        ring.append([make_window(scn) for scn in range(1, 2000)])
        with closing(RingReader.open(path)) as reader:
            for scn in range(1, 2000):
                found = reader.find(scn, -1)
                assert found is not None
                reader.remember_end(scn, found)
                assert len(reader._remembered) <= 256
            assert reader.find(1000, -1) is not None


def test_a_reader_sees_in_another_mapping_what_was_appended_before_it_asked(
    tmp_path: Path,
) -> None:
    ring = Ring.open(tmp_path / "shop.ring", "shop", CAPACITY, start_scn=0)
    reader = RingReader.open(tmp_path / "shop.ring")
    for scn in range(1, 2000):
        ring.append([window_of(scn)])
        position = reader.find(scn - 1, -1)
        assert position is not None
        assert reader.read(position, CAPACITY) == window_of(scn).data
    reader.close()
    ring.close()
