"""Tables that appear while a sink with patterns runs, and while it does not."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from databus.client.sinks.running.feed import SinkState
from databus.client.sinks.serving import running_sink
from databus.client.sinks.serving.discovery import RelayLook
from databus.client.sinks.serving.positions import PositionFile, StoredPosition
from databus.conf.settings import ClientSettings
from databus.demo.private_mariadb import PrivateMariaDB
from databus.schemas.errors import CheckpointError
from databus.testing import running_relay
from databus.testing.recorder import Recorder
from tests.client.shop import wait_until
from tests.client.sinks.serving.test_running_sink import keys, process_of, running
from tests.mariadb_server import fresh_database
from tests.promises.running import RunningRelay, mysql_source

PATIENCE_S = 60.0
TABLE = "CREATE TABLE {} (id INTEGER PRIMARY KEY, name VARCHAR(20))"
Run = Callable[[str], object]


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateMariaDB]:
    """A MariaDB of these tests' own: its log begins with them."""
    with PrivateMariaDB(options={"binlog-row-metadata": "FULL"}) as server:
        yield server


@pytest.fixture(scope="module", autouse=True)
def _server_before_tests(request: pytest.FixtureRequest) -> None:
    """Start MariaDB before the first test if any needs it: it is not left behind by that test."""
    if any(item.get_closest_marker("mariadb") for item in request.session.items):
        request.getfixturevalue("server")


@pytest.fixture(params=["sqlite", pytest.param("mysql", marks=pytest.mark.mariadb)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Yield what runs a statement, the settings of the physical source, and the schema's name."""
    if request.param == "mysql":
        with fresh_database(request.getfixturevalue("server")) as database:
            database.run("RESET MASTER", TABLE.format("orders"))
            name = database.name
            yield database.run, mysql_source(database, tmp_path, sources=[f"{name}.*"]), name
        return
    file = tmp_path / "shop.db"
    with closing(sqlite3.connect(file, isolation_level=None, timeout=30)) as session:
        session.execute(TABLE.format("orders"))
        yield (
            session.execute,
            {"name": "shop", "uri": f"sqlite:{file}", "sources": ["shop.*"]},
            "shop",
        )


@contextmanager
def capturing(
    folder: Path, physical: dict[str, Any], schema: str
) -> Iterator[tuple[RunningRelay, Callable[[str], bool]]]:
    """Run a relay; yield it, and what says whether it captures a table."""
    relay = RunningRelay(folder, physical)
    try:
        relay.start()
        look = RelayLook(ClientSettings(relays=(relay.url,)))

        def is_captured(table: str) -> bool:
            return any(f"{schema}.{table}" in names for names in look.sources().values())

        yield relay, is_captured
    finally:
        relay.child.stop()


@pytest.mark.parametrize("keeps_position", [False, True])
def test_a_table_that_appears_is_read_from_its_first_row_and_the_others_not_again(
    place: tuple[Run, dict[str, Any], str], tmp_path: Path, keeps_position: bool
) -> None:
    execute, physical, schema = place
    recorder = Recorder(keeps_position=keeps_position)

    def run(*statements: str) -> None:
        for statement in statements:
            execute(statement)

    def has(table: str, key: int) -> bool:
        return (f"{schema}.{table}", key) in keys(recorder)

    with capturing(tmp_path / "relay", physical, schema) as (relay, is_captured):
        wait_until(lambda: is_captured("orders"))
        run("INSERT INTO orders VALUES (1, 'tea')")
        more = {"sources": [f"{schema}.*"]}
        process = process_of(tmp_path / "sinks", relay.url, {"a": recorder}, **more)
        with running(process):
            wait_until(lambda: has("orders", 1))
            run(TABLE.format("people"))
            wait_until(lambda: is_captured("people"))
            for key in range(2, 6):
                run(
                    f"INSERT INTO people VALUES ({key}, 'Ada')",
                    f"INSERT INTO orders VALUES ({key}, 'tea')",
                )
                # So the sink has gone by when it looks for new tables.
                wait_until(lambda key=key: has("orders", key))  # type: ignore[misc]
            wait_until(lambda: has("people", 5))
            run("INSERT INTO people VALUES (6, 'Ada')")
            wait_until(lambda: has("people", 6))
        run(TABLE.format("pets"))  # while no sink runs
        wait_until(lambda: is_captured("pets"))
        run("INSERT INTO pets VALUES (1, 'Rex')")
        with running(process_of(tmp_path / "sinks", relay.url, {"a": recorder}, **more)):
            run("INSERT INTO orders VALUES (7, 'tea')")
            wait_until(lambda: has("orders", 7))
            wait_until(lambda: has("pets", 1))
    wanted = [("orders", key) for key in (*range(1, 6), 7)]
    wanted += [("people", key) for key in range(2, 7)] + [("pets", 1)]
    assert sorted(keys(recorder)) == [(f"{schema}.{table}", key) for table, key in wanted]


@pytest.mark.parametrize("keeps_position", [False, True])
def test_tables_that_appear_one_after_another_under_load_are_all_read_whole(
    place: tuple[Run, dict[str, Any], str], tmp_path: Path, keeps_position: bool
) -> None:
    execute, physical, schema = place
    recorder = Recorder(keeps_position=keeps_position)
    tables = [f"t{number}" for number in range(6)]
    with capturing(tmp_path / "relay", physical, schema) as (relay, is_captured):
        execute("INSERT INTO orders VALUES (0, 'tea')")
        more = {"sources": [f"{schema}.*"]}
        with running(process_of(tmp_path / "sinks", relay.url, {"a": recorder}, **more)):
            wait_until(lambda: (f"{schema}.orders", 0) in keys(recorder))
            for number in range(1, 181):
                execute(f"UPDATE orders SET name = 'tea {number}' WHERE id = 0")
                if number % 30 == 0:
                    table = tables[number // 30 - 1]
                    execute(TABLE.format(table))
                    if physical["uri"].startswith("sqlite"):
                        # Captured from when the relay sees it.
                        wait_until(lambda table=table: is_captured(table))  # type: ignore[misc]
                    execute(f"INSERT INTO {table} VALUES (1, 'a')")
                    execute(f"INSERT INTO {table} VALUES (2, 'b')")
                time.sleep(0.03)
            last = [(f"{schema}.{table}", key) for table in tables for key in (1, 2)]
            wait_until(lambda: set(last) <= set(keys(recorder)), PATIENCE_S)
    assert [recorder.rows(f"{schema}.{table}") for table in tables] == [
        [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}] for _ in tables
    ]


@pytest.mark.parametrize("failures", [0, 1])
def test_a_sink_is_not_over_while_it_begins_anew_for_a_table(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, failures: int
) -> None:
    recorder = Recorder()
    save, left, states = PositionFile.save, [failures], []

    def save_slowly(file: PositionFile, position: StoredPosition) -> None:
        if position.checkpoint.window_scn == -1:  # that of the new table
            states.append(sink.state)
            time.sleep(0.5)
            states.append(sink.state)
            if left[0]:
                left[0] -= 1
                raise CheckpointError("the disk is full")
        save(file, position)

    known: dict[str, tuple[str, ...]] = {"shop": ("shop.orders",)}
    monkeypatch.setattr(PositionFile, "save", save_slowly)
    monkeypatch.setattr(running_sink, "chosen", lambda *_: known)
    with running_relay(TABLE.format("orders"), TABLE.format("people")) as relay:
        relay.execute(
            "INSERT INTO orders VALUES (1, 'tea')", "INSERT INTO people VALUES (1, 'Ada')"
        )
        process = process_of(tmp_path / "sinks", relay.url, {"a": recorder})
        (sink,) = process.sinks
        with running(process) as ended:
            wait_until(lambda: ("shop.orders", 1) in keys(recorder))
            known = {"shop": ("shop.orders", "shop.people")}
            wait_until(lambda: ("shop.people", 1) in keys(recorder), PATIENCE_S)
            relay.execute("INSERT INTO orders VALUES (2, 'tea')")
            wait_until(lambda: ("shop.orders", 2) in keys(recorder), PATIENCE_S)
            assert ended == []
    assert set(states) == {SinkState.STARTING}
    assert keys(recorder) == [("shop.orders", 1), ("shop.people", 1), ("shop.orders", 2)]
