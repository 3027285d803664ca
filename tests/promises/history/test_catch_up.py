"""A consumer older than ring and relay log gets every change from the binlogs of a real server."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote

import pytest

from databus.schemas.checkpoint import Checkpoint
from tests.mariadb_server import Database, purge_to
from tests.promises.history.databases import own_database
from tests.promises.running import (
    Remembering,
    RunningRelay,
    consuming,
    cut_windows,
    mysql_source,
    running,
    sources_of,
    wait_until,
)
from tests.relay.log.logs import damage_events

pytest_plugins = ["tests.mysql"]

RING_BYTES = 64 << 10
ROWS = 3000
NOTE = "x" * 100
LARGE_ROWS = 4010  # of 1,400 bytes that cannot be compressed to less than half
SEED = 20261125


@pytest.fixture
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    """A database on a server of its own, which a test may purge or replace."""
    options: dict[str, str | int] = {"binlog-row-metadata": "FULL", "max-binlog-size": 262144}
    is_mysql = getattr(request, "param", "") == "mysql"
    with own_database(request, options, is_mysql=is_mysql) as database:
        yield database


@pytest.fixture
def relay(database: Database, tmp_path: Path) -> Iterator[RunningRelay]:
    """A relay with a small ring, not started."""
    settings = mysql_source(database, tmp_path, ring_bytes=RING_BYTES, catch_up_idle_s=60.0)
    with running(RunningRelay(tmp_path, settings)) as relay:
        yield relay


def insert(database: Database, ids: range, each: int = 5) -> None:
    """Insert rows, so many in a transaction."""
    for begin in range(ids.start, ids.stop, each):
        wanted = range(begin, min(begin + each, ids.stop))
        values = ", ".join(f"({n}, '{NOTE}{n}', {n % 1000})" for n in wanted)
        database.run(f"INSERT INTO orders (id, note, price) VALUES {values}")


def catch_ups(relay: RunningRelay) -> Sequence[dict[str, Any]]:
    """Return what the relay says of its catch-ups."""
    found: Sequence[dict[str, Any]]
    found = relay.get("/controlSources/status").json()["shop"]["catchUps"]
    return found


def begun(relay: RunningRelay, database: Database) -> int:
    """Start the relay with a few rows; return the SCN of their last window, which is evicted."""
    relay.start()
    insert(database, range(10))
    wait_until(lambda: len(relay.windows()) >= 2, "the first rows", relay.tell)
    scn = max(relay.windows())
    insert(database, range(10, ROWS))
    wait_until(
        lambda: relay.get("/bufferInfo/inbound/shop/0").json()["minScn"] > scn + (1 << 32),
        "the first binlog file to be out of the ring",
        relay.tell,
    )
    return scn


def measured_rows(relay: RunningRelay, scn: int) -> int:
    """Return how many rows `/measure` finds after an SCN, asked again from where it ends."""
    rows, newest = 0, relay.max_scn()
    while scn < newest:
        checkpoint = quote(Checkpoint.at(scn).to_json())
        answer = relay.get(f"/measure?sources=1&checkPoint={checkpoint}")
        assert answer.status == 200, answer.headers
        assert answer.json()["scn"] > scn
        rows, scn = rows + answer.json()["rows"], answer.json()["scn"]
    return rows


def ids_of(consumer: Remembering) -> list[int]:
    """Return the keys of the rows in the order in which they came."""
    return [event.row["id"] for event in consumer.events if event.source.endswith(".orders")]


@pytest.mark.parametrize(
    "database", ["mariadb", pytest.param("mysql", marks=pytest.mark.mysql)], indirect=True
)
def test_what_was_altered_before_the_relay_s_first_start_is_read_again_as_it_was_captured(
    database: Database, tmp_path: Path
) -> None:
    # The log has the table's CREATE, rows of that form, and its ALTER, all before the first start.
    insert(database, range(ROWS, ROWS + 10))
    database.run("ALTER TABLE orders MODIFY note LONGTEXT")
    settings = mysql_source(database, tmp_path, ring_bytes=RING_BYTES, start="latest")
    with running(RunningRelay(tmp_path, settings)) as relay:
        left_at = begun(relay, database)
        versions = relay.get("/api/v1/schemas").json()
        consumer = Remembering()
        with consuming([relay.url], sources_of(database), consumer, start=left_at):
            wait_until(lambda: len(consumer.events) >= ROWS - 10, "every row", relay.tell)
        assert relay.get("/api/v1/schemas").json() == versions, "none is of before its first start"
    assert ids_of(consumer) == list(range(10, ROWS))
    assert consumer.errors == []


@pytest.mark.parametrize("metadata", ["FULL", "MINIMAL"])
@pytest.mark.parametrize("is_mysql", [False, pytest.param(True, marks=pytest.mark.mysql)])
def test_one_log_file_is_read_again_though_its_definitions_begin_in_the_middle(
    request: pytest.FixtureRequest, tmp_path: Path, is_mysql: bool, metadata: str
) -> None:
    # What was altered before the relay's start says what tables were from there on, in one file.
    options: dict[str, str | int] = {"binlog-row-metadata": metadata}
    with own_database(request, options, is_mysql=is_mysql) as database:
        insert(database, range(5))
        database.run("ALTER TABLE orders ADD COLUMN place VARCHAR(20) DEFAULT 'here'")
        settings = mysql_source(database, tmp_path, ring_bytes=RING_BYTES, start="earliest")
        with running(RunningRelay(tmp_path, settings)) as relay:
            relay.start()
            insert(database, range(5, 10))
            wait_until(lambda: len(relay.windows()) >= 2, "the first rows", relay.tell)
            scn = max(relay.windows())
            insert(database, range(10, ROWS))
            inbound = "/bufferInfo/inbound/shop/0"
            wait_until(lambda: relay.get(inbound).json()["minScn"] > scn, "evicted", relay.tell)
            consumer = Remembering()
            with consuming([relay.url], sources_of(database), consumer, start=f"scn:{scn}"):
                wait_until(lambda: len(consumer.events) >= ROWS - 10, "every row", relay.tell)
    assert ids_of(consumer) == list(range(10, ROWS))
    assert consumer.errors == []


@pytest.mark.parametrize(
    "database", ["mariadb", pytest.param("mysql", marks=pytest.mark.mysql)], indirect=True
)
def test_a_consumer_that_was_away_gets_every_row_in_order_though_the_relay_is_killed(
    database: Database, relay: RunningRelay, tmp_path: Path
) -> None:
    consumer, sources = Remembering(), sources_of(database)
    options = {"checkpoint_dir": tmp_path / "checkpoints", "fetch_bytes": 16 << 10}
    relay.start()
    insert(database, range(20))
    with consuming([relay.url], sources, consumer, **options):
        wait_until(lambda: len(consumer.events) == 20, "the consumer", relay.tell)
    left_at = consumer.scn
    insert(database, range(20, 1000))
    database.run("ALTER TABLE orders ADD COLUMN place VARCHAR(20) DEFAULT 'here'")
    insert(database, range(1000, ROWS))
    wait_until(lambda: relay.get("/bufferInfo/inbound/shop/0").json()["minScn"] > left_at)
    with consuming([relay.url], sources, consumer, **options):
        wait_until(lambda: len(consumer.events) > 200, "a part", relay.tell)
        assert catch_ups(relay)
        relay.child.kill()
        relay.start()
        wait_until(lambda: len(consumer.events) >= ROWS, "the rest", relay.tell)
        insert(database, range(ROWS, ROWS + 100))
        wait_until(lambda: len(consumer.events) >= ROWS + 100, "what is new", relay.tell)
    assert ids_of(consumer) == list(range(ROWS + 100))
    assert consumer.errors == []
    assert consumer.rollbacks == []
    rows = {event.row["id"]: event.row for event in consumer.events}
    assert ("place" in rows[999], rows[1000]["place"]) == (False, "here")


def test_a_catch_up_reads_the_server_that_capture_reads_not_the_first_of_the_list(
    database: Database, relay: RunningRelay
) -> None:
    relay.change(uri=["mysql://databus@127.0.0.1:1", database.server.uri])
    scn = begun(relay, database)
    consumer, sources = Remembering(), sources_of(database)
    with consuming([relay.url], sources, consumer, start=f"scn:{scn}"):
        wait_until(lambda: len(consumer.events) >= ROWS - 10, "all rows", relay.tell)
    assert ids_of(consumer) == list(range(10, ROWS))
    assert consumer.errors == []


def test_two_consumers_share_one_catch_up(database: Database, relay: RunningRelay) -> None:
    scn = begun(relay, database)
    consumers, sources = [Remembering(), Remembering()], sources_of(database)
    with ExitStack() as clients:
        for consumer in consumers:
            more = {"start": f"scn:{scn}", "fetch_bytes": 16 << 10}
            clients.enter_context(consuming([relay.url], sources, consumer, **more))
        wait_until(
            lambda: all(len(one.events) >= ROWS - 10 for one in consumers), "all rows", relay.tell
        )
    for consumer in consumers:
        assert ids_of(consumer) == list(range(10, ROWS))
        assert consumer.errors == []
    metrics = relay.get("/metrics").body.decode()
    assert 'databus_relay_catch_up_opened_total{physical_source="shop"} 1.0' in metrics


def insert_large(database: Database, ids: range, random: Random) -> None:
    """Insert rows that are hardly smaller when they are compressed."""
    for begin in range(ids.start, ids.stop, 20):
        notes = [(n, random.randbytes(700).hex()) for n in range(begin, begin + 20)]
        values = ", ".join(f"({n}, '{note}', 1)" for n, note in notes)
        database.run(f"INSERT INTO orders (id, note, price) VALUES {values}")


@pytest.mark.parametrize(("consumers", "before"), [(1, 0), (2, 0), (1, LARGE_ROWS)])
def test_a_stretch_larger_than_a_catch_up_may_be_comes_whole_and_in_order(
    database: Database, tmp_path: Path, consumers: int, before: int
) -> None:
    # With rows before the place in its file, the catch-up begins as far before it.
    database.run("ALTER TABLE orders MODIFY note TEXT", "SET GLOBAL max_binlog_size = 1073741824")
    random = Random(SEED)
    limits = {"catch_up_bytes": 1 << 20, "catch_up_idle_s": 60.0}
    settings = mysql_source(database, tmp_path, ring_bytes=RING_BYTES, **limits)
    with running(RunningRelay(tmp_path, settings)) as relay, ExitStack() as clients:
        relay.start()
        insert_large(database, range(2_000_000, 2_000_000 + before), random)
        insert(database, range(10))
        last = f"{NOTE}9".encode()
        wait_until(lambda: any(last in data for data in relay.windows().values()), "row 9")
        scn = max(relay.windows())
        insert_large(database, range(10, LARGE_ROWS), random)
        database.run("INSERT INTO orders (id, note, price) VALUES (1000000, 'the last', 1)")
        evicted = relay.get("/bufferInfo/inbound/shop/0").json
        wait_until(lambda: evicted()["minScn"] > scn, "the eviction", relay.tell)
        seen = [Remembering() for _ in range(consumers)]
        for number, consumer in enumerate(seen):
            start = {"start": scn, "checkpoint_dir": tmp_path / f"checkpoints{number}"}
            clients.enter_context(consuming([relay.url], sources_of(database), consumer, **start))
        expected = [*range(10, LARGE_ROWS), 1_000_000]
        for consumer in seen:
            wait_until(lambda c=consumer: ids_of(c)[-1:] == expected[-1:], "all", relay.tell)  # type: ignore[misc]
            assert ids_of(consumer) == expected
            assert consumer.errors == []


def test_a_frozen_consumers_catch_up_is_dropped_and_it_goes_on_with_another_one(
    database: Database, relay: RunningRelay
) -> None:
    relay.change(catch_up_idle_s=0.5)
    scn = begun(relay, database)
    first = relay.stream(Checkpoint.at(scn), wait=10_000, size=8192)
    assert cut_windows(first.body)
    scn = max(cut_windows(first.body))
    folder = relay.data_dir / "shop.catch-up"
    wait_until(lambda: not catch_ups(relay) and not list(folder.iterdir()), "its end", relay.tell)
    again = relay.stream(Checkpoint.at(scn), wait=10_000, size=8192)
    assert min(cut_windows(again.body)) > scn


def test_purged_binlogs_are_the_end_of_the_rung_and_the_reason_is_told(
    database: Database, relay: RunningRelay
) -> None:
    scn = begun(relay, database)
    database.run("FLUSH BINARY LOGS")
    files = [row[0] for row in database.run("SHOW BINARY LOGS")]
    wait_until(lambda: relay.max_scn() >> 32 >= len(files) - 1, "the newest file", relay.tell)

    def is_purged() -> bool:
        purge_to(database.server, files[-1])
        return len(database.run("SHOW BINARY LOGS")) < len(files) - 1

    wait_until(is_purged, "the purge", relay.tell)
    answer = relay.stream(Checkpoint.at(scn), wait=20_000)
    assert answer.status == 404
    text = answer.headers["x-dbus-error-cause-message"]
    oldest = relay.get("/bufferInfo/inbound/shop/0").json()["minScn"]
    assert f"scn {scn} is gone; the oldest held is {oldest}" in text
    assert "files were purged" in text
    consumer, sources = Remembering(), sources_of(database)
    with consuming([relay.url], sources, consumer, start=f"scn:{scn}"):
        wait_until(lambda: consumer.errors, "the error", relay.tell)
    assert consumer.events == []


def test_another_log_in_the_place_of_the_captured_one_is_never_read(
    database: Database, relay: RunningRelay
) -> None:
    scn = begun(relay, database)
    relay.pause()
    database.run("DELETE FROM orders", "RESET MASTER")
    insert(database, range(ROWS + 1000))
    answer = relay.stream(Checkpoint.at(scn), wait=20_000)
    assert (answer.status, cut_windows(answer.body) if answer.status == 200 else {}) == (404, {})
    # By its proof, or because the server itself finds no event at that place.
    assert "own log cannot be read from there" in answer.headers["x-dbus-error-cause-message"]


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_windows_that_are_damaged_in_the_relay_log_come_from_the_binlogs(
    database: Database, relay: RunningRelay, compression: str
) -> None:
    log = {"segment_bytes": 64 << 10, "sync_ms": 5, "compression": compression}
    relay.change(log=log, catch_ups=2)
    scn = begun(relay, database)
    damaged = min((relay.data_dir / "shop.relay-log").glob("*.segment"))
    damage_events(damaged, 1 / 4)
    consumer, sources = Remembering(), sources_of(database)
    with consuming([relay.url], sources, consumer, start=f"scn:{scn}", fetch_bytes=16 << 10):
        wait_until(lambda: len(consumer.events) >= ROWS - 10, "all rows", relay.tell)
        insert(database, range(ROWS, ROWS + 100))
        wait_until(lambda: len(consumer.events) >= ROWS + 90, "what is new", relay.tell)
    assert ids_of(consumer) == list(range(10, ROWS + 100))
    assert consumer.errors == []
    # Compressed frames are sent as they lie on disk: it is the client that finds the damage, and it
    # may have begun a window then.
    assert not consumer.rollbacks or compression == "zstd"
    metrics = relay.get("/metrics").body.decode()
    # On a slow machine it is closed meanwhile, and opened again.
    opened = r'databus_relay_catch_up_opened_total\{physical_source="shop"\} [1-9]'
    assert re.search(opened, metrics), metrics
    assert f"{damaged} is damaged" in str(relay.get("/health").json())
    assert measured_rows(relay, scn) == ROWS + 90
