"""A thread that keeps a lease: it contends, renews, gives back, and says what it cannot know."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from databus.leases.errors import LeaseLostError
from databus.leases.file_records import FileRecords
from databus.leases.keeper import LeaseKeeper
from databus.leases.store import LeaseStore
from tests import PATIENCE_S
from tests.databus.leases.contenders import Unsteady

LEASE, TTL_S = "capture/shop", 3.0


class Process:
    """A keeper, and what it was told."""

    def __init__(self, folder: Path, owner: str) -> None:
        self.records, self.wants, self.told = Unsteady(folder), True, list[bool]()
        store = LeaseStore(self.records)
        self.keeper = LeaseKeeper(store, LEASE, owner, TTL_S, lambda: self.wants, self._note)

    def _note(self) -> None:
        self.told.append(self.keeper.is_held)


@contextlib.contextmanager
def kept(*processes: Process) -> Iterator[None]:
    for one in processes:
        one.keeper.start()
    try:
        yield
    finally:
        for one in processes:
            assert one.keeper.stop(PATIENCE_S)


def wait(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def test_one_of_two_holds_the_lease_and_the_other_gets_it_when_the_first_ends(
    tmp_path: Path,
) -> None:
    first, second = Process(tmp_path, "a"), Process(tmp_path, "b")
    with kept(first):
        wait(lambda: first.keeper.is_held, "nobody acquired a free lease")
        term = first.keeper.term()
        with kept(second):
            wait(lambda: second.keeper.seen is not None, "the second never looked")
            time.sleep(1.5 * TTL_S)  # it is renewed meanwhile
            assert first.keeper.term() == term
            assert not second.keeper.is_held
            assert second.keeper.seen is not None
            assert second.keeper.seen.owner == "a"
            assert first.keeper.stop(PATIENCE_S)
            wait(lambda: second.keeper.is_held, "a lease that was given back is free")
            assert second.keeper.term() == term + 1
    assert (first.told, second.told) == ([True, False], [True, False])


def test_a_process_that_does_not_want_the_lease_gives_it_back_and_takes_none(
    tmp_path: Path,
) -> None:
    first, second = Process(tmp_path, "a"), Process(tmp_path, "b")
    with kept(first):
        wait(lambda: first.keeper.is_held, "nobody acquired a free lease")
        with kept(second):
            first.wants = False
            first.keeper.look_again()
            wait(lambda: second.keeper.is_held, "the second must get it")
            second.wants = False
            wait(lambda: not second.keeper.is_held, "the second does not want it")
            assert not first.keeper.is_held


def test_a_lease_runs_out_while_the_store_is_away_and_goes_on_if_nobody_took_it(
    tmp_path: Path,
) -> None:
    one = Process(tmp_path, "a")
    with kept(one):
        wait(lambda: one.keeper.is_held, "nobody acquired a free lease")
        term = one.keeper.term()
        one.records.is_down = True
        wait(lambda: "it is down" in one.keeper.problem, "the problem must be shown")
        wait(lambda: not one.keeper.is_held, "it runs out by the owner's own clock")
        with pytest.raises(LeaseLostError, match="it is down"):
            one.keeper.term()
        wait(lambda: one.told == [True, False], "the loss must be told")
        one.records.is_down = False
        wait(lambda: one.keeper.is_held, "nobody else took it, so its owner goes on")
        assert one.keeper.term() == term
        wait(lambda: not one.keeper.problem, "the problem is over")
    assert one.told == [True, False, True, False]


def test_a_lease_whose_record_was_lost_and_given_to_another_one_is_lost(tmp_path: Path) -> None:
    one, other = Process(tmp_path, "a"), LeaseStore(FileRecords(tmp_path))
    with kept(one):
        wait(lambda: one.keeper.is_held, "nobody acquired a free lease")
        assert one.keeper.term() == 1
        for path in tmp_path.rglob("*.json"):
            path.unlink()
        lease = other.acquire(LEASE, "b", 30.0)
        if lease is not None:  # else the first one was quicker, and has it anew
            assert lease.term == 1
            wait(lambda: not one.keeper.is_held, "term 1 is that of another one now")
    assert one.told[:2] == [True, False]


def test_after_a_refused_write_the_lease_counts_as_lost_and_the_next_term_is_greater(
    tmp_path: Path,
) -> None:
    one = Process(tmp_path, "a")
    with kept(one):
        wait(lambda: one.keeper.is_held, "nobody acquired a free lease")
        one.keeper.lose(7)
        assert not one.keeper.is_held
        wait(lambda: one.keeper.is_held, "it is acquired again once it has run out")
        assert one.keeper.term() == 8


def test_a_keeper_that_is_not_to_give_the_lease_back_leaves_it_to_run_out(tmp_path: Path) -> None:
    first, second = Process(tmp_path, "a"), Process(tmp_path, "b")
    first.keeper.start()
    wait(lambda: first.keeper.is_held, "nobody acquired a free lease")
    assert first.keeper.stop(10.0, gives_back=False)
    state = LeaseStore(second.records).look(LEASE)
    assert state.owner == "a"
    assert not state.is_free
