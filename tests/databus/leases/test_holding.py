"""An owner's side: when it renews, and what it believes while the store cannot be reached."""

from __future__ import annotations

from pathlib import Path

import pytest

from databus.leases.errors import LeaseLostError
from databus.leases.holding import HeldLease
from tests.databus.leases.contenders import LEASE, TTL_S, Contender, Time, Unsteady


@pytest.fixture
def records(tmp_path: Path) -> Unsteady:
    return Unsteady(tmp_path)


@pytest.fixture
def owner(records: Unsteady) -> Contender:
    return Contender("a", records, Time())


def hold(owner: Contender) -> HeldLease:
    lease = owner.store.acquire(LEASE, "a", TTL_S)
    assert lease is not None
    return HeldLease(owner.store, lease)


def test_a_lease_is_renewed_after_a_third_of_its_time(owner: Contender, records: Unsteady) -> None:
    held = hold(owner)
    assert held.name == LEASE
    assert held.due_in_s == pytest.approx(TTL_S / 3)
    records.is_down = True  # it is not asked before its time
    held.renew_if_due()
    records.is_down = False
    owner.time.now_s += TTL_S / 3
    assert held.due_in_s == pytest.approx(0)
    owner.time.now_s += 0.1
    held.renew_if_due()
    assert not held.problem
    assert held.due_in_s == pytest.approx(TTL_S / 3)
    owner.time.now_s += TTL_S - 0.1
    assert held.term() == 1


def test_while_the_store_is_down_the_lease_is_held_until_it_runs_out(
    owner: Contender, records: Unsteady
) -> None:
    held = hold(owner)
    records.is_down = True
    owner.time.now_s += TTL_S / 2
    held.renew_if_due()
    assert "it is down" in held.problem
    assert held.term() == 1
    # The next try comes sooner than a renewal, and is made for ever.
    for _ in range(12):
        assert 0 < held.due_in_s <= TTL_S / 10
        owner.time.now_s += TTL_S / 10
        held.renew_if_due()
    with pytest.raises(LeaseLostError, match="it is down"):
        held.term()
    assert not held.is_lost
    records.is_down = False
    owner.time.now_s += TTL_S
    held.renew_if_due()
    assert (held.term(), held.problem) == (1, "")


def test_a_lease_that_another_owner_had_does_not_come_back(
    owner: Contender, records: Unsteady
) -> None:
    held = hold(owner)
    other = Contender("b", records, owner.time)
    for _ in range(10):
        other.store.look(LEASE)
        owner.time.now_s += TTL_S / 5
    assert other.store.acquire(LEASE, "b", TTL_S) is not None
    held.renew_if_due()
    assert held.is_lost
    with pytest.raises(LeaseLostError, match="another owner"):
        held.term()


def test_a_released_lease_is_not_held_and_free_at_once(owner: Contender, records: Unsteady) -> None:
    held = hold(owner)
    held.release()
    with pytest.raises(LeaseLostError):
        held.term()
    held.renew_if_due()
    assert Contender("b", records, owner.time).store.acquire(LEASE, "b", TTL_S) is not None
