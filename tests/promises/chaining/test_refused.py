"""A relay that is another source, or lacks what follows, is named, and nothing is left out."""

from __future__ import annotations

import contextlib
import json
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from databus.cli.main import main
from tests.mariadb_server import Database
from tests.promises.chaining.chain import chain, insert, link, stream_of, wait_for_equal
from tests.promises.history.test_stopped_table import alter_unlogged, database, write
from tests.promises.running import RunningRelay, Shop, mysql_source, running, sources_of, wait_until
from tests.promises.switching.server_pair import Load, ServerPair, rows
from tests.promises.switching.test_switch import pair, relay_of, switch, view

__all__ = ["database", "pair"]

pytest_plugins = ["tests.mysql"]

ORDERS = ["shop.orders"]
NOTE = "n" * 500


@contextlib.contextmanager
def two_links(
    shop: Shop, folder: Path, **more: Any
) -> Iterator[tuple[RunningRelay, RunningRelay, RunningRelay]]:
    """Start a relay with a small ring, one with a larger ring that reads it, and a third.

    The third reads the second.
    """
    first = RunningRelay(folder / "relay-1", shop.settings(ring_bytes="256KiB"))
    with chain(first, folder, **more) as (first, second, third):
        insert(shop, first, *range(20))
        wait_for_equal(first, second, third)
        yield first, second, third


def use(relay: RunningRelay, *urls: str) -> None:
    """Let a relay read others from its next start on."""
    relay.change(uri=[f"databus+{url}" for url in urls])


def wait_until_well(relay: RunningRelay) -> None:
    wait_until(lambda: relay.get("/health").status == 200, "health", relay.tell)


def state(relay: RunningRelay) -> str:
    return str(relay.get("/health").json()["physicalSources"]["shop"]["state"])


def restart(relay: RunningRelay, place: str) -> None:
    request = urllib.request.Request(
        f"{relay.url}/api/v1/physicalSources/shop/restart",
        json.dumps({"at": place}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as response:
        assert response.status == 200


def insert_bit_by_bit(shop: Shop, relay: RunningRelay, ids: range) -> None:
    """Insert rows in windows of 100 at most: a slow capture joins all that are there, and a window
    that is larger than the ring stops it."""
    for place in range(0, len(ids), 100):
        before = relay.max_scn()
        shop.insert(*ids[place : place + 100], note=NOTE)
        wait_until(lambda: relay.max_scn() > before, "a window", relay.tell)  # noqa: B023


def test_what_was_lost_is_read_from_the_next_relay_or_capture_stops_and_says_how_to_go_on(
    shop: Shop, tmp_path: Path
) -> None:
    with two_links(shop, tmp_path) as (first, second, third):
        third.child.stop()
        before = second.max_scn()
        insert_bit_by_bit(shop, first, range(100, 1000))
        wait_until(lambda: second.max_scn() == first.max_scn() > before, "all", second.tell)
        use(third, first.url)
        third.serve()
        problem = third.wait_for_problem("it no longer has what follows here")
        wait_until(lambda: state(third) == "error", "the stop", third.tell)
        assert f"scn {before} is gone" in problem
        # What it has is served meanwhile, and nothing else.
        assert third.max_scn() == before
        third.child.stop()
        use(third, first.url, second.url)
        third.start()
        wait_until(lambda: third.max_scn() == second.max_scn(), "all", third.tell)
        assert stream_of(third) == stream_of(second)
        third.child.stop()
        insert_bit_by_bit(shop, first, range(1000, 1900))
        wait_until(lambda: second.max_scn() == first.max_scn(), "all", second.tell)
        use(third, first.url)
        third.serve()
        wait_until(lambda: state(third) == "error", "the stop", third.tell)
        restart(third, "earliest")
        wait_until(lambda: third.max_scn() == first.max_scn(), "all", third.tell)
        wait_until_well(third)
        assert stream_of(first).endswith(stream_of(third))
        assert stream_of(third)


def test_a_relay_of_another_database_is_refused_by_a_window(shop: Shop, tmp_path: Path) -> None:
    other = Shop(tmp_path / "other.db")
    stranger = RunningRelay(tmp_path / "stranger", other.settings())
    with two_links(shop, tmp_path) as (first, second, _), running(stranger):
        stranger.start()
        # Its oldest window is older than the newest one here: it is not refused for its age.
        other.insert(400)
        wait_until(lambda: stranger.windows(), "a row", stranger.tell)
        other.insert(*range(500, 600))
        wait_until(lambda: stranger.max_scn() > second.max_scn(), "rows", stranger.tell)
        own = stream_of(second)
        second.child.stop()
        use(second, stranger.url)
        second.serve()
        problem = second.wait_for_problem("it is another source")
        assert stranger.url in problem
        assert "use a new data_dir" in problem
        wait_until(lambda: state(second) == "error", "the stop", second.tell)
        assert stream_of(second) == own
        second.child.stop()
        use(second, stranger.url, first.url)
        second.start()
        insert(shop, first, 2000)
        wait_for_equal(first, second)
    other.close()


def test_a_relay_that_is_behind_is_waited_for(shop: Shop, tmp_path: Path) -> None:
    with two_links(shop, tmp_path) as (first, second, third):
        second.pause()
        insert(shop, first, *range(100, 120))
        third.child.stop()
        use(third, first.url)
        third.start()
        wait_until(lambda: third.max_scn() == first.max_scn() > second.max_scn(), "all", third.tell)
        third.child.stop()
        use(third, second.url)
        third.serve()
        third.wait_for_problem(f"it has not reached scn {first.max_scn()} yet")
        assert second.post("/controlSources/unpause", source="shop").status == 200
        wait_until_well(third)
        insert(shop, first, 500)
        wait_for_equal(first, second, third)


@pytest.mark.mariadb
def test_an_upstream_that_lost_its_data_is_followed_on_if_it_is_the_same_source(
    database: Database, tmp_path: Path
) -> None:
    first = RunningRelay(tmp_path / "relay-1", mysql_source(database, tmp_path))
    write(database, range(20))
    with chain(first, tmp_path) as relays:
        wait_until(lambda: len(first.windows()) >= 20, "rows", first.tell)
        wait_for_equal(*relays)
        first.child.kill()
        shutil.rmtree(first.data_dir)
        first.start()
        write(database, range(20, 40))
        for relay in relays:
            wait_until(lambda r=relay: len(r.windows()) >= 40, "rows", relay.tell)  # type: ignore[misc]
            assert relay.windows() == first.windows()


def test_a_source_that_cannot_read_is_told_at_every_level(shop: Shop, tmp_path: Path) -> None:
    with two_links(shop, tmp_path) as (first, second, third):
        first.pause()
        for relay in (second, third):
            relay.wait_for_problem("there, capture is")
        assert first.post("/controlSources/unpause", source="shop").status == 200
        for relay in (second, third):
            wait_until_well(relay)


def test_other_sources_ids_and_names_are_refused_with_what_to_do(
    shop: Shop, tmp_path: Path
) -> None:
    shop.connection.execute("CREATE TABLE people (id INTEGER PRIMARY KEY)")
    both: list[Any] = [{"name": "shop.orders", "id": 7}, {"name": "shop.people", "id": 3}]
    first = RunningRelay(tmp_path / "relay-1", shop.settings(sources=both))
    problems: dict[str, list[Any]] = {
        "it also has shop.people: list every source": ORDERS,
        "it has no source shop.items: list only what it has": [
            *both,
            {"name": "shop.items", "id": 9},
        ],
        "source shop.orders has id 7 there and 8 here": [
            {"name": "shop.orders", "id": 8},
            "shop.people",
        ],
    }
    with running(first):
        first.start()
        for number, (problem, sources) in enumerate(problems.items()):
            with running(link(tmp_path / f"b{number}", first.url, sources=sources)) as relay:
                relay.serve()
                relay.wait_for_problem(problem)
        named = link(tmp_path / "named", first.url, sources=both, name="store")
        with running(named):
            named.serve()
            named.wait_for_problem("it has no physical source store; it has shop", "store")
        with running(link(tmp_path / "unnamed", first.url, sources=ORDERS, name="store")) as none:
            none.launch()
            assert none.end() != 0
            assert "has shop, but no physical source store" in none.child.log_tail()
            assert "Start that one" not in none.child.log_tail()
        with running(link(tmp_path / "taken", first.url, sources=["shop.people", *ORDERS])) as last:
            last.start()
            ids = {one["name"]: one["id"] for one in last.get("/sources").json()}
            assert ids == {"shop.orders": 7, "shop.people": 3}


def test_at_its_first_start_a_relay_needs_the_ids(tmp_path: Path) -> None:
    with running(link(tmp_path / "relay-2", "http://127.0.0.1:1", sources=ORDERS)) as relay:
        relay.launch()
        assert relay.end() != 0
        assert "Start that one first, or write the `id` of each source" in relay.child.log_tail()


def test_a_reader_token_is_sent_and_a_wrong_one_is_named(shop: Shop, tmp_path: Path) -> None:
    tokens, wrong = tmp_path / "tokens", tmp_path / "wrong"
    tokens.write_text("a-token-of-a-reader-0123456789\n")
    wrong.write_text("another-token-of-nobody-0123456789\n")
    for file in (tokens, wrong):
        file.chmod(0o600)
    first = RunningRelay(
        tmp_path / "relay-1", shop.settings(), http={"reader_tokens_file": str(tokens)}
    )
    sources = [{"name": "shop.orders", "id": 1}]
    second = link(tmp_path / "two", first.url, sources=sources, upstream_token_file=str(wrong))
    with running(first), running(second):
        first.launch()
        second.serve()
        second.wait_for_problem("the token is not known here")
        second.child.stop()
        second.change(upstream_token_file=str(tokens))
        second.start()
        shop.insert(1, 2, 3)
        wait_until(lambda: second.windows(), "the rows", second.tell)
        second.child.stop()
        checked = CliRunner().invoke(main, ["doctor", "-c", str(second.file)])
        assert f"{first.url}: has the source, and what follows after scn" in checked.output


def test_a_new_epoch_of_the_first_comes_through_before_its_windows(
    pair: ServerPair, tmp_path: Path
) -> None:
    with chain(relay_of(pair, tmp_path / "relay-1"), tmp_path) as relays:
        load = Load(pair)
        load.write(20)
        wait_until(lambda: len(relays[0].windows()) >= 20, "rows", relays[0].tell)
        pair.catch_up()
        assert switch(relays[0], pair.replica.uri).status == 200
        load.write(20)
        count = len(rows(pair.primary))
        wait_until(lambda: len(relays[0].windows()) >= count, "rows", relays[0].tell)
        wait_for_equal(*relays)
        told = [one.get("/api/v1/physicalSources/shop/epochs").json()["epochs"] for one in relays]
        assert [one["number"] for one in told[0]] == [0, 1]
        assert told[1] == told[2] == told[0]
        assert [view(one)["epoch"] for one in relays] == [1, 1, 1]
        # The same after a restart; and one of another server has another epoch 0.
        relays[2].child.kill()
        relays[2].start()
        load.write(5)
        wait_for_equal(*relays)
        stranger = relay_of(pair, tmp_path / "stranger", uri=pair.replica.uri)
        with running(stranger):
            stranger.start()
            relays[2].child.stop()
            use(relays[2], stranger.url)
            relays[2].serve()
            relays[2].wait_for_problem("one SCN would name two transactions")


@pytest.mark.mariadb
def test_a_table_that_is_stopped_alone_there_is_stopped_alone_here(
    database: Database, tmp_path: Path
) -> None:
    orders, people = sources_of(database)
    first = RunningRelay(tmp_path / "relay-1", mysql_source(database, tmp_path))
    with chain(first, tmp_path) as relays:
        write(database, range(10))
        wait_until(lambda: len(first.windows()) >= 10, "the first rows", first.tell)
        alter_unlogged(database)
        write(database, range(10, 30))
        for relay in relays:
            relay.wait_for_problem("stopped")
        stops = [stopped(relay) for relay in relays]
        assert stops[0] == stops[1] == stops[2] == [(orders, stops[0][0][1])]
        wait_until(lambda: len(first.windows(sources=people)) >= 30, "the rest", first.tell)
        for relay in relays[1:]:
            wait_until(lambda r=relay: r.max_scn() == first.max_scn(), "the rest", relay.tell)  # type: ignore[misc]
            assert relay.windows(sources=people) == first.windows(sources=people)


def stopped(relay: RunningRelay) -> list[tuple[str, int]]:
    found = relay.get("/health").json()["physicalSources"]["shop"]["stoppedTables"]
    return [(one["source"], one["afterScn"]) for one in found]
