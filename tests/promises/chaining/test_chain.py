"""A chain of relays serves what the first one serves, byte for byte, over one connection."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from databus.schemas.event.event import DDL_SRC_ID
from databus.schemas.event.v2 import peek
from tests.mariadb_server import Database
from tests.promises.chaining.chain import chain, digest_of, insert, stream_of, wait_for_equal
from tests.promises.running import (
    Remembering,
    RunningRelay,
    Shop,
    consuming,
    mysql_source,
    sources_of,
    stream_requests,
    wait_until,
)

EPOCHS = "/api/v1/physicalSources/shop/epochs"


def dump_connections(database: Database) -> int:
    """Return how many dump threads serve the relays of a test."""
    return sum("Binlog Dump" in str(row) for row in database.run("SHOW FULL PROCESSLIST"))


def schemas(relay: RunningRelay) -> Any:
    return relay.get("/api/v1/schemas").json()


def log_holding(relay: RunningRelay) -> Any:
    return relay.get("/health").json()["physicalSources"]["shop"]["log"]["holding"]


def epochs(relay: RunningRelay) -> Any:
    return relay.get(EPOCHS).json()["epochs"]


def write(database: Database, begin: int, count: int) -> None:
    for number in range(begin, begin + count):
        database.run(
            f"INSERT INTO orders VALUES ({number}, 'n{number}', {number}.5)",
            f"UPDATE orders SET note = 'u{number}' WHERE id = {number - 1}",
        )


@pytest.mark.mariadb
def test_three_relays_serve_the_same_bytes_schemas_and_epochs_over_one_dump(
    database: Database, tmp_path: Path
) -> None:
    first = RunningRelay(tmp_path / "relay-1", mysql_source(database, tmp_path))
    before = dump_connections(database)
    write(database, 1, 50)
    with chain(first, tmp_path) as relays:
        write(database, 1000, 50)
        database.run(
            "ALTER TABLE orders ADD COLUMN land CHAR(2)",
            "INSERT INTO orders VALUES (5000, 'after', 1.5, 'de')",
            "TRUNCATE TABLE people",
            "BEGIN",
            "INSERT INTO people VALUES ('a', 'de', '1970-01-01'), ('b', 'fr', NULL)",
            "DELETE FROM orders WHERE id = 1000",
            "COMMIT",
        )
        wait_until(lambda: b"after" in stream_of(first), "the end", first.tell)
        wait_for_equal(*relays)
        assert dump_connections(database) == before + 1
        for relay in relays[1:]:
            wait_until(lambda r=relay: log_holding(r) == "held", "a probe", relay.tell)  # type: ignore[misc]
            assert schemas(relay) == schemas(first)
            assert epochs(relay) == epochs(first) != []
            assert relay.get("/sources").body == first.get("/sources").body
            assert relay.get("/register").body == first.get("/register").body
        body, at, kinds = stream_of(relays[-1]), 0, set()
        while at < len(body):
            event = peek(body, at)
            kinds.add(event.src_id)
            at += event.length
        assert DDL_SRC_ID in kinds


@pytest.mark.mariadb
def test_a_consumer_moves_between_levels_while_the_middle_is_killed(
    database: Database, tmp_path: Path
) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    draw = random.Random(seed)
    first = RunningRelay(tmp_path / "relay-1", mysql_source(database, tmp_path))
    consumer = Remembering()
    with chain(first, tmp_path) as relays:
        _, middle, last = relays
        urls = [last.url, middle.url]
        writer = threading.Thread(target=write, args=(database, 1, 400))
        with consuming(urls, sources_of(database)[:1], consumer):
            writer.start()
            for _ in range(4):
                time.sleep(draw.uniform(0.05, 0.3))
                middle.child.kill()
                time.sleep(draw.uniform(0, 0.2))
                middle.serve()
            writer.join()
            wait_for_equal(*relays)
            wait_until(lambda: 400 in ids_of(consumer), "the last row", last.tell)
    scns = consumer.scns
    assert scns == sorted(set(scns))
    assert ids_of(consumer) == list(range(1, 401))


def ids_of(consumer: Remembering) -> list[int]:
    """Return the ids of the rows that were inserted, in the order in which they came."""
    return [event.row["id"] for event in consumer.events if event.op == "insert"]


def test_a_window_larger_than_an_answer_and_than_the_ring_comes_in_pieces(tmp_path: Path) -> None:
    shop = Shop(tmp_path / "shop.db")
    log = {"segment_bytes": "1MiB"}
    first = RunningRelay(
        tmp_path / "relay-1", shop.settings(ring_bytes="64MiB"), http={"max_response_bytes": "1MiB"}
    )
    with chain(first, tmp_path, ring_bytes="1MiB", log=log) as relays:
        shop.insert(*range(100, 6000), note="y" * 1000, each=5900)
        shop.insert(*range(7000, 7100), note="z" * 200)
        shop.insert(8000, note="e" * 500_000)
        wait_until(lambda: relays[-1].max_scn() == first.max_scn() > 0, "all", relays[-1].tell)
        wait_for_equal(*relays)
        digest = digest_of(first)
        # What was read in pieces is read again after a restart, and served the same.
        relays[1].child.kill()
        relays[1].start()
        relays[2].child.kill()
        relays[2].start()
        shop.insert(9000)
        wait_for_equal(*relays)
        assert digest_of(first) != digest
    shop.close()


def test_one_answer_brings_many_windows_as_they_come(tmp_path: Path) -> None:
    shop = Shop(tmp_path / "shop.db")
    first = RunningRelay(tmp_path / "relay-1", shop.settings())
    with chain(first, tmp_path, length=2) as (first, second):
        before = stream_requests(first)
        for number in range(150):
            newest = second.max_scn()
            shop.insert(number)
            wait_until(lambda n=newest: second.max_scn() > n, "the window", second.tell)  # type: ignore[misc]
        assert stream_requests(first) - before < 75
        wait_for_equal(first, second)
    shop.close()


def test_a_chain_that_is_compressed_serves_the_same_bytes(tmp_path: Path) -> None:
    shop = Shop(tmp_path / "shop.db")
    first = RunningRelay(tmp_path / "relay-1", shop.settings(), http={"max_response_bytes": "1MiB"})
    with chain(first, tmp_path, upstream_compression="zstd") as relays:
        for number in range(50):
            shop.insert(number)
        shop.insert(*range(100, 1000), each=20, note="z" * 200)
        shop.insert(*range(2000, 5000), note="y" * 1000, each=3000)  # in pieces
        shop.insert(6000)
        wait_until(lambda: relays[-1].max_scn() == first.max_scn() > 0, "all", relays[-1].tell)
        wait_for_equal(*relays)
        relays[1].child.kill()
        shop.insert(*range(7000, 7100))
        relays[1].start()
        wait_for_equal(*relays)
    shop.close()


def test_an_upstream_that_is_frozen_is_named_and_read_on_when_it_wakes(tmp_path: Path) -> None:
    shop = Shop(tmp_path / "shop.db")
    first = RunningRelay(tmp_path / "relay-1", shop.settings())
    with chain(first, tmp_path) as relays:
        insert(shop, first, *range(20))
        wait_for_equal(*relays)
        os.kill(first.child.pid, signal.SIGSTOP)
        try:
            relays[1].wait_for_problem("does not answer")
            # What it has is served meanwhile, and the next one knows why nothing comes.
            assert relays[1].stream().body
            relays[2].wait_for_problem("there, capture is unreachable")
        finally:
            os.kill(first.child.pid, signal.SIGCONT)
        shop.insert(*range(100, 120))
        wait_for_equal(*relays)
        for relay in relays:
            wait_until(lambda r=relay: r.get("/health").status == 200, "health", relay.tell)  # type: ignore[misc]
    shop.close()
