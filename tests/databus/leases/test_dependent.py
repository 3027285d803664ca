"""Leases that last as long as another one, in every kind of store."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from databus.leases.dependent import DependentLeases, owner_under
from databus.leases.records import Records
from databus.leases.store import Lease
from tests.databus.leases.contenders import TTL_S, Contender, Time

pytest_plugins = ["tests.record_stores"]

NAME = "billing/partitions/7"


class Process:
    """A process with a main lease of its own."""

    def __init__(self, name: str, records: Records, time: Time) -> None:
        self.contender = Contender(name, records, time)
        self.store = self.contender.store
        self.dependent = DependentLeases(records, self.store)
        self.main = self.take_main()

    def take_main(self) -> Lease:
        name = f"billing/members/{self.contender.name}"
        lease = self.store.acquire(name, self.contender.name, TTL_S)
        assert lease is not None
        return lease

    def acquire(self) -> int | None:
        return self.dependent.acquire(NAME, self.main)

    def wait(self, seconds: float) -> None:
        """Let time pass, asking as often as one must; nothing may be had meanwhile."""
        for _ in range(8):
            assert self.acquire() is None
            self.contender.time.now_s += seconds / 8


@pytest.fixture
def processes(open_store: Callable[[], Records]) -> tuple[Process, Process]:
    time = Time()
    return Process("a", open_store(), time), Process("b", open_store(), time)


def test_one_has_it_until_it_releases_it(processes: tuple[Process, Process]) -> None:
    a, b = processes
    assert a.acquire() == 1
    assert b.acquire() is None
    b.dependent.release(NAME, 2)  # of nobody
    assert b.acquire() is None
    a.dependent.release(NAME, 1)
    assert b.acquire() == 2
    a.dependent.release(NAME, 1)  # late
    assert a.acquire() is None
    assert a.store.look(NAME).owner == owner_under(b.main)


def test_releasing_what_nobody_ever_had_does_nothing(processes: tuple[Process, Process]) -> None:
    processes[0].dependent.release(NAME, 1)
    assert processes[1].acquire() == 1


def test_who_has_it_gets_a_new_term_for_an_answer_may_have_been_lost(
    processes: tuple[Process, Process],
) -> None:
    a, b = processes
    assert [a.acquire(), a.acquire()] == [1, 2]
    assert b.acquire() is None


def test_renewing_the_main_lease_keeps_it(processes: tuple[Process, Process]) -> None:
    a, b = processes
    assert a.acquire() == 1
    for _ in range(6):
        b.wait(TTL_S)
        assert a.store.renew(a.main) is not None


def test_it_is_free_with_the_release_of_the_main_lease(processes: tuple[Process, Process]) -> None:
    a, b = processes
    assert a.acquire() == 1
    a.store.release(a.main)
    assert b.acquire() == 2
    # The same name again is another main lease: what hung on the former one is gone.
    a.main = a.take_main()
    assert a.acquire() is None


def test_who_does_not_renew_loses_both_for_good(processes: tuple[Process, Process]) -> None:
    a, b = processes
    assert a.acquire() == 1
    b.wait(TTL_S)
    assert a.store.held_for_s(a.main) == 0  # the owner knows some time before others may
    b.wait(TTL_S / 4)
    assert b.acquire() == 2
    assert a.store.renew(a.main) is None


def test_a_main_lease_that_ran_out_and_was_taken_from_its_owner_is_not_renewed(
    processes: tuple[Process, Process],
) -> None:
    a, b = processes
    for _ in range(5):
        assert not b.store.has_ended(a.main.name, a.main.term)
        a.contender.time.now_s += TTL_S / 4
    assert b.store.has_ended(a.main.name, a.main.term)
    assert a.store.renew(a.main) is None
    assert a.store.look(a.main.name).owner == ""
    assert b.store.has_ended(a.main.name, a.main.term)


def test_a_main_lease_that_is_renewed_just_then_has_not_ended(
    processes: tuple[Process, Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = processes
    for _ in range(5):
        b.store.has_ended(a.main.name, a.main.term)
        a.contender.time.now_s += TTL_S / 4
    replace = b.contender.records.replace

    def renewed_before(*args: object) -> bool:
        assert a.store.renew(a.main) is not None
        return replace(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(b.contender.records, "replace", renewed_before)
    assert not b.store.has_ended(a.main.name, a.main.term)
    assert a.store.renew(a.main) is not None
