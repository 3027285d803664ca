"""Groups of real processes on real stores, that join, leave, are killed and stopped.

What they log shows that no partition had two owners at any moment, that each settles to equal
shares, and that no more partitions move than the assignment says.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from databus.client.membership.membership import Membership
from databus.groups.assignment import moves
from databus.groups.group_record import GroupRecord, Process
from databus.leases.places import open_records
from databus.leases.store import LeaseStore
from tests import PATIENCE_S
from tests.client.membership.group_process import FACTS
from tests.zookeeper_server import PrivateZookeeper

pytest_plugins = ["tests.record_stores"]

TTL_S = 3.0


class Group:
    """The processes of a group, and their log."""

    def __init__(self, url: str, log: Path, ended: ExitStack) -> None:
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        self._url, self._log, self._ended = url, log, ended
        log.touch()
        records = open_records(url)
        ended.callback(records.close)
        self._looking = Membership(records, LeaseStore(records), FACTS, Process("test"))

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.client.membership.group_process", self._url]
        process = subprocess.Popen([*command, str(TTL_S), str(self._log)])
        self._ended.callback(process.wait)
        self._ended.callback(process.kill)
        self.running[process.pid] = process

    def kill(self, pid: int) -> None:
        process = self.running.pop(pid)
        process.kill()
        process.wait()

    def leave(self, pid: int) -> None:
        process = self.running.pop(pid)
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
        assert ["left", str(pid)] in self.lines()

    def record(self) -> GroupRecord:
        return self._looking.look()

    def lines(self) -> list[list[str]]:
        return [line.split() for line in self._log.read_text().splitlines()]

    def moved(self) -> int:
        """Return how often a partition has begun anew, but for what its own process aborted.

        On a machine that is too slow for the slots, one aborts, and begins again what it had.
        """
        kinds = Counter(line[0] for line in self.lines())
        return kinds["begin"] - kinds["abort"]

    def owners(self) -> dict[int, set[int]]:
        """Return the running processes that have begun each partition and not ended it."""
        owners: dict[int, set[int]] = {}
        for kind, pid, *values in self.lines():
            if kind in ("begin", "finish", "abort"):
                of_one = owners.setdefault(int(values[0]), set())
                (of_one.add if kind == "begin" else of_one.discard)(int(pid))
        return {number: found & self.running.keys() for number, found in owners.items()}

    def settle(self) -> None:
        """Wait until each partition has one owner, and all processes equal shares."""
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            if self.is_settled():
                return
            time.sleep(0.05)
        raise AssertionError(f"{self.owners()}, {self.record()}")

    def is_settled(self) -> bool:
        owners = self.owners()
        shares = Counter(pid for found in owners.values() for pid in found)
        each = [shares[pid] for pid in self.running]
        is_owned = len(owners) == FACTS.partitions and all(len(one) == 1 for one in owners.values())
        return is_owned and max(each) - min(each) <= 1


@pytest.fixture
def ended() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def check_no_two_owners(lines: list[list[str]]) -> None:
    """Assert that nobody owned a partition after somebody with a greater term did."""
    first_owned_s: dict[int, dict[int, float]] = {}  # partition, term: certainly owned by then
    last_owned_s: dict[int, dict[int, float]] = {}  # certainly owned still
    pids: dict[tuple[int, int], str] = {}
    for kind, pid, *values in lines:
        if kind != "owns":
            continue
        before_s, after_s = map(float, values[:2])
        for partition, term in (map(int, one.split(":")) for one in values[2].split(",")):
            assert pids.setdefault((partition, term), pid) == pid, "a term has one owner"
            first_owned_s.setdefault(partition, {}).setdefault(term, after_s)
            last_owned_s.setdefault(partition, {})[term] = before_s
    for partition, last in last_owned_s.items():
        first = first_owned_s[partition]
        for term, next_term in zip(sorted(last), sorted(last)[1:], strict=False):
            assert last[term] <= first[next_term], (partition, term, next_term)


@pytest.mark.parametrize("store_kind", ["file", "zookeeper"], indirect=True)
@pytest.mark.parametrize("seed", [1])
def test_processes_that_come_and_go_share_the_partitions_and_none_has_two_owners(
    store_url: str, tmp_path: Path, ended: ExitStack, seed: int
) -> None:
    print(f"seed {seed}")
    random, group = Random(seed), Group(store_url, tmp_path / "log", ended)
    for _ in range(3):
        group.start()
    group.settle()
    for kind in ("join", "kill", "stop", "leave", "join"):
        before, moved = group.record(), group.moved()
        victim = random.choice(sorted(group.running))
        if kind == "join":
            group.start()
        elif kind == "leave":
            group.leave(victim)
        elif kind == "kill":
            group.kill(victim)
        else:
            stop_for_longer_than_its_slot(group, victim)
        group.settle()
        after = group.record()
        print(kind, after.number - before.number, group.moved() - moved)
        if after.number == before.number + 1:  # a process that was stopped has gone and come
            assert group.moved() - moved == len(moves(before.owners, after.owners)) <= 16
    assert not [line for line in group.lines() if line[0] == "failed"]
    check_no_two_owners(group.lines())


def stop_for_longer_than_its_slot(group: Group, pid: int) -> None:
    process = group.running.pop(pid)
    process.send_signal(signal.SIGSTOP)
    group.settle()  # among the others
    group.running[pid] = process
    process.send_signal(signal.SIGCONT)


def test_while_zookeeper_is_away_nobody_takes_what_another_had_and_then_all_go_on(
    tmp_path: Path, ended: ExitStack
) -> None:
    zookeeper = ended.enter_context(PrivateZookeeper())
    group = Group(zookeeper.url(), tmp_path / "log", ended)
    for _ in range(3):
        group.start()
    group.settle()
    terms = {(line[2], line[3]) for line in group.lines() if line[0] == "begin"}
    zookeeper.kill()
    deadline_s = time.monotonic() + PATIENCE_S
    while any(group.owners().values()):
        assert time.monotonic() < deadline_s, "their slots have run out"
        time.sleep(0.05)
    again = {(line[2], line[3]) for line in group.lines() if line[0] == "begin"} - terms
    assert not again
    zookeeper.start()
    group.settle()
    check_no_two_owners(group.lines())
