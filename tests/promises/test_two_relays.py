"""Two relays of one database are one: the same SCNs, the same bytes, and either will do."""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from databus.schemas.event.event import DDL_SRC_ID, Event, Part
from databus.schemas.stream.stream_reader import walk
from tests.mariadb_server import Database
from tests.promises.running import (
    Remembering,
    RunningRelay,
    Shop,
    consuming,
    mysql_source,
    running,
    sources_of,
    wait_until,
)

TRANSACTIONS = 900  # in each of three parts
LAST_ID = 99999


def write_randomly(database: Database, seed: int, count: int = TRANSACTIONS) -> None:
    draw = random.Random(seed)
    for number in range(count):
        key = draw.randrange(300)
        many = ",".join(f"({key + n}, 'n{number}', {draw.randrange(10**6)}.5)" for n in range(5))
        kinds = [
            [f"REPLACE INTO orders (id, note, price) VALUES {many}"],
            [f"UPDATE orders SET note = 'u{number}' WHERE id BETWEEN {key} AND {key + 3}"],
            [f"UPDATE IGNORE orders SET id = id + 1000 WHERE id = {key}"],
            [f"DELETE FROM orders WHERE id = {key}"],
            [
                "BEGIN",
                f"REPLACE INTO people VALUES ('p{key}', 'de', '1970-01-{key % 28 + 1:02}')",
                f"REPLACE INTO orders (id, note) VALUES ({key}, NULL)",
                draw.choice(["COMMIT", "COMMIT", "ROLLBACK"]),
            ],
        ]
        database.run(*draw.choice(kinds))


def wait_for_the_same(*relays: RunningRelay) -> None:
    """Wait until every relay has the last transaction."""
    for relay in relays:
        wait_until(lambda r=relay: b"the end" in newest_bytes(r), "the end")  # type: ignore[misc]


def newest_bytes(relay: RunningRelay) -> bytes:
    return b"".join(list(relay.windows().values())[-1:])


def rows_in(windows: Mapping[int, bytes]) -> dict[int, list[Event]]:
    """Return the events of each window, without the ids of their schemas.

    A version of a schema says what the ALTER before it did to rows at rest, if its relay saw
    that: until the next ALTER, relays that began before and after it have other ids for one
    table. See `schemas.table_change`.
    """
    return {
        scn: [
            event._replace(payload=event.payload and Part(event.payload.data, b""))
            for event in walk(data)
            if event.src_id != DDL_SRC_ID
        ]
        for scn, data in windows.items()
    }


@pytest.mark.mariadb
def test_relays_of_one_server_give_the_same_bytes_whenever_they_were_started(
    database: Database, tmp_path: Path
) -> None:
    settings = mysql_source(database, tmp_path)
    with running(RunningRelay(tmp_path, settings, name="early").start()) as early:
        write_randomly(database, 1)
        database.run("ALTER TABLE orders ADD COLUMN extra INT DEFAULT 7")
        write_randomly(database, 2)
        late = RunningRelay(tmp_path, settings, name="late")
        newest = RunningRelay(tmp_path, settings | {"start": "latest"}, name="newest")
        with running(late.start()), running(newest.start()):
            write_randomly(database, 3)
            # From here on they have the same schema ids, too.
            database.run("ALTER TABLE orders ADD COLUMN more INT DEFAULT 8")
            altered_at = len(early.windows())
            write_randomly(database, 4, 50)
            database.run(f"INSERT INTO orders (id, note) VALUES ({LAST_ID}, 'the end')")
            wait_for_the_same(early, late, newest)
            windows, others, part = early.windows(), late.windows(), newest.windows()
            assert len(windows) > 2 * TRANSACTIONS
            assert len(part) > TRANSACTIONS / 2
            rows = rows_in(windows)
            assert rows == rows_in(others)
            assert rows_in(part) == {scn: rows[scn] for scn in sorted(windows)[-len(part) :]}
            for scn in sorted(windows)[altered_at:]:
                assert windows[scn] == others[scn] == part[scn]


def test_relays_of_one_sqlite_file_give_the_same_bytes_whenever_they_were_started(
    shop: Shop, relay: RunningRelay, tmp_path: Path
) -> None:
    shop.insert(*range(1000), each=2)
    shop.connection.execute("ALTER TABLE orders ADD COLUMN extra INTEGER")
    shop.connection.execute("UPDATE orders SET extra = id WHERE id < 50")
    with running(RunningRelay(tmp_path, shop.settings(), name="late").start()) as late:
        for number in range(1000):
            shop.connection.execute("UPDATE orders SET note = ? WHERE id = ?", (number, number))
        shop.connection.execute("DELETE FROM orders WHERE id BETWEEN 100 AND 200")
        shop.insert(LAST_ID, note="the end")
        wait_for_the_same(relay, late)
        windows = relay.windows()
        assert rows_in(windows) == rows_in(late.windows())
        # One window has what was committed between two looks, so their number is chance.
        assert len(windows) > 5
        # What was logged before the relay noticed the ALTER is logged again, with all columns.
        events = [e for e in walk(b"".join(windows.values())) if e.src_id > 0]
        assert {event.key for event in events} == {*range(1000), LAST_ID}
        assert len(events) >= 2152


@pytest.mark.mariadb
def test_a_client_moves_to_the_other_relay_when_its_own_is_killed_and_misses_nothing(
    database: Database, tmp_path: Path
) -> None:
    settings = mysql_source(database, tmp_path)
    one = RunningRelay(tmp_path, settings, name="one")
    other = RunningRelay(tmp_path, settings, name="other")
    seen = Remembering()
    with (
        running(one.start()),
        running(other.start()),
        consuming([one.url, other.url], sources_of(database), seen) as client,
    ):
        writer = threading.Thread(target=write_randomly, args=(database, 4, 1200))
        writer.start()
        for count in (200, 600):
            wait_until(lambda c=count: len(seen.windows) > c, "windows")  # type: ignore[misc]
            served_by = client.status()[0].server
            victim = one if served_by == one.url else other
            victim.child.kill()
            wait_until(lambda s=served_by: client.status()[0].server != s)  # type: ignore[misc]
            victim.start()
        writer.join()
        database.run(f"INSERT INTO orders (id, note) VALUES ({LAST_ID}, 'the end')")
        wait_for_the_same(one, other)
        orders = f"{database.name}.orders"
        wait_until(lambda: LAST_ID in seen.rows(orders), "the end")
        # Not even within the last checkpoint does anything come again: no callback failed.
        assert seen.scns == list(one.windows()) == list(other.windows())
        rows = database.run("SELECT id, note FROM orders")
        assert {key: row["note"] for key, row in seen.rows(orders).items()} == dict(rows)
        assert not seen.errors
