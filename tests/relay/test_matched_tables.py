"""Tables that patterns match are captured: those that are there, and each new one from its CREATE.

On MariaDB, MySQL and SQLite, through the served relay and a client.
"""

from __future__ import annotations

import contextlib
import errno
import json
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from databus.relay.capture.window_encoder import WindowEncoder
from databus.relay.relay import Relay
from databus.relay.service import make_service
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.stream.stream_reader import walk
from tests import PATIENCE_S
from tests.mariadb_server import Database
from tests.relay.fakes import ServiceThread, get, relay_settings, wait_until

pytest_plugins = ["tests.mariadb", "tests.mysql", "tests.both_servers"]


FROM_THE_OLDEST = Checkpoint.flexible()


class Place:
    """A database with a table `a`, and how it is captured by patterns."""

    def __init__(self, name: str, settings: dict[str, Any], run: Callable[..., object]) -> None:
        self.name, self.settings, self.run = name, settings, run

    def captured(self, *patterns: str) -> dict[str, Any]:
        sources = [one.replace("DB", self.name) for one in patterns]
        return self.settings | {"name": "shop", "sources": sources}


@pytest.fixture
def mysql_place(either_database: Database, tmp_path: Path) -> Place:
    server = either_database.server
    (tmp_path / "password").write_text(server.password)
    (tmp_path / "password").chmod(0o600)
    settings = {
        "uri": f"mysql://{server.user}@127.0.0.1:{server.port}",
        "password_file": tmp_path / "password",
        "reconnect_min_s": 0.05,
    }
    return Place(either_database.name, settings, either_database.run)


@pytest.fixture
def sqlite_place(tmp_path: Path) -> Iterator[Place]:
    with contextlib.closing(sqlite3.connect(tmp_path / "x.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA busy_timeout = 5000")

        def run(*statements: str) -> None:
            for statement in statements:
                connection.execute(statement)

        yield Place("x", {"uri": f"sqlite:{tmp_path / 'x.db'}", "reconnect_min_s": 0.05}, run)


@contextlib.contextmanager
def captured(folder: Path, *sources: dict[str, Any]) -> Iterator[tuple[Relay, str]]:
    relay = Relay(relay_settings(folder, physical_sources=list(sources)))
    server = ServiceThread(make_service(relay))
    try:
        yield relay, server.url
    finally:
        server.close()


def is_captured(relay: Relay, *tables: str) -> bool:
    capture = relay.physical_sources["shop"].capture
    return capture.status.is_connected and set(tables) <= relay.catalog.ids.keys()


def ids_of(url: str, source: str, token: str = "", at: Checkpoint = FROM_THE_OLDEST) -> list[int]:
    """Return the ids of all rows of a source that the relay has, in order."""
    query = urlencode({"sources": source, "size": 1 << 20, "output": "json_plain_value"})
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    answer = get(url, f"/stream?{query}&checkPoint={quote(at.to_json())}", headers)
    assert answer.status == 200, answer.body
    events = [json.loads(line) for line in answer.body.splitlines()]
    return [event["value"]["id"] for event in events if event.get("srcId", -1) >= 0]


def make(table: str, *rows: int) -> list[str]:
    inserts = [f"INSERT INTO {table} VALUES ({row})" for row in rows]
    return [f"CREATE TABLE {table} (id INT PRIMARY KEY)", *inserts]


def test_a_table_that_is_made_later_is_captured_from_its_create_on(
    mysql_place: Place, tmp_path: Path
) -> None:
    name, run = mysql_place.name, mysql_place.run
    run(*make("a"))
    with captured(tmp_path, mysql_place.captured("DB.*", "!DB.tmp_*")) as (relay, url):
        wait_until(lambda: is_captured(relay, f"{name}.a"))
        run("INSERT INTO a VALUES (1)", *make("tmp_1", 7), *make("b", 1, 2), *make("c", 3))
        run("INSERT INTO a VALUES (2)", "RENAME TABLE tmp_1 TO d", "INSERT INTO d VALUES (8)")
        wait_until(lambda: is_captured(relay, f"{name}.b", f"{name}.c", f"{name}.d"))
        run("INSERT INTO b VALUES (9)")
        wait_until(lambda: ids_of(url, f"{name}.b") == [1, 2, 9])
        assert ids_of(url, f"{name}.a") == [1, 2]
        assert ids_of(url, f"{name}.c") == [3]
        assert ids_of(url, f"{name}.d") == [8]
        assert f"{name}.tmp_1" not in relay.catalog.ids


def test_a_consumer_with_an_older_position_is_sent_all_of_a_new_table(
    mysql_place: Place, tmp_path: Path
) -> None:
    name, run = mysql_place.name, mysql_place.run
    run(*make("a"))
    with captured(tmp_path, mysql_place.captured("DB.*")) as (relay, url):
        wait_until(lambda: is_captured(relay, f"{name}.a"))
        run("INSERT INTO a VALUES (1)", "INSERT INTO a VALUES (2)")
        wait_until(lambda: ids_of(url, f"{name}.a") == [1, 2])
        ring = relay.physical_sources["shop"].ring
        at = Checkpoint.at(ring.min_scn)
        run(*make("b", 5))
        wait_until(lambda: is_captured(relay, f"{name}.b") and bool(ids_of(url, f"{name}.b")))
        assert ids_of(url, f"{name}.b", at=at) == [5]


def test_found_tables_keep_their_ids_and_rows_over_a_restart_and_those_made_meanwhile_come_whole(
    mysql_place: Place, tmp_path: Path
) -> None:
    name, run = mysql_place.name, mysql_place.run
    run(*make("a"))
    settings = mysql_place.captured("DB.*")
    with captured(tmp_path, settings) as (relay, url):
        wait_until(lambda: is_captured(relay, f"{name}.a"))
        run(*make("b", 1))
        wait_until(lambda: is_captured(relay, f"{name}.b"))
        wait_until(lambda: ids_of(url, f"{name}.b") == [1])
        ids = dict(relay.catalog.ids)
    run("INSERT INTO b VALUES (2)", "DROP TABLE a", *make("c", 5, 6), *make("gone", 7))
    run("DROP TABLE gone")
    with captured(tmp_path, settings) as (relay, url):
        wait_until(lambda: is_captured(relay, f"{name}.c"))
        wait_until(lambda: ids_of(url, f"{name}.c") == [5, 6])
        assert ids_of(url, f"{name}.b") == [1, 2]
        wait_until(lambda: is_captured(relay, f"{name}.gone"))
        wait_until(lambda: ids_of(url, f"{name}.gone") == [7])
        assert dict(relay.catalog.ids).items() >= ids.items()
        run(*make("a", 4))  # it comes back
        wait_until(lambda: ids_of(url, f"{name}.a") == [4])


def test_a_new_table_begins_with_its_create_also_if_the_relay_ended_just_before_it_was_written(
    mysql_place: Place, tmp_path: Path
) -> None:
    name, run = mysql_place.name, mysql_place.run
    run(*make("a"))
    settings = mysql_place.captured("DB.*")
    with pytest.MonkeyPatch.context() as patch, captured(tmp_path, settings) as (relay, _):
        wait_until(lambda: is_captured(relay, f"{name}.a"))
        capture, has_failed = relay.physical_sources["shop"].capture, threading.Event()

        def fail(_encoder: WindowEncoder) -> None:
            if f"{name}.b" in relay.catalog.ids:  # it is taken in, and its window is not written
                has_failed.set()
                raise OSError(errno.EIO, "the machine is about to fail")

        patch.setattr(WindowEncoder, "settle", fail)
        run(*make("b", 1))
        wait_until(has_failed.is_set)
        wait_until(lambda: not capture.status.is_connected)
    with captured(tmp_path, settings) as (relay, url):
        wait_until(lambda: ids_of(url, f"{name}.b") == [1])
        (version,) = relay.registry.versions(f"{name}.b")
        assert version.start_scn > relay.physical_sources["shop"].ring.min_scn


def test_tables_of_new_databases_and_of_none_yet_are_captured(
    mysql_place: Place, tmp_path: Path
) -> None:
    name, run = mysql_place.name, mysql_place.run
    try:
        with captured(tmp_path, mysql_place.captured("DB_*.orders")) as (relay, url):
            wait_until(lambda: relay.physical_sources["shop"].capture.status.is_connected)
            (warning,) = [
                one
                for one in relay.physical_sources["shop"].capture.status.warnings
                if "no table matches" in one
            ]
            assert f"{name}_*.orders" in warning
            run(f"CREATE DATABASE {name}_x", *make(f"{name}_x.orders", 1), *make(f"{name}_x.b", 1))
            wait_until(lambda: is_captured(relay, f"{name}_x.orders"))
            wait_until(lambda: ids_of(url, f"{name}_x.orders") == [1])
            assert list(relay.catalog.ids) == [f"{name}_x.orders"]
            run(f"INSERT INTO {name}_x.orders VALUES (2)")
            wait_until(lambda: ids_of(url, f"{name}_x.orders") == [1, 2])
    finally:
        run(f"DROP DATABASE IF EXISTS {name}_x")


def test_what_cannot_be_captured_is_left_out_with_a_warning(
    mysql_place: Place, tmp_path: Path
) -> None:
    name, run = mysql_place.name, mysql_place.run
    cascade = "FOREIGN KEY (id) REFERENCES a (id) ON DELETE CASCADE"
    run(*make("a"), f"CREATE TABLE child (id INT PRIMARY KEY, {cascade})")
    with captured(tmp_path, mysql_place.captured("DB.*")) as (relay, url):
        wait_until(lambda: is_captured(relay, f"{name}.a"))
        status = relay.physical_sources["shop"].capture.status
        assert [one for one in status.warnings if "child" in one and "left out" in one]
        run(f"CREATE TABLE other (id INT PRIMARY KEY, {cascade})", "INSERT INTO a VALUES (1)")
        wait_until(lambda: ids_of(url, f"{name}.a") == [1])
        assert list(relay.catalog.ids) == [f"{name}.a"]
        shop = relay.physical_sources["shop"]
        wait_until(lambda: any("other" in one for one in shop.capture.status.warnings))
        run("DROP TABLE child", "DROP TABLE other")


def test_a_table_of_an_sqlite_file_is_captured_soon_after_it_is_made(
    sqlite_place: Place, tmp_path: Path
) -> None:
    run = sqlite_place.run
    run(*make("a"))
    settings = sqlite_place.captured("shop.*", "!shop.tmp_*")
    with captured(tmp_path, settings) as (relay, url):
        wait_until(lambda: is_captured(relay, "shop.a"))
        run(*make("B"), *make("tmp_1", 1))
        wait_until(lambda: is_captured(relay, "shop.B"))
        run("INSERT INTO B VALUES (1)", "INSERT INTO a VALUES (1)")
        wait_until(lambda: ids_of(url, "shop.a") == [1])
        assert ids_of(url, "shop.B") == [1]
        run("DROP TABLE B", "INSERT INTO a VALUES (2)")
        wait_until(lambda: ids_of(url, "shop.a") == [1, 2])
        ids = dict(relay.catalog.ids)
        assert list(ids) == ["shop.a", "shop.B"]
    run(*make("B"))
    with captured(tmp_path, settings) as (relay, url):
        wait_until(lambda: is_captured(relay, "shop.B"))
        run("INSERT INTO B VALUES (5)")
        wait_until(lambda: ids_of(url, "shop.B") == [1, 5])
        assert dict(relay.catalog.ids) == ids


def test_a_request_for_all_tables_is_sent_no_rows_of_one_that_is_found_meanwhile(
    sqlite_place: Place, tmp_path: Path
) -> None:
    run = sqlite_place.run
    run(*make("a"))
    with captured(tmp_path, sqlite_place.captured("shop.*")) as (relay, url):
        wait_until(lambda: is_captured(relay, "shop.a"))
        run("INSERT INTO a VALUES (1)")
        wait_until(lambda: ids_of(url, "shop.a") == [1])
        source = relay.physical_sources["shop"]
        at = quote(Checkpoint.at(source.ring.max_scn).to_json())
        found: list[bytes] = []
        path = f"/stream?sources=shop.a&size=100000&wait=2000&checkPoint={at}"
        held = threading.Thread(target=lambda: found.append(get(url, path).body))
        held.start()
        wait_until(lambda: source.notifier.waiting == 1)
        run(*make("b"))
        wait_until(lambda: is_captured(relay, "shop.b"))
        run("INSERT INTO b VALUES (7)")
        held.join(PATIENCE_S)
        assert [event.src_id for event in walk(found[0]) if not event.is_control] == []


def test_a_name_that_another_physical_source_has_stops_only_the_one_with_the_pattern(
    sqlite_place: Place, tmp_path: Path
) -> None:
    sqlite_place.run(*make("a"))
    listed = sqlite_place.settings | {"name": "other", "sources": ["shop.a"]}
    with captured(tmp_path, sqlite_place.captured("shop.*"), listed) as (relay, _):
        wait_until(lambda: relay.physical_sources["other"].capture.status.is_connected)
        capture = relay.physical_sources["shop"].capture
        wait_until(lambda: '"!shop.a"' in capture.status.problem)
