"""Two relays of one source give equal SCNs after a switch, or do not serve."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from databus.cli.main import main
from databus.relay.capture.epoch_table import EPOCHS_SUFFIX, EpochTable
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.event.v2 import peek
from tests.promises.running import (
    Remembering,
    RunningRelay,
    consuming,
    cut_windows,
    running,
    wait_until,
)
from tests.promises.switching.server_pair import Load, ServerPair, rows, run
from tests.promises.switching.test_switch import ids, mark_of, pair, relay_of, switch, view

__all__ = ["pair"]

pytest_plugins = ["tests.mysql"]

ROOT = "/api/v1/physicalSources/shop"


@contextlib.contextmanager
def two_relays(
    pair: ServerPair, folder: Path, **more: Any
) -> Iterator[tuple[RunningRelay, RunningRelay]]:
    """Two relays that name each other as peers, not started yet."""
    one, two = (relay_of(pair, folder / name, **more) for name in ("one", "two"))
    one.change(epoch_peers=[two.url])
    two.change(epoch_peers=[one.url])
    with running(one), running(two):
        yield one, two


def start(*relays: RunningRelay) -> None:
    """Start relays that wait for one another."""
    for relay in relays:
        relay.launch()
    for relay in relays:
        wait_until(relay._answers, "an answer", relay.child.log_tail)
    for relay in relays:
        wait_until(lambda r=relay: r.get("/health").status == 200, "capture", relay.tell)  # type: ignore[misc]


def epochs(relay: RunningRelay) -> list[tuple[int, str]]:
    """Return number and server of the epochs that a relay tells its peers."""
    return [(one["number"], one["server"]) for one in relay.get(f"{ROOT}/epochs").json()["epochs"]]


def wait_for_rows(relay: RunningRelay, count: int) -> dict[int, bytes]:
    wait_until(lambda: len(relay.windows()) >= count, f"{count} windows", relay.tell)
    return relay.windows()


def begun(pair: ServerPair, *relays: RunningRelay) -> Load:
    """Start relays, and return a load of which all have ten rows."""
    start(*relays)
    load = Load(pair)
    load.write(10)
    for relay in relays:
        wait_for_rows(relay, 10)
    return load


def of_epoch(windows: dict[int, bytes], number: int) -> dict[int, bytes]:
    return {scn: data for scn, data in windows.items() if scn >> 55 == number}


def saved(relay: RunningRelay) -> object:
    """Return what a relay has saved of what it delivered; it does so each second."""
    return EpochTable(relay.data_dir / f"shop{EPOCHS_SUFFIX}").executed


def wait_for_saved(relay: RunningRelay, count: int) -> None:
    """Wait for windows, and until it would be known after a kill what was delivered."""
    wait_for_rows(relay, count)
    wait_until(lambda: saved(relay) is not None, "what is delivered", relay.tell)


def is_at(relay: RunningRelay, uri: str, since_s: float) -> bool:
    """Whether it has connected to a server since then; it names the server before it does."""
    found = view(relay)
    return (found["uri"], found["state"]) == (uri, "running") and found["since"] > since_s


def resume(relay: RunningRelay) -> None:
    assert relay.post("/controlSources/unpause", source="shop").status == 200


def test_after_a_switch_under_load_scns_and_bytes_are_equal(
    pair: ServerPair, tmp_path: Path
) -> None:
    with two_relays(pair, tmp_path) as (one, two):
        start(one, two)
        load = Load(pair, pause_s=0.002)
        with load.running():
            for relay in (one, two):
                wait_for_saved(relay, 50)
        pair.catch_up()
        pair.fail_over()
        with load.running():
            for relay in (one, two):
                wait_until(lambda r=relay: view(r)["epoch"] == 1, "the switch", relay.tell)  # type: ignore[misc]
                wait_until(lambda r=relay: len(of_epoch(r.windows(), 1)) > 50, "more", relay.tell)  # type: ignore[misc]
        count = len(rows(pair.primary))
        assert wait_for_rows(one, count) == wait_for_rows(two, count)
        assert epochs(one) == epochs(two)
        assert {scn >> 55 for scn in one.windows()} == {0, 1}


def test_the_other_relay_follows_a_switch_on_purpose(pair: ServerPair, tmp_path: Path) -> None:
    with two_relays(pair, tmp_path) as (one, two):
        load = begun(pair, one, two)
        for number, server in enumerate((pair.replica, pair.primary), 1):
            pair.catch_up()
            at = partial(is_at, uri=server.uri, since_s=time.time())
            assert switch(one, server.uri).status == 200
            # An epoch begins with its first transaction; until then the other one may still read.
            for relay in (one, two):
                wait_until(partial(at, relay), "the switch", relay.tell)
            load.write(5)
            for relay in (one, two):
                wait_for_rows(relay, 10 + 5 * number)
                assert view(relay)["epoch"] == number
        assert one.windows() == two.windows()
        assert epochs(one) == epochs(two)


def test_a_relay_without_its_data_begins_in_the_epoch_of_its_peer(
    pair: ServerPair, tmp_path: Path
) -> None:
    with two_relays(pair, tmp_path) as (one, two):
        load = begun(pair, one, two)
        pair.catch_up()
        assert switch(one, pair.replica.uri).status == 200
        load.write(10)
        for relay in (one, two):
            wait_for_rows(relay, 20)
        two.child.stop()
        shutil.rmtree(two.data_dir)
        two.start()  # at the first server of its list, which the others do not read
        wait_for_rows(two, 20)
        load.write(5)
        early, late = wait_for_rows(one, 25), wait_for_rows(two, 25)
        assert view(two)["uri"] == pair.replica.uri
        assert {scn >> 55 for scn in late} == {1}
        assert of_epoch(early, 1).items() <= late.items()
        assert epochs(two) == epochs(one)[1:]


def test_a_relay_waits_for_its_peer_and_says_so_and_how_to_go_on_without(
    pair: ServerPair, tmp_path: Path
) -> None:
    with two_relays(pair, tmp_path) as (one, two):
        one.serve()
        problem = one.wait_for_problem("waits for peers to agree on epoch 0: ")
        assert two.url in problem
        assert "take it out of `epoch_peers` of every relay of this source" in problem
        # One that cannot prove its epoch does not serve.
        assert one.stream().status == 503
        assert b"its epoch is not agreed on with" in one.stream().body
        start(two)
        wait_until(lambda: one.get("/health").status == 200, "capture", one.tell)
        load = Load(pair)
        load.write(10)
        wait_for_rows(one, 10)
        pair.catch_up()
        two.child.stop()
        switch(one, pair.replica.uri)
        one.wait_for_problem("waits for peers to agree on epoch 1: ")
        listed = CliRunner().invoke(main, ["source", "list", "--relay", one.url])
        assert f"shop  unreachable  epoch 0  {pair.replica.uri}: shop: waits for peers" in (
            listed.output
        )
        # What was agreed is served, and capture goes on in it.
        assert len(one.windows()) == 10
        assert switch(one, pair.primary.uri).status == 200
        load.write(5)
        wait_for_rows(one, 15)
        # The peer is gone for good.
        pair.catch_up()
        one.child.stop()
        one.change(epoch_peers=[])
        one.start()
        assert switch(one, pair.replica.uri).status == 200
        load.write(5)
        assert [scn >> 55 for scn in sorted(wait_for_rows(one, 20))] == [0] * 15 + [1] * 5


def test_two_that_begin_at_once_at_two_servers_end_at_one(pair: ServerPair, tmp_path: Path) -> None:
    with two_relays(pair, tmp_path) as (one, two):
        two.change(uri=[pair.replica.uri, pair.primary.uri])
        start(one, two)
        Load(pair).write(10)
        pair.catch_up()
        assert wait_for_rows(one, 10) == wait_for_rows(two, 10)
        assert view(one)["uri"] == view(two)["uri"]
        assert epochs(one) == epochs(two)


def test_relays_that_had_begun_otherwise_do_not_serve_and_say_the_way_on(
    pair: ServerPair, tmp_path: Path
) -> None:
    with two_relays(pair, tmp_path) as (one, two):
        one.change(epoch_peers=[])
        two.change(epoch_peers=[], uri=[pair.replica.uri, pair.primary.uri])
        start(one, two)
        Load(pair).write(10)
        pair.catch_up()
        for relay in (one, two):
            wait_for_rows(relay, 10)
            relay.child.stop()
        one.change(epoch_peers=[two.url])
        two.change(epoch_peers=[one.url], uri=[pair.primary.uri, pair.replica.uri])
        for relay in (one, two):
            relay.serve()
        for relay in (one, two):
            problem = relay.wait_for_problem("one SCN would name two transactions")
            assert "remove its data_dir and start it again" in problem
            assert relay.stream().status == 503
        two.child.stop()
        shutil.rmtree(two.data_dir)
        two.serve()
        wait_until(lambda: two.get("/health").status == 200, "capture", two.tell)
        resume(one)
        wait_until(lambda: one.get("/health").status == 200, "capture", one.tell)
        assert wait_for_rows(one, 10) == wait_for_rows(two, 10)


@pytest.mark.parametrize("count", [30, 1])
def test_another_log_of_the_server_is_not_taken_for_that_of_the_peer(
    pair: ServerPair, tmp_path: Path, count: int
) -> None:
    with two_relays(pair, tmp_path) as (one, two):
        start(one, two)
        Load(pair).write(10)
        for relay in (one, two):
            wait_for_rows(relay, 10)
            relay.pause()
        two.child.stop()
        shutil.rmtree(two.data_dir)
        pair.hold_replica()
        run(pair.primary, "RESET MASTER")
        ids = range(100, 100 + count)  # one row: the log ends before what the peer has read
        run(pair.primary, *(f"INSERT INTO shop.orders VALUES ({n}, 'x')" for n in ids))
        two.serve()
        problem = two.wait_for_problem("another relay of this source has read another log")
        assert ("which reaches from" in problem) is (count == 1)
        assert two.windows() == {}


def test_a_client_that_moves_between_relays_loses_nothing(pair: ServerPair, tmp_path: Path) -> None:
    """One has three windows of the server before that the other has of the next one."""
    with two_relays(pair, tmp_path) as (ahead, behind):
        start(ahead, behind)
        load = Load(pair)
        load.write(20)
        for relay in (ahead, behind):
            wait_for_saved(relay, 20)
        behind.pause()
        load.write(3)
        wait_for_rows(ahead, 23)
        pair.catch_up()
        pair.fail_over()
        resume(behind)
        load.write(5)
        early, late = (sorted(wait_for_rows(relay, 28)) for relay in (ahead, behind))
        assert [scn >> 55 for scn in early] == [0] * 23 + [1] * 5
        assert [scn >> 55 for scn in late] == [0] * 20 + [1] * 8
        assert early[23:] == late[23:]
        assert of_epoch(ahead.windows(), 1).items() <= behind.windows().items()

        # From the one that was ahead: what it had of the server before comes again, all of it.
        asked = Checkpoint.at(early[21]).with_mark(mark_of(ahead, early[21]))
        wait_until(lambda: behind.stream(asked).status == 200, "word of its peer", behind.tell)
        assert sorted(cut_windows(behind.stream(asked).body)) == late[20:]

        # From the other one: what is left of the next server's windows, read from its log again.
        moved = Remembering()
        with consuming([ahead.url], ["shop.orders"], moved, start=f"scn:{late[21]}"):
            wait_until(lambda: len(moved.scns) >= 6, "the rest", ahead.tell)
        assert moved.scns == late[22:]
        assert ids(moved) == rows(pair.primary)[22:]

        # Without that, nothing is sent in its place.
        ahead.child.stop()
        ahead.change(catch_ups=0)
        ahead.start()
        answer = ahead.stream(Checkpoint.at(late[21]))
        assert answer.status == 404
        assert answer.headers["x-dbus-error-cause"].endswith(".ScnNotFoundException")
        assert b"epoch 1 begins after that here" in answer.body
        assert peek(ahead.stream(Checkpoint.at(late[23])).body).scn == late[24]


def test_who_waited_for_an_epoch_is_not_sent_what_follows_a_hole(
    pair: ServerPair, tmp_path: Path
) -> None:
    """A client of the relay that went over first asks one that is still to come."""
    with two_relays(pair, tmp_path) as (early, late):
        start(early, late)
        load = Load(pair)
        load.write(10)
        for relay in (early, late):
            wait_for_saved(relay, 10)
        early.pause()
        load.write(5)
        wait_for_rows(late, 15)
        late.pause()
        pair.catch_up()
        pair.fail_over()
        resume(early)
        load.write(5)
        scns = sorted(wait_for_rows(early, 20))
        assert [scn >> 55 for scn in scns] == [0] * 10 + [1] * 10
        moved = Remembering()
        # It has two of the five that the other one has with SCNs of the server before.
        with consuming([late.url], ["shop.orders"], moved, start=f"scn:{scns[11]}"):
            resume(late)
            wait_until(lambda: len(moved.scns) >= 8, "the rest", late.tell)
        assert moved.scns == scns[12:]
        assert ids(moved) == rows(pair.primary)[12:]
