"""Tables that appear beside a bootstrap pair, which keeps only what was there at its start."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from databus.client.sinks.running.feed import SinkState
from databus.client.sinks.running.plan import make_plan
from databus.client.sinks.serving.discovery import RelayLook
from databus.client.sinks.serving.process import SinkProcess, make_plans
from databus.client.sinks.serving.service import health_of
from databus.client.sinks.serving.views import FeedView, problems_of, sinks_view
from databus.conf.loading import build_settings
from databus.conf.settings import ClientSettings
from databus.conf.sink_settings import SinksSettings
from databus.testing.recorder import Recorder
from tests import PATIENCE_S
from tests.client.shop import wait_until
from tests.client.sinks.serving.test_new_tables import _server_before_tests, server
from tests.client.sinks.serving.test_running_sink import running
from tests.mariadb_server import fresh_database
from tests.standalone.nodes import Node, made

__all__ = ["_server_before_tests", "server"]  # fixtures

TABLE = "CREATE TABLE {} (id INTEGER PRIMARY KEY, name VARCHAR(200))"
TABLES = [f"t{number}" for number in range(5)]
Place = tuple[Callable[[str], object], str, str]


@pytest.fixture(params=["sqlite", pytest.param("mysql", marks=pytest.mark.mariadb)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Yield what runs a statement, the schema's name, and the physical source's settings."""
    if request.param == "mysql":
        with fresh_database(request.getfixturevalue("server")) as database:
            password = tmp_path / "password"
            password.write_text(database.server.password)
            password.chmod(0o600)
            database.run("RESET MASTER", TABLE.format("orders"))
            uri, name = database.server.uri, database.name
            yield database.run, name, f'uri = "{uri}"\npassword_file = "{password}"'
        return
    file = tmp_path / "shop.db"
    session = sqlite3.connect(file, isolation_level=None, timeout=30, check_same_thread=False)
    with closing(session):
        session.execute(TABLE.format("orders"))
        yield session.execute, "shop", f'uri = "sqlite:{file}"'


@contextmanager
def beside_pair(place: Place, folder: Path, more: str = "") -> Iterator[Node]:
    """Run a relay and its pair, which keeps `orders` with two rows from before."""
    execute, schema, settings = place
    execute("INSERT INTO orders VALUES (0, 'old')")
    execute("INSERT INTO orders VALUES (1, 'old')")
    with made(folder) as node:
        node.write(f'name = "shop"\n{settings}\nsources = ["{schema}.*"]\n{more}')
        node.start()
        yield node


def process_of(node: Node, schema: str, recorder: Recorder, **more: Any) -> SinkProcess:
    sink = {
        "name": "a",
        "kind": "recorder",
        "sources": [f"{schema}.*"],
        "flush": {"seconds": 0.01},
        "positions_every_s": 0,
        **more,
    }
    folder = node.folder / "sinks"
    raw = {
        "data_dir": folder,
        "relays": [node.url],
        "bootstrap_servers": [node.bootstrap_url],
        "back_off": {"first_s": 0.05, "max_s": 0.2},
        "sinks": [sink],
    }
    settings = build_settings(raw, SinksSettings)
    return SinkProcess(settings, [make_plan(settings.sinks[0], recorder.sink, folder / "x")])


def make_table(node: Node, place: Place, table: str) -> None:
    """Make a table; it is captured when this returns."""
    execute, schema, _ = place
    execute(TABLE.format(table))
    look = RelayLook(ClientSettings(relays=(node.url,)))
    wait_until(lambda: f"{schema}.{table}" in look.sources().get("shop", ()), PATIENCE_S)


def fill(node: Node, place: Place) -> None:
    """Make tables one after another under load, each with two rows that change."""
    execute, _, _ = place
    for number in range(100):
        execute(f"UPDATE orders SET name = 'new {number}' WHERE id = 1")
        if number % 20 == 0:
            table = TABLES[number // 20]
            make_table(node, place, table)
            for statement in (
                "INSERT INTO {} VALUES (1, 'a')",
                "INSERT INTO {} VALUES (2, 'b')",
                "UPDATE {} SET name = 'c' WHERE id = 2",
            ):
                execute(statement.format(table))
        time.sleep(0.01)


WANTED = {table: [{"id": 1, "name": "a"}, {"id": 2, "name": "c"}] for table in TABLES} | {
    "orders": [{"id": 0, "name": "old"}, {"id": 1, "name": "new 99"}]
}


def rows(recorder: Recorder, schema: str) -> dict[str, Any]:
    return {table: recorder.rows(f"{schema}.{table}") for table in WANTED}


def shown_problem(process: SinkProcess) -> str:
    return "; ".join(problems_of(sinks_view(process).sinks[0]))


def feed_of(process: SinkProcess) -> FeedView:
    return sinks_view(process).sinks[0].physical_sources[0]


@pytest.mark.parametrize("keeps_position", [False, True])
def test_tables_that_appear_under_load_before_and_after_a_new_sinks_start_are_read_whole(
    place: Place, tmp_path: Path, keeps_position: bool
) -> None:
    recorder = Recorder(keeps_position=keeps_position)
    with beside_pair(place, tmp_path) as node:
        writer = threading.Thread(target=fill, args=(node, place))
        writer.start()
        wait_until(lambda: TABLES[1] in str(node.health(node.url)), PATIENCE_S)
        with running(process_of(node, place[1], recorder)):
            writer.join()
            wait_until(lambda: rows(recorder, place[1]) == WANTED, PATIENCE_S)


def test_a_new_sink_of_nothing_but_a_new_table_reads_it_from_its_beginning(
    place: Place, tmp_path: Path
) -> None:
    execute, schema, _ = place
    recorder = Recorder()
    with beside_pair(place, tmp_path) as node:
        make_table(node, place, "pets")
        execute("INSERT INTO pets VALUES (1, 'Rex')")
        with running(process_of(node, schema, recorder, sources=[f"{schema}.pets"])):
            wait_until(lambda: recorder.rows(f"{schema}.pets") == [{"id": 1, "name": "Rex"}])


def newest_scn(node: Node) -> int:
    with urllib.request.urlopen(f"{node.url}/api/v1/physicalSources/shop") as answer:
        return int(json.load(answer)["ring"]["maxScn"] or 0)


def test_a_table_whose_beginning_nobody_has_is_shown_and_all_is_read_once_the_pair_keeps_it(
    place: Place, tmp_path: Path
) -> None:
    execute, schema, _ = place
    recorder = Recorder()
    with beside_pair(place, tmp_path, 'ring_bytes = "64KiB"\ncatch_ups = 0') as node:
        make_table(node, place, "pets")
        execute("INSERT INTO pets VALUES (1, 'Rex')")
        for number in range(1000):  # more than the ring holds
            newest = newest_scn(node) if number % 25 == 0 else 0
            execute(f"UPDATE orders SET name = '{number:0200}' WHERE id = 1")
            if number % 25 == 0:
                # What SQLite has got since the last look is one window: it must fit into the ring.
                wait_until(lambda newest=newest: newest_scn(node) > newest, PATIENCE_S)  # type: ignore[misc]
        look = RelayLook(ClientSettings(relays=(node.url,)))
        pets = f"{schema}.pets"

        def has_beginning() -> bool:
            return look.has_beginning("shop", pets, look.oldest_scn([pets]) or 0)

        wait_until(lambda: not has_beginning(), PATIENCE_S)
        process = process_of(node, schema, recorder)
        with running(process):
            wait_until(lambda: process.sinks[0].state is SinkState.FAILING)
            health, (shown,) = health_of(process), sinks_view(process).sinks
            assert not health.is_ok
            assert f"{schema}.pets cannot be read whole" in shown.problem
            assert "restart (of `databus run`" in shown.problem
            assert shown.problem in json.dumps(health.details)
            assert not recorder.changes
            node.child.stop()
            node.start()
            wait_until(lambda: recorder.rows(f"{schema}.pets"), PATIENCE_S)
            wait_until(lambda: len(recorder.rows(f"{schema}.orders")) == 2)
            wait_until(lambda: process.sinks[0].state is SinkState.RUNNING)
            assert health_of(process).is_ok
    assert recorder.rows(f"{schema}.pets") == [{"id": 1, "name": "Rex"}]


def test_a_sink_that_is_refused_by_the_bootstrap_server_says_why_and_what_to_do(
    place: Place, tmp_path: Path
) -> None:
    with beside_pair(place, tmp_path) as node:
        make_table(node, place, "pets")
        # The SCN is older than all that the relay has, so it needs the pair.
        process = process_of(node, place[1], Recorder(), start=0)
        with running(process):
            wait_until(lambda: "unknown source" in shown_problem(process), PATIENCE_S)
            feed, health = feed_of(process), health_of(process)
            assert (process.sinks[0].state, feed.state) == (SinkState.FAILING, "failing")
    assert f"it does not keep all of {place[1]}.orders, {place[1]}.pets" in feed.problem
    assert "or of the pair with the table in its settings" in feed.problem
    assert not health.is_ok


def held(target: Path) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(target, timeout=30)) as session:
        has = "SELECT 1 FROM sqlite_master WHERE name = 't0'"
        if not session.execute(has).fetchall():
            return []
        return session.execute("SELECT id, name FROM t0 ORDER BY id").fetchall()


def test_a_new_sink_whose_target_keeps_its_position_begins_with_a_table_that_the_pair_lacks(
    place: Place, tmp_path: Path
) -> None:
    execute, schema, _ = place
    target = tmp_path / "target.db"
    options = {"url": f"sqlite:///{target}", "table": "{table}", "exactly_once": True}

    with beside_pair(place, tmp_path) as node:
        make_table(node, place, "t0")
        execute("INSERT INTO t0 VALUES (1, 'a')")
        raw = {
            "data_dir": tmp_path / "sinks",
            "relays": [node.url],
            "bootstrap_servers": [node.bootstrap_url],
            "back_off": {"first_s": 0.05, "max_s": 0.2},
            "sinks": [
                {"name": "a", "kind": "sql", "sources": [f"{schema}.t0"], "options": options}
            ],
        }
        settings = build_settings(raw, SinksSettings)
        process = SinkProcess(settings, make_plans(settings))
        with running(process):
            wait_until(lambda: held(target) == [(1, "a")], PATIENCE_S)
            assert shown_problem(process) == ""
        execute("INSERT INTO t0 VALUES (2, 'b')")
        with running(SinkProcess(settings, make_plans(settings))):
            wait_until(lambda: held(target) == [(1, "a"), (2, "b")], PATIENCE_S)
        target.unlink()
        process = SinkProcess(settings, make_plans(settings))
        with running(process):
            wait_until(lambda: "has lost it" in shown_problem(process), PATIENCE_S)
