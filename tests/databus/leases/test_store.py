"""Leases in every kind of store: one owner at a time, terms that only grow."""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random

import pytest

from databus.leases.errors import LeaseError, LeaseLostError
from databus.leases.holding import HeldLease
from databus.leases.places import open_leases
from databus.leases.records import Records
from databus.leases.store import LeaseStore, key_of
from databus.schemas.errors import SettingsError
from tests import PATIENCE_S
from tests.databus.leases.contenders import LEASE, TTL_S, Contender, Time, run

pytest_plugins = ["tests.record_stores"]

Open = Callable[[], Records]


def wait_for(one: Contender, seconds: float, looks: int = 8) -> None:
    """Let time pass, while a contender looks at the lease as often as it should."""
    for _ in range(looks):
        one.time.now_s += seconds / looks
        one.store.look(LEASE)


def pair(open_store: Open) -> tuple[Contender, Contender, Time]:
    time = Time()
    return Contender("a", open_store(), time), Contender("b", open_store(), time), time


def test_a_lease_is_had_by_one_and_by_another_after_its_release(open_store: Open) -> None:
    a, b, _ = pair(open_store)
    first = a.store.acquire(LEASE, "a", TTL_S)
    assert first is not None
    assert (first.term, a.store.held_for_s(first)) == (1, TTL_S)
    assert b.store.acquire(LEASE, "b", TTL_S) is None
    assert a.store.acquire(LEASE, "a", TTL_S) is None
    a.store.release(first)
    second = b.store.acquire(LEASE, "b", TTL_S)
    assert second is not None
    assert second.term == 2
    # What the first owner does late changes nothing.
    a.store.release(first)
    assert a.store.renew(first) is None
    assert b.store.look(LEASE).owner == "b"


def test_records_of_a_folder_are_listed(open_store: Open) -> None:
    records = open_store()
    assert records.names("leases") == []
    for name in ("leases/a-1", "leases/b_2.c", "leases/inner/d", "lease", "leases2/e"):
        assert records.replace(name, b"{}", None)
    assert sorted(set(records.names("leases")) - {"leases/inner"}) == ["leases/a-1", "leases/b_2.c"]
    assert records.names("leases/inner") == ["leases/inner/d"]


def test_leases_of_several_names_are_apart(open_store: Open) -> None:
    a, b, _ = pair(open_store)
    names = [LEASE, "billing/8", "Billing/7", "größe ☃/" + "x" * 300, "../../x"]
    terms = [a.store.acquire(name, "a", TTL_S) for name in names]
    assert [one and one.term for one in terms] == [1] * len(names)
    assert [b.store.look(name).owner for name in names] == ["a"] * len(names)


def test_an_owner_that_renews_keeps_its_lease_and_its_term(open_store: Open) -> None:
    a, b, time = pair(open_store)
    lease = a.store.acquire(LEASE, "a", TTL_S)
    for _ in range(12):
        time.now_s += TTL_S / 3
        assert lease is not None
        lease = a.store.renew(lease)
        assert b.store.acquire(LEASE, "b", TTL_S) is None
    assert lease is not None
    assert (lease.term, a.store.held_for_s(lease)) == (1, TTL_S)


def test_a_lease_that_is_not_renewed_is_taken_and_its_owner_knows_by_itself(
    open_store: Open,
) -> None:
    a, b, _ = pair(open_store)
    lease = a.store.acquire(LEASE, "a", TTL_S)
    assert lease is not None
    assert b.store.acquire(LEASE, "b", TTL_S) is None
    wait_for(b, TTL_S - 0.1)
    assert a.store.held_for_s(lease) == pytest.approx(0.1)
    wait_for(b, 0.1)
    # The owner's time is over some time before others may take the lease.
    assert a.store.held_for_s(lease) == 0
    assert b.store.acquire(LEASE, "b", TTL_S) is None
    wait_for(b, TTL_S / 4)
    taken = b.store.acquire(LEASE, "b", TTL_S)
    assert taken is not None
    assert taken.term == 2
    assert a.store.renew(lease) is None


def test_a_lease_that_ran_out_untaken_goes_on_under_its_term(open_store: Open) -> None:
    a, b, _ = pair(open_store)
    lease = a.store.acquire(LEASE, "a", TTL_S)
    assert lease is not None
    b.store.look(LEASE)
    wait_for(b, 3 * TTL_S)
    assert b.store.look(LEASE).is_free
    renewed = a.store.renew(lease)
    assert renewed is not None
    assert renewed.term == 1
    assert not b.store.look(LEASE).is_free
    assert b.store.acquire(LEASE, "b", TTL_S) is None


def test_terms_go_on_when_everyone_has_gone_and_the_store_is_opened_anew(store_url: str) -> None:
    for term in (1, 2, 3):
        leases = open_leases(store_url)
        lease = leases.acquire(LEASE, f"process {term}", TTL_S)
        assert lease is not None
        assert lease.term == term
        leases.release(lease)
        leases.close()


def test_terms_go_on_from_what_was_written_if_the_store_has_lost_them(open_store: Open) -> None:
    store = LeaseStore(open_store())
    lease = store.acquire(LEASE, "a", TTL_S, above=41)
    assert lease is not None
    assert lease.term == 42


@pytest.mark.parametrize("seed", range(3))
def test_two_contenders_never_hold_the_lease_at_once(open_store: Open, seed: int) -> None:
    print(f"seed {seed}")
    log = run(open_store, Random(seed), steps=150)
    terms = [term for term, _ in log]
    assert terms == list(range(1, len(terms) + 1))
    assert len({owner for _, owner in log}) > 1


def test_of_many_that_want_it_at_the_same_moment_one_gets_it(open_store: Open) -> None:
    stores = [LeaseStore(open_store()) for _ in range(4)]
    barrier, got = threading.Barrier(len(stores)), list[int]()

    def want(store: LeaseStore, name: str) -> None:
        barrier.wait()
        lease = store.acquire(name, "somebody", TTL_S)
        if lease is not None:
            got.append(lease.term)

    for turn in range(5):
        threads = [threading.Thread(target=want, args=(s, f"lease {turn}")) for s in stores]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert got == [1] * (turn + 1)


def test_an_owner_whose_clock_goes_back_stops_until_it_has_renewed(open_store: Open) -> None:
    a, _, _ = pair(open_store)
    lease = a.store.acquire(LEASE, "a", TTL_S)
    assert lease is not None
    held = HeldLease(a.store, lease)
    a.time.now_s += 1
    assert held.term() == 1
    a.offset_s -= 0.5
    with pytest.raises(LeaseLostError, match="not renewed in time"):
        held.term()
    assert held.due_in_s == 0
    held.renew_if_due()
    assert held.term() == 1


def test_an_owner_whose_clock_jumps_ahead_stops_and_goes_on_after_it_has_renewed(
    open_store: Open,
) -> None:
    a, b, _ = pair(open_store)
    lease = a.store.acquire(LEASE, "a", TTL_S)
    assert lease is not None
    a.offset_s += 2 * TTL_S
    assert a.store.held_for_s(lease) == 0
    assert b.store.acquire(LEASE, "b", TTL_S) is None
    assert a.store.renew(lease) is not None


@pytest.mark.parametrize("jump_s", [100 * TTL_S, -100 * TTL_S])
def test_a_contender_whose_clock_jumps_takes_nothing(open_store: Open, jump_s: float) -> None:
    a, b, _ = pair(open_store)
    lease = a.store.acquire(LEASE, "a", TTL_S)
    assert lease is not None
    assert b.store.acquire(LEASE, "b", TTL_S) is None
    wait_for(b, TTL_S - 0.1)
    b.offset_s += jump_s
    assert b.store.acquire(LEASE, "b", TTL_S) is None
    assert a.store.held_for_s(lease) > 0
    wait_for(b, 1.5 * TTL_S)
    assert b.store.acquire(LEASE, "b", TTL_S) is not None


def test_a_watch_tells_of_an_owner_a_release_and_a_lease_that_ran_out(open_store: Open) -> None:
    leases, other = LeaseStore(open_store()), LeaseStore(open_store())
    watch = other.watch(LEASE)
    state = watch.wait(PATIENCE_S)
    assert state is not None
    assert (state.owner, state.term, state.is_free) == ("", 0, True)
    told = []

    def follow() -> None:
        while state := watch.wait(PATIENCE_S):
            told.append((state.owner, state.term, state.is_free))
            if told[-1] == ("c", 2, True):
                return
            moved.release()

    moved = threading.Semaphore(0)
    thread = threading.Thread(target=follow)
    thread.start()
    first = leases.acquire(LEASE, "a", 30.0)
    assert first is not None
    moved.acquire()
    leases.release(first)
    moved.acquire()
    assert leases.acquire(LEASE, "c", 0.2) is not None
    thread.join()
    assert told == [("a", 1, False), ("", 1, True), ("c", 2, False), ("c", 2, True)]


def test_a_watch_of_what_does_not_change_ends_with_its_time(open_store: Open) -> None:
    watch = LeaseStore(open_store()).watch(LEASE)
    assert watch.wait(0) is not None
    assert watch.wait(0) is None


@pytest.mark.parametrize(("owner", "ttl_s"), [("", 1.0), ("a", 0.0), ("a", float("inf"))])
def test_a_lease_needs_an_owner_and_a_time(open_store: Open, owner: str, ttl_s: float) -> None:
    with pytest.raises(SettingsError, match="owner = "):
        LeaseStore(open_store()).acquire(LEASE, owner, ttl_s)


def test_a_damaged_record_is_an_error_that_says_what_to_do(open_store: Open) -> None:
    records = open_store()
    store = LeaseStore(records)
    assert store.acquire(LEASE, "a", TTL_S) is not None
    other = store.acquire("billing/8", "a", TTL_S)
    assert other is not None
    names = [key_of(name) for name in (LEASE, "billing/8")]
    stored = [records.read(name) for name in names]
    assert stored[0] is not None
    assert stored[1] is not None
    for damaged in (stored[1].data, stored[0].data.replace(b'"term": 1', b'"term": 2'), b"{}"):
        assert records.replace(names[0], damaged, records.read(names[0]))
        with pytest.raises(LeaseError, match=r"billing/7.*restore it from a copy"):
            store.look(LEASE)
