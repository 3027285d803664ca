"""The producer of a store is killed, frozen and cut off: the other server goes on, once."""

from __future__ import annotations

import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from random import Random, randrange
from typing import Any

import pytest

from benchmarks.adversity.proxy import WireProxy
from databus.bootstrap.ownership.lock_holder import shown_holder
from databus.bootstrap.store.file import identify
from tests import PATIENCE_S
from tests.promises.bootstrap_standby.pairs import (
    Server,
    TwoServers,
    Writer,
    two_servers,
)
from tests.promises.running import Shop, wait_until
from tests.zookeeper_server import PrivateZookeeper

pytest_plugins = ["tests.record_stores"]

ROWS = 2500
KILLS = 3  # in each of the two phases
STOPS = 2
SLOW: dict[str, Any] = {"chunk_rows": 30, "most_rows_per_s": 120}


@pytest.fixture
def seed() -> int:
    found = randrange(10**6)
    print(f"seed {found}")
    return found


def content(path: Path) -> tuple[int, list[Any]]:
    """Return the term of a store, and figures that any write of data changes."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("begin")
        ((src_id, *state),) = connection.execute("select src_id, * from sources").fetchall()
        ((term, *position),) = connection.execute("select term, * from store").fetchall()
        sizes = f"select max(id), count(*), sum(scn) from snapshot_{src_id}"
        log = f"select max(id), count(*), sum(scn) from log_{src_id}"
        found = [connection.execute(sql).fetchall() for sql in (sizes, log)]
        return term, [state, position, *found]


def seeded_rows(pair: TwoServers) -> int:
    return pair.state().seed_rows


def test_seeding_and_catch_up_go_on_at_the_other_server_after_each_kill(
    shop: Shop, tmp_path: Path, seed: int
) -> None:
    random = Random(seed)
    with two_servers(tmp_path, shop, ROWS, **SLOW) as pair:
        with Writer(shop, ROWS, random) as writer:
            pair.active()
            wait_until(lambda: pair.state().status == "seeding", "a seeding", pair.tell)
            begun_at = pair.state().seed_scn
            for kill in range(1, KILLS + 1):
                rows = seeded_rows(pair) + random.randrange(30, 120)
                wait_until(lambda r=rows: seeded_rows(pair) >= r, "rows", pair.tell)  # type: ignore[misc]
                before = seeded_rows(pair)
                pair.kill_active()
                # It went on where it was: not from the beginning, and not as of another SCN.
                state = pair.state()
                assert (state.seed_scn, state.seed_rows >= before) == (begun_at, True)
                assert identify(pair.path)[1] == kill + 1
            wait_until(lambda: pair.state().status == "active", "all rows", pair.tell, PATIENCE_S)
            for _ in range(KILLS):
                scn = pair.position()
                wait_until(lambda s=scn: pair.position() > s, "windows", pair.tell)  # type: ignore[misc]
                time.sleep(random.random() / 5)
                pair.kill_active()
        assert writer.transactions > 100
        pair.wait_until_equal(shop)
        pair.show(f"{2 * KILLS} kills")


def wakes_and_writes_nothing(pair: TwoServers) -> bool:
    """Freeze the owner past its lease and wake it; return False if it was ended meanwhile.

    That happens to one that had written all of a transaction, but had not noted its end.
    """
    frozen = pair.active()
    successor = pair.other(frozen)
    pair.wait_for_standby(successor)
    pair.freeze_between_writes(frozen)
    pair.wait_for_takeover(successor)
    pair.freeze_between_writes(successor)
    term, before = content(pair.path)
    frozen.wake()
    end_s = time.monotonic() + PATIENCE_S
    # Nobody else writes: what it was about to write is seen until it has a new term.
    while (now := content(pair.path))[0] == term:
        assert now[1] == before
        assert time.monotonic() < end_s, pair.tell()
        if frozen.child.exit_code is not None:
            assert frozen.child.exit_code == -signal.SIGKILL
            successor.wake()
            pair.start(frozen)
            return False
    assert now[0] == term + 1
    if successor.child.exit_code is None:
        successor.wake()
        pair.wait_for_role(successor, "standby")
    else:
        pair.start(successor)
    pair.wait_for_role(frozen, "active")
    return True


def test_an_owner_that_was_frozen_and_wakes_writes_nothing(
    shop: Shop, tmp_path: Path, seed: int
) -> None:
    random = Random(seed)
    with two_servers(tmp_path, shop, ROWS, **SLOW) as pair:
        with Writer(shop, ROWS, random):
            pair.active()
            wait_until(lambda: pair.state().status == "seeding", "a seeding", pair.tell)
            woken = 0
            while woken < STOPS:
                time.sleep(random.random() / 5)
                woken += wakes_and_writes_nothing(pair)
        pair.wait_until_equal(shop)
        pair.show(f"{STOPS} stops")


def freeze_in_a_write(pair: TwoServers, server: Server) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while True:
        server.freeze()
        if shown_holder(pair.path):
            return
        server.wake()
        assert time.monotonic() < end_s, "it is never in a write"
        time.sleep(0.003)


def test_a_process_that_is_frozen_in_the_middle_of_a_write_is_ended_and_followed(
    shop: Shop, tmp_path: Path, seed: int
) -> None:
    with two_servers(tmp_path, shop, ROWS) as pair:
        with Writer(shop, ROWS, Random(seed)):
            wait_until(lambda: pair.state().seed_rows > 0, "a seeding", pair.tell, PATIENCE_S)
            for _ in range(STOPS):
                frozen = pair.active()
                successor = pair.other(frozen)
                pair.wait_for_standby(successor)
                freeze_in_a_write(pair, frozen)
                assert successor.lease()["role"] != "active"
                pair.wait_for_takeover(successor)
                assert frozen.child.wait(PATIENCE_S) == -signal.SIGKILL
                pair.start(frozen)
        pair.wait_until_equal(shop)
        pair.show(f"{STOPS} stops in the middle of a write")


def test_an_owner_that_is_cut_off_from_zookeeper_stops_and_the_other_follows_it(
    shop: Shop, tmp_path: Path, zookeeper: PrivateZookeeper, seed: int
) -> None:
    with WireProxy(zookeeper.port) as one, WireProxy(zookeeper.port) as two:
        proxies = [one, two]
        urls = [f"zookeeper://127.0.0.1:{proxy.port}/standby-{seed}" for proxy in proxies]
        with two_servers(tmp_path, shop, ROWS, urls) as pair:
            with Writer(shop, ROWS, Random(seed)):
                owner = pair.active()
                wait_until(lambda: pair.state().status == "active", "all rows", pair.tell)
                pair.wait_for_standby(pair.other(owner))
                proxy = proxies[pair.servers.index(owner)]
                proxy.is_refusing = True
                proxy.cut()
                pair.wait_for_takeover(pair.other(owner))
                assert owner.store()["producer"] is None
                assert owner.lease()["role"] == "standby"
                says = "cannot be used now"
                wait_until(lambda: says in owner.lease()["problem"], says, pair.tell)
                proxy.is_refusing = False
                wait_until(lambda: owner.lease()["term"] == 2, "the new owner", pair.tell)
                assert not owner.is_active()
            pair.wait_until_equal(shop)
            pair.show("cut off")
