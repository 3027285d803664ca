"""Servers of leases that are away for a while: owners go on until their leases run out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest

from databus.daemon.faults import is_transient
from databus.demo.private_mariadb import HOST
from databus.leases import zookeeper_session
from databus.leases.errors import LeaseError, LeaseLostError, LeaseUnavailableError
from databus.leases.holding import HeldLease
from databus.leases.sql_records import SqlRecords
from databus.leases.store import Lease, LeaseStore
from databus.leases.zookeeper_records import ZookeeperRecords
from tests.databus.leases.contenders import LEASE, TTL_S, Contender, Time
from tests.mariadb_server import Database
from tests.zookeeper_server import PrivateZookeeper, ZookeeperEnsemble

pytest_plugins = ["tests.record_stores"]


@pytest.fixture
def own_zookeeper() -> Iterator[PrivateZookeeper]:
    """A server that the test may kill."""
    with PrivateZookeeper() as server:
        yield server


def test_a_zookeeper_that_has_lost_its_data_is_used_again_after_a_while(
    own_zookeeper: PrivateZookeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zookeeper_session, "_FORGET_AFTER_S", 1.0)
    records = ZookeeperRecords(own_zookeeper.url(), timeout_s=0.5)
    wait_until_reached(records)
    store = LeaseStore(records)
    assert store.acquire(LEASE, "a", TTL_S) is not None
    own_zookeeper.lose_data()
    own_zookeeper.start()
    wait_until_reached(records)
    lease = store.acquire(LEASE, "b", TTL_S, above=1)
    assert lease is not None
    assert lease.term == 2
    records.close()


def test_while_zookeeper_is_away_its_owner_stops_in_time_and_nobody_takes_the_lease(
    own_zookeeper: PrivateZookeeper,
) -> None:
    time = Time()
    records = [ZookeeperRecords(own_zookeeper.url(), timeout_s=0.5) for _ in range(2)]
    owner, other = (Contender(name, one, time) for name, one in zip("ab", records, strict=True))
    for one in records:
        wait_until_reached(one)
    lease = owner.store.acquire(LEASE, "a", TTL_S)
    assert lease is not None
    held = HeldLease(owner.store, lease)
    assert other.store.acquire(LEASE, "b", TTL_S) is None
    own_zookeeper.kill()
    for part in (0.4, 0.25, 0.25):
        time.now_s += TTL_S * part
        held.renew_if_due()
        assert held.problem
        assert held.term() == 1
        with pytest.raises(LeaseUnavailableError):
            other.store.acquire(LEASE, "b", TTL_S)
    time.now_s += 3 * TTL_S
    with pytest.raises(LeaseLostError):
        held.term()
    own_zookeeper.start()
    for one in records:
        wait_until_reached(one)
    # Nobody looked at the lease meanwhile, so nobody knows that it was not renewed.
    assert other.store.acquire(LEASE, "b", TTL_S) is None
    held.renew_if_due()
    assert held.term() == 1
    # The term is still known after the restart.
    held.release()
    taken = other.store.acquire(LEASE, "b", TTL_S)
    assert taken is not None
    assert taken.term == 2
    for one in records:
        one.close()


def test_one_node_of_three_is_not_missed() -> None:
    with ZookeeperEnsemble() as ensemble:
        records = ZookeeperRecords(ensemble.url, timeout_s=2.0)
        wait_until_reached(records)
        leases = LeaseStore(records)
        lease = leases.acquire(LEASE, "a", 1e6)
        for node in ensemble.nodes:
            assert lease is not None
            node.kill()
            lease = renewed(leases, lease)
            node.start()
        assert lease is not None
        assert (lease.term, leases.look(LEASE).term) == (1, 1)
        records.close()


def renewed(leases: LeaseStore, lease: Lease) -> Lease | None:
    """Renew a lease, if the node that was killed was the leader after the next one is elected."""
    for _ in range(100):
        with suppress(LeaseUnavailableError):
            return leases.renew(lease)
    raise AssertionError("two nodes of three serve nobody")


def wait_until_reached(records: ZookeeperRecords) -> None:
    for _ in range(100):
        try:
            records.read("nothing")
        except LeaseUnavailableError:
            continue
        return
    raise AssertionError("ZooKeeper cannot be reached")


def test_nodes_of_a_user_are_closed_to_others(zookeeper: PrivateZookeeper) -> None:
    url = zookeeper.url("/private")
    ours = ZookeeperRecords(url.replace("//", "//ann:s%40cret@"))
    assert ours.replace("a", b"1", None)
    others = [ZookeeperRecords(url), ZookeeperRecords(url.replace("//", "//bob:x@"))]
    for one in others:
        with pytest.raises(
            LeaseError, match=r"NoAuthError.*; give the user and password"
        ) as caught:
            one.read("a")
        assert not is_transient(caught.value)
    # One that was served before is told, and asks again: somebody works on the rights.
    assert others[0].read("no-such-node") is None
    with pytest.raises(LeaseUnavailableError, match="refuses the user") as caught:
        others[0].read("a")
    assert is_transient(caught.value)
    again = ZookeeperRecords(url.replace("//", "//ann:s%40cret@"))
    stored = again.read("a")
    assert stored is not None
    assert again.replace("a", b"2", stored)
    for one in (ours, again, *others):
        one.close()


@pytest.mark.mariadb
def test_a_database_that_refuses_its_user_is_final_at_first_and_asked_again_later(
    database: Database,
) -> None:
    server, user = database.server, f"{database.name}_leases"
    url = f"mysql://{user}:s%40cret@{HOST}:{server.port}/{database.name}"
    for wrong in (url, url.replace(f"/{database.name}", "/nosuch").replace(user, server.user, 1)):
        records = SqlRecords(wrong)
        with pytest.raises(LeaseError, match=r"refuses the user .*; give the right user") as caught:
            records.read("a")
        assert not is_transient(caught.value)
        assert "s@cret" not in str(caught.value)
        records.close()
    database.run(f"GRANT ALL ON {database.name}.* TO {user} IDENTIFIED BY 's@cret'")
    records = SqlRecords(url)
    assert records.replace("a", b"{}", None)
    database.run(f"SET PASSWORD FOR {user} = PASSWORD('another')")
    records.close()  # the next request connects again
    with pytest.raises(LeaseUnavailableError, match=r"Access denied.*It is asked") as caught:
        records.read("a")
    assert is_transient(caught.value)
    database.run(f"SET PASSWORD FOR {user} = PASSWORD('s@cret')")
    assert records.read("a") is not None
    records.close()
    database.run(f"DROP USER {user}")
