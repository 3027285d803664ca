"""Another server behind a source without GTIDs: its rows say what was delivered, or it stops."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from databus.demo.private_mariadb import PrivateMariaDB
from tests.mysql_server import PrivateMySQL
from tests.promises.running import RunningRelay, wait_until
from tests.promises.switching.server_pair import ServerPair, rows, run
from tests.promises.switching.test_switch import ids, read_by_one, switch, view

pytest_plugins = ["tests.mysql"]
pytestmark = pytest.mark.mysql


@pytest.fixture
def pair(new_mysql: Callable[..., PrivateMySQL]) -> Iterator[ServerPair]:
    """Two servers without GTIDs, of which the second replicates the first."""

    def make(options: dict[str, str | int]) -> PrivateMariaDB:
        return new_mysql(options=options)

    with ServerPair(make, is_mariadb=False, has_gtids=False) as pair:
        pair.catch_up()
        yield pair


def refusal(relay: RunningRelay, problem: str) -> str:
    """Wait until capture has stopped at the other server; return its advice."""
    text = relay.wait_for_problem(problem)
    wait_until(lambda: view(relay)["state"] == "error", "the stop", relay.tell)
    advice = r"`epoch = 1` and `start = \"time:[^\"]*\"`, 60 s before the newest transaction"
    assert re.search(advice, text), text
    return text


def test_the_next_server_goes_on_after_the_last_delivered_window(
    pair: ServerPair, tmp_path: Path
) -> None:
    with read_by_one(pair, tmp_path) as (relay, load, consumer):
        for number in (1, 2):
            with load.running():
                wait_until(lambda n=number: len(ids(consumer)) > 150 * n, "rows", relay.tell)  # type: ignore[misc]
                relay.pause()
                delivered = len(relay.windows())
                wait_until(lambda n=delivered: len(rows(pair.replica)) >= n, "the replica")  # type: ignore[misc]
                pair.fail_over()
            assert relay.post("/controlSources/unpause", source="shop").status == 200
            with load.running():
                wait_until(lambda n=number: view(relay)["epoch"] == n, "the switch", relay.tell)  # type: ignore[misc]
            count = len(rows(pair.primary))
            wait_until(lambda n=count: len(ids(consumer)) >= n, "the rest", relay.tell)  # type: ignore[misc]
            assert ids(consumer) == rows(pair.primary)
            pair.rebuild()
            pair.catch_up()
        assert consumer.errors == []
        assert not (relay.data_dir / "shop.overlap").exists()


def test_a_switch_on_purpose_under_load_loses_nothing_and_repeats_nothing(
    pair: ServerPair, tmp_path: Path
) -> None:
    with read_by_one(pair, tmp_path, switch_after_s=20) as (relay, load, consumer):
        with load.running():
            wait_until(lambda: len(ids(consumer)) > 100, "the first rows", relay.tell)
            before = len(ids(consumer))
            assert switch(relay, pair.replica.uri).status == 200
            wait_until(lambda: view(relay)["epoch"] == 1, "the switch", relay.tell)
            assert view(relay)["uri"] == pair.replica.uri
            wait_until(lambda: len(ids(consumer)) > before + 100, "more", relay.tell)
        pair.catch_up()
        wait_until(lambda: len(ids(consumer)) >= len(rows(pair.primary)), "the rest", relay.tell)
        assert ids(consumer) == rows(pair.primary)
        assert consumer.errors == []


def test_it_stops_at_a_server_that_lacks_what_was_delivered(
    pair: ServerPair, tmp_path: Path
) -> None:
    with read_by_one(pair, tmp_path) as (relay, load, consumer):
        load.write(80)
        pair.catch_up()
        pair.hold_replica()
        load.write(3)
        wait_until(lambda: len(ids(consumer)) == 83, "all of the first server")
        pair.fail_over()
        load.write(100)
        refusal(relay, "its log does not have the last 64 windows that were delivered")
        assert len(ids(consumer)) == 83


def test_it_stops_where_the_same_changes_were_made_over_and_over(
    pair: ServerPair, tmp_path: Path
) -> None:
    with read_by_one(pair, tmp_path) as (relay, load, consumer):
        load.write(40)
        back_and_forth = ["UPDATE shop.orders SET note = IF(note = 'a', 'b', 'a') WHERE id = 1"]
        run(pair.primary, *back_and_forth * 100)
        wait_until(lambda: len(consumer.scns) == 140, "all of them")
        pair.catch_up()
        wait_until(
            lambda: run(pair.replica, "SELECT note FROM shop.orders WHERE id = 1") == (("b",),),
            "the replica",
        )
        pair.fail_over()
        refusal(relay, "have the same changes more than once")
        assert len(consumer.scns) == 140
