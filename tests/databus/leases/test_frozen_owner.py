"""Owners that are stopped or killed: what they write afterwards is refused, in every store."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from databus.leases.places import open_leases
from databus.leases.store import Lease, LeaseStore
from databus.schemas.checkpoint import Checkpoint
from tests import PATIENCE_S
from tests.databus.leases.writing import LEASE, NAME, SOURCES, Positions

pytest_plugins = ["tests.record_stores"]

TTL_S = 3.0


class Owner:
    """The process of `owner.py`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def send(self, signal_: signal.Signals) -> None:
        self._process.send_signal(signal_)

    def ask(self, *commands: str) -> list[str]:
        """Send lines and return as many."""
        self.tell(*commands)
        return [self.read() for _ in commands]

    def tell(self, *commands: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("".join(f"{command}\n" for command in commands))
        self._process.stdin.flush()

    def read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@contextmanager
def owner(url: str, folder: Path, ttl_s: float) -> Iterator[Owner]:
    """Start an owner and wait until it has the lease; it is killed at the end."""
    command = [sys.executable, "-m", "tests.databus.leases.owner", url, str(folder), str(ttl_s)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            started = Owner(process)
            assert started.read() == "holds 1"
            yield started
        finally:
            process.kill()


@pytest.fixture
def leases(store_url: str) -> Iterator[LeaseStore]:
    store = open_leases(store_url)
    yield store
    store.close()


@pytest.fixture
def positions(store_url: str, tmp_path: Path) -> Iterator[Positions]:
    opened = Positions(store_url, tmp_path)
    yield opened
    opened.close()


def take_over(leases: LeaseStore) -> Lease:
    """Wait until the lease is free and take it."""
    watch = leases.watch(LEASE)
    while state := watch.wait(PATIENCE_S):
        if state.is_free:
            lease = leases.acquire(LEASE, "successor", TTL_S)
            if lease is not None:
                return lease
    raise AssertionError("the lease is never free")


def test_an_owner_that_was_stopped_for_longer_than_its_lease_writes_nothing(
    store_url: str, leases: LeaseStore, positions: Positions, tmp_path: Path
) -> None:
    with owner(store_url, tmp_path, TTL_S) as frozen:
        assert frozen.ask("look", "write 5") == ["holds 1", "saved saved"]
        frozen.send(signal.SIGSTOP)
        lease = take_over(leases)
        assert lease.term == 2
        assert positions.begin(lease.term) == (Checkpoint.at(5), 5)
        # It wakes with what it was about to do: it has written nothing new yet.
        frozen.tell("look", "write 6")
        frozen.send(signal.SIGCONT)
        assert frozen.read() == "lost"
        assert frozen.read() == "1<2 1<2"
        positions.checkpoints.save_under(NAME, SOURCES, Checkpoint.at(7), lease.term)
        positions.max_scn.save_under(7, 1, lease.term)
        assert frozen.ask("write 8") == ["1<2 1<2"]
    assert positions.begin(lease.term) == (Checkpoint.at(7), 7)


def test_an_owner_that_was_stopped_for_less_than_its_lease_goes_on(
    store_url: str, leases: LeaseStore, tmp_path: Path
) -> None:
    with owner(store_url, tmp_path, 60.0) as frozen:
        frozen.send(signal.SIGSTOP)
        assert leases.acquire(LEASE, "successor", TTL_S) is None
        frozen.send(signal.SIGCONT)
        assert frozen.ask("look", "write 5") == ["holds 1", "saved saved"]


def test_a_killed_owner_is_followed_under_the_next_term(
    store_url: str, leases: LeaseStore, positions: Positions, tmp_path: Path
) -> None:
    with owner(store_url, tmp_path, TTL_S) as killed:
        assert killed.ask("write 5") == ["saved saved"]
        killed.send(signal.SIGKILL)
        lease = take_over(leases)
    assert lease.term == 2
    assert positions.begin(lease.term) == (Checkpoint.at(5), 5)
