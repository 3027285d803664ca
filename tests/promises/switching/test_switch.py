"""Another server behind a source: what was not delivered follows what was, or capture stops."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from databus.cli.main import main
from databus.demo.private_mariadb import PrivateMariaDB
from databus.relay.capture.epoch_table import EPOCHS_SUFFIX, EpochTable
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.stream.stream_reader import walk
from tests.mysql_server import PrivateMySQL
from tests.promises.running import Remembering, RunningRelay, consuming, running, wait_until
from tests.promises.switching.server_pair import Load, ServerPair, rows, run
from tests.relay.admin.test_api import post

pytest_plugins = ["tests.mysql"]


@pytest.fixture(
    params=[
        pytest.param("mariadb", marks=pytest.mark.mariadb),
        pytest.param("mysql", marks=pytest.mark.mysql),
    ],
)
def pair(request: pytest.FixtureRequest) -> Iterator[ServerPair]:
    """Two servers of one kind, of which the second replicates the first."""
    is_mariadb = request.param == "mariadb"

    def make(options: dict[str, str | int]) -> PrivateMariaDB:
        if is_mariadb:
            return PrivateMariaDB(options=options)
        new_mysql: Callable[..., PrivateMySQL] = request.getfixturevalue("new_mysql")
        return new_mysql(options=options)

    with ServerPair(make, is_mariadb=is_mariadb) as pair:
        pair.catch_up()
        yield pair


def source_of(pair: ServerPair, folder: Path) -> dict[str, Any]:
    """Return the settings of a physical source of two servers, the primary first."""
    folder.mkdir(exist_ok=True)
    password = folder / "password"
    password.write_text(pair.primary.password)
    return {
        "name": "shop",
        "uri": [pair.primary.uri, pair.replica.uri],
        "sources": ["shop.orders"],
        "start": "earliest",
        "password_file": str(password),
        "reconnect_min_s": 0.05,
        "reconnect_max_s": 0.2,
        "switch_after_s": 0.3,
    }


def relay_of(pair: ServerPair, folder: Path, **more: Any) -> RunningRelay:
    return RunningRelay(folder, source_of(pair, folder) | more)


@contextmanager
def read_by_one(
    pair: ServerPair, folder: Path, **more: Any
) -> Iterator[tuple[RunningRelay, Load, Remembering]]:
    """Start a relay of two servers, a writer and a consumer."""
    consumer = Remembering()
    with running(relay_of(pair, folder, **more)) as relay:
        relay.start()
        with consuming([relay.url], ["shop.orders"], consumer):
            yield relay, Load(pair), consumer


def switch(relay: RunningRelay, uri: str) -> Any:
    here: Any = relay  # asked by its URL alone
    return post(here, "/physicalSources/shop/switch", {"uri": uri})


def view(relay: RunningRelay) -> Any:
    return relay.get("/api/v1/physicalSources/shop").json()


def forget_what_was_delivered(relay: RunningRelay, uri: str) -> None:
    """Let a relay not know that either, and begin at another of its servers."""
    table = EpochTable(relay.data_dir / f"shop{EPOCHS_SUFFIX}")
    assert table.newest is not None
    assert table.executed is not None
    table.begin(replace(table.newest, uri=uri))
    table.note(table.executed._replace(scn=(1 << 55) - 1))
    table.save()


def mark_of(relay: RunningRelay, scn: int) -> tuple[int, int]:
    """Return SCN and commit time of a window, as a checkpoint keeps them."""
    (end,) = (
        e for e in walk(relay.stream(Checkpoint.at(scn - 1)).body) if e.is_eop and e.scn == scn
    )
    return scn, end.timestamp_ns


def ids(consumer: Remembering) -> list[int]:
    return [event.row["id"] for event in consumer.events if "id" in event.row]


def test_the_next_server_goes_on_with_exactly_what_was_not_delivered(
    pair: ServerPair, tmp_path: Path
) -> None:
    with read_by_one(pair, tmp_path) as (relay, load, consumer):
        first = load.write(20)
        wait_until(lambda: ids(consumer) == first, "the first rows")
        pair.catch_up()
        pair.fail_over()
        second = load.write(20)
        wait_until(lambda: len(ids(consumer)) >= 40, "the rest", relay.tell)
        assert ids(consumer) == first + second
    epochs = [scn >> 55 for scn in consumer.scns]
    assert epochs == sorted(epochs)
    assert {*epochs} == {0, 1}


@pytest.mark.mysql
def test_without_gtids_the_error_says_how_to_go_on_and_what_comes_twice(
    new_mysql: Callable[..., PrivateMySQL], tmp_path: Path
) -> None:
    def make(options: dict[str, str | int]) -> PrivateMariaDB:
        return new_mysql(options=options)

    with (
        ServerPair(make, is_mariadb=False, has_gtids=False) as pair,
        read_by_one(pair, tmp_path) as (relay, load, consumer),
    ):
        first = load.write(5)
        wait_until(lambda: ids(consumer) == first, "the first rows")
        pair.catch_up()
        pair.fail_over()
        second = load.write(5)
        problem = relay.wait_for_problem("the relay holds 5 windows with rows, and at least 16 are")
        found = re.search(r"`epoch = (\d+)` and `start = \"(time:[^\"]*)\"`, 60 s before", problem)
        assert found is not None, problem
        relay.child.stop()
        relay.change(uri=pair.primary.uri, epoch=int(found[1]), start=found[2])
        relay.start()
        wait_until(lambda: ids(consumer)[-1:] == second[-1:], "the rest", relay.tell)
        begin_s = datetime.fromisoformat(found[2].removeprefix("time:")).timestamp()
        newest_s = consumer.events[len(first) - 1].timestamp_ns // 1_000_000_000
        assert begin_s == newest_s - 60
        assert ids(consumer) == [*first, *first, *second]  # all were written within that minute
        assert consumer.errors == []


def test_a_table_that_is_altered_in_between_keeps_the_definition_that_it_had(
    pair: ServerPair, tmp_path: Path
) -> None:
    with read_by_one(pair, tmp_path) as (relay, load, consumer):
        first = load.write(5)
        wait_until(lambda: ids(consumer) == first, "the first rows")
        assert relay.post("/controlSources/pause", source="shop").status == 200
        before = load.write(5)
        run(pair.primary, "ALTER TABLE shop.orders ADD COLUMN price INT NOT NULL DEFAULT 3")
        run(pair.primary, "INSERT INTO shop.orders VALUES (500, 'altered', 7)")
        pair.catch_up()
        pair.fail_over()
        assert relay.post("/controlSources/unpause", source="shop").status == 200
        wait_until(lambda: len(ids(consumer)) >= 11, "the rest", relay.tell)
        assert ids(consumer) == [*first, *before, 500]
        assert [event.row.get("price") for event in consumer.events[-2:]] == [None, 7]
        assert relay.problem() == ""


def test_a_server_that_cannot_be_proved_is_left_again(pair: ServerPair, tmp_path: Path) -> None:
    """As after a power failure: what was delivered is not known."""
    with read_by_one(pair, tmp_path) as (relay, load, consumer):
        load.write(5)
        wait_until(lambda: len(ids(consumer)) == 5, "the first rows")
        relay.child.stop()
        forget_what_was_delivered(relay, pair.replica.uri)
        relay.start()
        assert "which transactions were delivered is not known" in relay.child.log_tail()
        assert view(relay)["uri"] == pair.primary.uri
        load.write(5)
        wait_until(lambda: len(ids(consumer)) >= 10, "the rest", relay.tell)
        assert ids(consumer) == rows(pair.primary)
        assert {scn >> 55 for scn in consumer.scns} == {0}


def test_an_epoch_whose_windows_a_power_failure_took_begins_once_more(
    pair: ServerPair, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    with running(relay_of(pair, tmp_path)) as relay:
        load = Load(pair)
        relay.start()
        load.write(5)
        wait_until(lambda: len(relay.windows()) == 5, "the first rows")
        relay.child.stop()
        kept.mkdir()
        for file in ("shop.ring", "shop.scn"):
            shutil.copy(relay.data_dir / file, kept / file)
        relay.start()
        pair.catch_up()
        assert switch(relay, pair.replica.uri).status == 200
        load.write(5)
        wait_until(lambda: len(relay.windows()) == 10, "the rest", relay.tell)
        before = relay.windows()
        relay.child.stop()
        shutil.copytree(kept, relay.data_dir, dirs_exist_ok=True)
        relay.start()
        wait_until(lambda: len(relay.windows()) == 10, "the rest again", relay.tell)
        assert relay.windows() == before
        assert [scn >> 55 for scn in before] == [0] * 5 + [1] * 5


def test_it_stops_at_a_server_that_lacks_what_was_delivered_and_names_it(
    pair: ServerPair, tmp_path: Path
) -> None:
    with read_by_one(pair, tmp_path) as (relay, load, consumer):
        load.write(20)
        pair.catch_up()
        pair.hold_replica()
        load.write(3)
        wait_until(lambda: len(ids(consumer)) == 23, "all of the first server")
        pair.fail_over()
        load.write(5)
        problem = relay.wait_for_problem("it lacks transactions that were delivered: ")
        assert len(rows(pair.primary)) == 25
        assert relay.get("/health").status == 503
        print(problem)
        assert len(ids(consumer)) == 23


def notes(server: PrivateMariaDB) -> dict[int, str]:
    """Return the notes that were changed."""
    found = run(server, "SELECT id, note FROM shop.orders WHERE note NOT LIKE 'note %'")
    return dict(found)


def test_it_stops_at_a_server_that_was_written_to_before_what_was_delivered(
    pair: ServerPair, tmp_path: Path
) -> None:
    with read_by_one(pair, tmp_path) as (relay, load, consumer):
        load.write(20)
        pair.catch_up()
        pair.write_astray("UPDATE shop.orders SET note = 'astray' WHERE id = 5")
        run(pair.primary, "UPDATE shop.orders SET note = 'later' WHERE id = 5")
        wait_until(lambda: len(ids(consumer)) == 21, "all of the first server")
        wait_until(lambda: notes(pair.replica) == {5: "later"}, "the replica")
        pair.primary.kill()
        problem = relay.wait_for_problem("which was not delivered, before ")
        print(problem)
        assert relay.get("/health").status == 503
        assert consumer.events[-1].row["note"] == "later"


def test_what_was_written_astray_to_other_tables_is_in_nobodys_way(
    pair: ServerPair, tmp_path: Path
) -> None:
    with read_by_one(pair, tmp_path) as (relay, load, consumer):
        first = load.write(20)
        pair.catch_up()
        pair.write_astray("CREATE TABLE shop.own (id INT PRIMARY KEY)")
        pair.write_astray("INSERT INTO shop.own VALUES (1)")
        first += load.write(5)
        wait_until(lambda: ids(consumer) == first, "all of the first server")
        pair.catch_up()
        pair.fail_over()
        second = load.write(5)
        wait_until(lambda: ids(consumer) == first + second, "the rest", relay.tell)


def test_a_switch_on_purpose_under_load_loses_nothing_and_repeats_nothing(
    pair: ServerPair, tmp_path: Path
) -> None:
    # The replica may be late: so long the relay waits for what it lacks.
    with read_by_one(pair, tmp_path, switch_after_s=20) as (relay, load, consumer):
        with load.running():
            wait_until(lambda: len(ids(consumer)) > 50, "the first rows")
            refused = switch(relay, "mysql://databus@127.0.0.1:1")
            assert (refused.status, b"is not in its `uri`" in refused.body) == (409, True)
            for number, server in enumerate((pair.replica, pair.primary, pair.replica), 1):
                before = len(ids(consumer))
                assert switch(relay, server.uri).status == 200
                wait_until(lambda n=number: view(relay)["epoch"] == n, "it", relay.tell)  # type: ignore[misc]
                assert view(relay)["uri"] == server.uri
                wait_until(lambda n=before: len(ids(consumer)) > n + 50, "more", relay.tell)  # type: ignore[misc]
        pair.catch_up()
        wait_until(lambda: len(ids(consumer)) >= len(rows(pair.primary)), "the rest", relay.tell)
        assert ids(consumer) == rows(pair.primary)
        assert consumer.errors == []


def test_a_checkpoint_of_any_epoch_reads_on_through_all_later_ones(
    pair: ServerPair, tmp_path: Path
) -> None:
    # The ring has the last of them; the log has all.
    with running(relay_of(pair, tmp_path, ring_bytes=64 << 10, log={})) as relay:
        load = Load(pair)
        relay.start()
        for number, server in enumerate((pair.replica, pair.primary, pair.replica), 1):
            load.write(300)
            pair.catch_up()
            assert switch(relay, server.uri).status == 200
            wait_until(lambda n=number: view(relay)["epoch"] == n, "it", relay.tell)  # type: ignore[misc]
        last = load.write(300)[-1]
        wait_until(lambda: len(relay.windows()) == last, "all", relay.tell)
        scns = sorted(relay.windows())
        assert [scn >> 55 for scn in scns] == [n for n in range(4) for _ in range(300)]
        assert int(view(relay)["ring"]["minScn"]) >> 55 >= 2
        for epoch in range(4):
            begin = 300 * epoch + 150
            consumer = Remembering()
            start = f"scn:{scns[begin - 1]}"
            with consuming([relay.url], ["shop.orders"], consumer, start=start):
                wait_until(lambda c=consumer: c.scns[-1:] == scns[-1:], "all", relay.tell)  # type: ignore[misc]
            assert consumer.scns == scns[begin:]
            assert ids(consumer) == rows(pair.primary)[begin:]
            assert consumer.errors == []


def test_capture_restarts_in_the_log_of_the_present_server_only(
    pair: ServerPair, tmp_path: Path
) -> None:
    with running(relay_of(pair, tmp_path)) as relay:
        here: Any = relay
        load = Load(pair)
        relay.start()
        load.write(5)
        wait_until(lambda: len(relay.windows()) == 5, "the first rows")
        pair.catch_up()
        assert switch(relay, pair.replica.uri).status == 200
        load.write(5)
        wait_until(lambda: len(relay.windows()) == 10, "the rest", relay.tell)
        before = relay.windows()
        early, late = sorted(before)[2], sorted(before)[7]
        for body in ({"scn": str(early)}, {"at": f"scn:{early}"}):
            refused = post(here, "/physicalSources/shop/restart", body)
            assert refused.status == 409, refused.body
            assert b"is of a server before: since scn" in refused.body
            assert b"nothing was changed" in refused.body
        assert relay.windows() == before
        assert post(here, "/physicalSources/shop/restart", {"scn": str(late)}).status == 200
        wait_until(lambda: len(relay.windows()) == 2, "the last two", relay.tell)
        assert relay.windows() == dict(sorted(before.items())[8:])
        assert post(here, "/physicalSources/shop/restart", {"at": "earliest"}).status == 200
        wait_until(lambda: len(relay.windows()) == 10, "all of its log", relay.tell)
        again = relay.windows()
        assert {scn >> 55 for scn in again} == {1}
        assert sorted(again)[5:] == sorted(before)[5:]
        answer = relay.stream(Checkpoint.at(early))
        assert answer.status == 404
        assert answer.headers["x-dbus-error-cause"].endswith(".ScnNotFoundException")


def test_the_command_switches_or_says_why_not(pair: ServerPair, tmp_path: Path) -> None:
    with running(relay_of(pair, tmp_path)) as relay:
        relay.start()
        load = Load(pair)
        load.write(5)
        pair.catch_up()
        wait_until(lambda: len(relay.windows()) == 5, "the first rows")

        def switched(uri: str) -> tuple[int, str]:
            words = ["source", "switch", "shop", uri, "--relay", relay.url, "--wait", "20"]
            done = CliRunner().invoke(main, words)
            return done.exit_code, done.output

        code, output = switched("mysql://databus@127.0.0.1:1")
        assert (code, "is not in its `uri`" in output) == (1, True), output
        for server in (pair.replica, pair.primary):
            assert switched(server.uri) == (0, f"shop is read from {server.uri}\n")
        pair.hold_replica()
        load.write(5)
        wait_until(lambda: len(relay.windows()) == 10, "the rest", relay.tell)
        code, output = switched(pair.replica.uri)
        assert code == 1
        assert f"{pair.replica.uri} is not read; {pair.primary.uri} is running" in output
        assert "it lacks transactions that were delivered" in output


def test_a_client_skips_nothing_between_relays_that_did_not_switch_at_the_same_place(
    pair: ServerPair, tmp_path: Path
) -> None:
    load = Load(pair)
    with (
        running(relay_of(pair, tmp_path / "ahead")) as ahead,
        running(relay_of(pair, tmp_path / "behind")) as behind,
    ):
        for relay in (ahead, behind):
            relay.start()
        load.write(20)
        for relay in (ahead, behind):
            wait_until(lambda r=relay: len(r.windows()) == 20, "the first rows")  # type: ignore[misc]
        assert behind.post("/controlSources/pause", source="shop").status == 200
        load.write(3)
        wait_until(lambda: len(ahead.windows()) == 23, "three more")
        pair.catch_up()
        pair.fail_over()
        assert behind.post("/controlSources/unpause", source="shop").status == 200
        load.write(5)
        for relay in (ahead, behind):
            wait_until(lambda r=relay: len(r.windows()) == 28, "all", relay.tell)  # type: ignore[misc]
        # What the one that was ahead had from the first server, the other has from the second.
        early, late = sorted(ahead.windows()), sorted(behind.windows())
        assert [scn >> 55 for scn in early] == [0] * 23 + [1] * 5
        assert [scn >> 55 for scn in late] == [0] * 20 + [1] * 8
        # Nothing proves to the one behind that its server has what the other one delivered.
        mark = mark_of(ahead, early[21])
        answer = behind.stream(Checkpoint.at(mark[0]).with_mark(mark))
        assert (answer.status, answer.headers["x-dbus-error"]) == (409, "OtherLogException")
        # The other one reads what follows from the log of the server that is read now.
        moved = Remembering()
        with consuming([ahead.url], ["shop.orders"], moved, start=f"scn:{late[21]}"):
            wait_until(lambda: len(moved.scns) >= 6, "the rest", ahead.tell)
        assert moved.scns == late[22:]
