"""Processes that contend for a lease while they are stopped and killed at random, on every store.

What they log shows that no two held the lease at once, and that nothing that one of them has saved
was lost or set back by another.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from tests import PATIENCE_S
from tests.databus.leases.writing import Positions

pytest_plugins = ["tests.record_stores"]

TTL_S = 0.5
PROCESSES = 3
ROUNDS = 6


class Entry(NamedTuple):
    """One line of a log."""

    what: str
    term: int
    values: tuple[float, ...]


def entries_in(log: Path) -> Iterator[Entry]:
    for line in log.read_text().splitlines():
        what, term, *values = line.split()
        yield Entry(what, int(term), tuple(map(float, values)))


def start(url: str, folder: Path, log: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.databus.leases.contending"]
    return subprocess.Popen([*command, url, str(folder), str(TTL_S), str(log)])


def owner_after(log: Path, term: int, patience_s: float) -> Entry | None:
    """Return the `begin` of the owner that follows a term; None after `patience_s`."""
    deadline_s = time.monotonic() + patience_s
    while time.monotonic() < deadline_s:
        newest = max((one for one in entries_in(log) if one.what == "begin"), default=None)
        if newest is not None and newest.term > term:
            return newest
        time.sleep(0.02)
    return None


@pytest.mark.parametrize("seed", [1])
def test_stopped_and_killed_owners_lose_nothing_and_never_hold_the_lease_twice(
    store_url: str, tmp_path: Path, seed: int
) -> None:
    print(f"seed {seed}")
    rng, log = Random(seed), tmp_path / "log"
    log.touch()
    with ExitStack() as ended:
        running: dict[int, subprocess.Popen[bytes]] = {}

        def start_one() -> None:
            process = ended.enter_context(start(store_url, tmp_path, log))
            ended.callback(process.kill)
            running[process.pid] = process

        for _ in range(PROCESSES):
            start_one()
        term = 0
        for number in range(ROUNDS):
            owner = owner_after(log, term, PATIENCE_S)
            assert owner is not None, f"no owner follows term {term}"
            time.sleep(rng.uniform(0, TTL_S))
            process = running[int(owner.values[1])]
            if number % 2:
                process.kill()
                term = owner.term
                start_one()
            else:
                process.send_signal(signal.SIGSTOP)
                # Stopped inside a transaction of SQLite, it is followed by nobody until it goes on.
                owner_after(log, owner.term, 5 * TTL_S)
                process.send_signal(signal.SIGCONT)
        assert owner_after(log, term, PATIENCE_S) is not None
    check(list(entries_in(log)))
    final = Positions(store_url, tmp_path)
    checkpoint, max_scn = final.begin(1 << 40)
    final.close()
    entries = [one for one in entries_in(log) if one.what in ("begin", "saved")]
    saved = max(one.values[0] for one in entries if one.what == "saved")
    assert checkpoint is not None
    assert max_scn is not None
    # The last owner was perhaps killed before it could note what it had saved.
    most = max(one.values[0] for one in entries) + 1
    assert saved <= max_scn <= checkpoint.window_scn <= most


def check(entries: list[Entry]) -> None:
    """Assert what must hold for the log of terms."""
    begun = [one for one in entries if one.what == "begin"]
    assert len({one.term for one in begun}) == len(begun) > ROUNDS / 2
    print(f"{len(begun)} owners, {sum(one.what == 'saved' for one in entries)} saves")
    for one in begun:
        # An owner begins where the ones before it had got to.
        earlier = [e.values[0] for e in entries if e.what == "saved" and e.term < one.term]
        assert one.values[0] >= max(earlier, default=0)
        later = [e.values[0] for e in entries if e.what == "saved" and e.term == one.term]
        assert later == sorted(later)
        assert min(later, default=one.values[0] + 1) == one.values[0] + 1
    held = [one for one in entries if one.what == "held"]
    for one in held:
        # Somebody with a smaller term that certainly held it later than `one` certainly did.
        late = [e for e in held if e.term < one.term and e.values[0] > one.values[1]]
        assert late == []
