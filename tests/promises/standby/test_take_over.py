"""One of two relays captures; when it is killed or frozen, the other one goes on, exactly there."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from databus.cli.main import main
from databus.schemas.stream.stream_reader import walk
from tests.mariadb_server import Database
from tests.promises.chaining.test_chain import dump_connections, ids_of
from tests.promises.running import (
    Remembering,
    RunningRelay,
    Shop,
    consuming,
    meanwhile,
    mysql_source,
    running,
    sources_of,
    wait_until,
)
from tests.promises.standby.pair import Pair, is_active, paired, role
from tests.relay.admin.test_api import post


class Writer:
    """Inserts rows with rising ids into `orders`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.newest = 0

    def run(self, ended: threading.Event) -> None:
        """Insert until the event is set."""
        while not ended.wait(0.005):
            self.newest += 1
            self._database.run(f"INSERT INTO orders (id, note) VALUES ({self.newest}, 'x')")


@pytest.mark.mariadb
def test_a_standby_goes_on_where_the_relay_that_captured_was_killed_or_frozen(
    database: Database, tmp_path: Path
) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    draw = random.Random(seed)
    before = dump_connections(database)
    consumer = Remembering()
    pair = Pair(tmp_path, mysql_source(database, tmp_path), f"file:{tmp_path / 'leases'}")
    writer = Writer(database)
    with paired(pair):
        urls = [one.url for one in pair.relays]
        with consuming(urls, sources_of(database)[:1], consumer):
            with meanwhile(writer.run):
                for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGKILL):
                    active = pair.wait_for_active()
                    term = role(active)["term"]
                    time.sleep(draw.uniform(0.2, 1.0))
                    took_s = pair.take_over_from(active, number)
                    print(f"{number.name}: taken over after {took_s:.2f} s")
                    successor = pair.other(active)
                    assert role(successor)["term"] > term
                    time.sleep(draw.uniform(0.2, 1.0))
                    if number is signal.SIGSTOP:
                        os.kill(active.child.pid, signal.SIGCONT)
                    else:
                        active.serve()
                    wait_until(
                        lambda a=active, s=successor: role(a).get("owner") == s.url,  # type: ignore[misc]
                        "the relay of before to stand by",
                        active.tell,
                    )
                    assert not is_active(active)
                    assert is_active(successor)
            wait_until(lambda: ids_of(consumer)[-1:] == [writer.newest], "the last row")
            for relay in pair.relays:
                wait_until(lambda r=relay: r.get("/health").status == 200, "health", relay.tell)  # type: ignore[misc]
        assert dump_connections(database) == before + 1
        first, second = pair.relays
        wait_until(lambda: first.windows() == second.windows(), "the same windows")
    assert ids_of(consumer) == list(range(1, writer.newest + 1))


@pytest.mark.mariadb
def test_tables_that_were_altered_while_nobody_captured_are_read_as_they_were(
    database: Database, tmp_path: Path
) -> None:
    pair = Pair(tmp_path, mysql_source(database, tmp_path), f"file:{tmp_path / 'leases'}")
    with paired(pair):
        active = pair.wait_for_active()
        standby = pair.other(active)
        database.run(
            "ALTER TABLE orders ADD COLUMN early INT DEFAULT 5",
            "INSERT INTO orders (id, note) VALUES (1, 'before')",
        )
        standby.wait_for_scn(active.max_scn())
        wait_until(lambda: b"before" in b"".join(standby.windows().values()), "row 1", standby.tell)
        active.child.kill()
        database.run(
            "INSERT INTO orders (id, note) VALUES (2, 'in between')",
            "ALTER TABLE orders DROP COLUMN price, ADD COLUMN late INT FIRST",
            "INSERT INTO orders (id, note, late) VALUES (3, 'altered', 7)",
            "ALTER TABLE people ADD COLUMN age INT",
            "INSERT INTO people VALUES ('a', 'de', NULL, 4)",
        )
        pair.wait_for_active(standby)
        consumer = Remembering()
        with consuming([standby.url], sources_of(database), consumer, start="earliest"):
            wait_until(lambda: len(consumer.events) == 4, "all rows", standby.tell)
        assert standby.get("/health").status == 200
        # It has been read with other definitions, too: a relay that begins now reads the same.
        active.serve()
        wait_until(lambda: role(active).get("owner") == standby.url, "to stand by", active.tell)
        wait_until(lambda: active.windows() == standby.windows(), "the same", active.tell)
    rows = [dict(event.row) for event in consumer.events]
    assert [(row.get("note"), row.get("price"), row.get("early")) for row in rows[:2]] == [
        ("before", None, 5),
        ("in between", None, 5),
    ]
    assert rows[2]["late"] == 7
    assert rows[3] == {"name": "a", "land": "de", "born": None, "age": 4}


def test_an_order_to_the_relay_that_captures_hands_nothing_over(tmp_path: Path) -> None:
    shop = Shop(tmp_path / "shop.db")
    pair = Pair(tmp_path, shop.settings(), f"file:{tmp_path / 'leases'}")
    with paired(pair):
        active = pair.wait_for_active()
        standby = pair.other(active)
        shop.insert(*range(10))
        wait_until(lambda: rows_of(active) == 10, "the first rows", active.tell)
        scn, term = active.max_scn(), role(active)["term"]
        shop.insert(*range(10, 20))
        wait_until(lambda: rows_of(standby) == 20, "all rows", standby.tell)
        uri = shop.settings()["uri"]
        refused = order(standby, "/physicalSources/shop/switch", {"uri": uri})
        assert refused.status == 409
        assert f"Relay {active.url} captures" in refused.body.decode()
        assert order(active, "/physicalSources/shop/restart", {"scn": str(scn)}).status == 200
        assert is_active(active)
        assert role(active)["term"] == term
        wait_until(lambda: rows_of(active) == 10, "the rows after it", active.tell)
        shop.insert(20)
        wait_until(lambda: rows_of(standby) == 21, "the next row", standby.tell)
        wait_until(lambda: rows_of(active) == 11, "the next row", active.tell)
    shop.close()


def test_a_relay_that_begins_when_the_other_one_is_dead_goes_on_where_that_had_saved(
    tmp_path: Path,
) -> None:
    shop = Shop(tmp_path / "shop.db")
    pair = Pair(tmp_path, shop.settings(start="latest"), f"file:{tmp_path / 'leases'}")
    first, second = pair.relays
    consumer = Remembering()
    with running(first), running(second):
        first.start()
        # A client of the first one, which has all that it has read, is at home at the second, too.
        with consuming([first.url, second.url], ["shop.orders"], consumer):
            shop.insert(*range(10))
            wait_until(lambda: len(consumer.events) == 10, "the first rows", first.tell)
            first.child.stop()  # which saves MaxSCN
            second.start()
            pair.wait_for_active(second)
            shop.insert(*range(10, 20))
            wait_until(lambda: len(consumer.events) == 20, "the rows since then", second.tell)
            second.child.kill()
            second.start()
            pair.wait_for_active(second)
            shop.insert(20)
            wait_until(lambda: len(consumer.events) == 21, "the last row", second.tell)
        assert rows_of(second) == 11
    assert not consumer.rollbacks
    assert [event.wire_key for event in consumer.events] == list(range(21))
    shop.close()


def test_an_sqlite_source_is_taken_over_when_the_active_relay_is_paused_or_ends(
    tmp_path: Path,
) -> None:
    shop = Shop(tmp_path / "shop.db")
    pair = Pair(tmp_path, shop.settings(), f"file:{tmp_path / 'leases'}")
    with paired(pair):
        first = pair.wait_for_active()
        second = pair.other(first)
        shop.insert(*range(10))
        second.wait_for_scn(first.max_scn())
        # Whoever pauses capture at a relay, or ends it, hands it over at once.
        assert first.post("/api/v1/physicalSources/shop/pause").status == 200
        pair.wait_for_active(second)
        shop.insert(*range(10, 20))
        assert first.post("/api/v1/physicalSources/shop/resume").status == 200
        wait_until(lambda: role(first).get("owner") == second.url, "to stand by", first.tell)
        first.wait_for_scn(second.max_scn())
        assert f"stands by, and reads from {second.url}" in listed(first)
        assert "captures under term 2" in listed(second)
        second.child.stop()
        pair.wait_for_active(first)
        shop.insert(*range(20, 30))
        wait_until(lambda: rows_of(first) == 30, "all rows", first.tell)
    shop.close()


def listed(relay: RunningRelay) -> str:
    """Return what the command line says of a relay's physical sources."""
    return CliRunner().invoke(main, ["source", "list", "--relay", relay.url]).output


def order(relay: RunningRelay, path: str, body: dict[str, str]) -> Any:
    """Give a relay an order; return its answer."""
    here: Any = relay  # asked by its URL alone
    return post(here, path, body)


def rows_of(relay: RunningRelay) -> int:
    """Return how many rows a relay serves."""
    return sum(event.src_id > 0 for data in relay.windows().values() for event in walk(data))
