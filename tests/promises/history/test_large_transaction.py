"""A transaction larger than the ring reaches consumers whole and once, though relays are killed."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from databus.schemas.checkpoint import Checkpoint
from databus.schemas.event.v2 import peek
from tests import PATIENCE_S
from tests.mariadb_server import Database
from tests.promises.history.test_relay_log import log_status
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
from tests.relay.ring.model import split_events

SEED = 20261125
RING_BYTES = 1 << 20
ROWS = 60_000  # some 20 MiB
LITTLE = 5


def write(database: Database) -> None:
    """Write the huge transaction between little ones."""
    insert = (
        "INSERT INTO orders SELECT seq, RPAD(CONCAT('row ', seq), 150 + seq MOD 50, 'x'), seq / 4"
        " FROM seq_{}_to_{}"
    )
    first, last = LITTLE + 1, LITTLE + ROWS
    database.run(insert.format(1, LITTLE))
    step = ROWS // 4
    database.run("BEGIN", *(insert.format(n, n + step - 1) for n in range(first, last, step)))
    database.run("COMMIT")
    database.run(insert.format(last + 1, last + LITTLE))


def has_reached(relay: RunningRelay, size_bytes: int, newest: int) -> bool:
    """Return whether so much of the large transaction has come, or all of it is there."""
    has_come = int(log_status(relay)["largeTransactionBytes"]) >= size_bytes
    return has_come or relay.max_scn() >= newest


def kill_often(relay: RunningRelay, log: Path, rand: random.Random, newest: int) -> int:
    """Kill a relay at moments of the transaction, and start it again; return how often."""
    kills = 0
    for _ in range(4):
        is_there = partial(has_reached, relay, rand.randrange(2, 15) * RING_BYTES, newest)
        wait_until(is_there, "the large transaction", relay.tell, PATIENCE_S)
        if relay.max_scn() >= newest:
            return kills
        relay.child.kill()
        assert [path.name for path in log.iterdir() if ".segment" not in path.name] == [
            "relay-log.lock"
        ]
        kills += 1
        relay.serve()
    # And while it is written into the log.
    grown = log_bytes(log) + rand.randrange(1, 1 << 20)
    wait_until(
        lambda: log_bytes(log) >= grown or relay.max_scn() >= newest,
        "the log to grow",
        relay.tell,
        PATIENCE_S,
    )
    relay.child.kill()
    relay.serve()
    return kills + 1


def log_bytes(log: Path) -> int:
    """Return the size of a log's segments."""
    return sum(path.stat().st_size for path in log.glob("*.segment"))


def has_grown(relay: RunningRelay, log: Path, size_bytes: int, newest: int) -> bool:
    """Return whether a log has a size, or the ring has a window."""
    return log_bytes(log) >= size_bytes or relay.max_scn() >= newest


def settings_of(database: Database, folder: Path, ring_bytes: int) -> dict[str, Any]:
    """Return the settings of a source with a small ring and a log."""
    log = {"dir": str(folder / "log"), "sync_ms": 5, "segment_bytes": 1 << 20}
    return mysql_source(database, folder, ring_bytes=ring_bytes, log=log)


@pytest.mark.mariadb
def test_a_transaction_twenty_times_the_ring_comes_whole_and_once_though_relays_are_killed(
    database: Database, tmp_path: Path
) -> None:
    print("seed", SEED)
    write(database)
    rand = random.Random(SEED)
    relay = RunningRelay(tmp_path, settings_of(database, tmp_path, RING_BYTES))
    newest = newest_scn(database)
    with running(relay.serve()):
        kills = kill_often(relay, tmp_path / "log", rand, newest)
        assert kills > 2
        wait_until(lambda: relay.max_scn() >= newest, "all", relay.tell, PATIENCE_S)
        consumer = Remembering()
        with consuming([relay.url], sources_of(database), consumer):
            wait_until(lambda: consumer.scn >= newest, "the consumer", relay.tell, PATIENCE_S)
        check_rows(consumer)
        body = read_all(relay)
        assert log_status(relay)["beganAnew"] == ""
        assert relay.get("/health").status == 200
        # And after a restart, when log and ring are compared.
        relay.child.stop()
        relay.start()
        assert read_all(relay) == body
        database.run("INSERT INTO orders VALUES (0, 'later', 1)")
        relay.wait_for_scn(newest_scn(database))
        assert read_all(relay)[: len(body)] == body
        assert log_status(relay)["beganAnew"] == ""


def test_a_transaction_that_comes_in_one_piece_comes_once_though_relays_are_killed(
    shop: Shop, tmp_path: Path
) -> None:
    print("seed", SEED)
    rand, log, rows = random.Random(SEED), tmp_path / "log", 8000
    settings = {"dir": str(log), "sync_ms": 5, "segment_bytes": 64 << 10}
    relay = RunningRelay(tmp_path, shop.settings(ring_bytes=64 << 10, log=settings))
    with running(relay.start()):
        relay.child.kill()
        shop.insert(*range(1, 6))
        shop.insert(*range(6, rows), note="a note " * 20, each=rows)
        shop.insert(rows)
        for _ in range(4):
            grown = log_bytes(log) + rand.randrange(1, 20_000)
            relay.serve()
            is_there = partial(has_grown, relay, log, grown, rows)
            wait_until(is_there, "the log", relay.tell)
            relay.child.kill()
        relay.serve()
        consumer = Remembering()
        with consuming([relay.url], ["shop.orders"], consumer):
            wait_until(lambda: rows in consumer.rows("shop.orders"), "the last row", relay.tell)
        assert [event.row["id"] for event in consumer.events] == list(range(1, rows + 1))
        sizes = [len(events) for _, events in consumer.windows if events]
        assert max(sizes) >= rows - 6  # SQLite keeps no bounds of transactions
        assert log_status(relay)["beganAnew"] == ""


def newest_scn(database: Database) -> int:
    """Return the SCN of the newest transaction."""
    ((file, offset, *_),) = database.run("SHOW MASTER STATUS")
    return int(file.rpartition(".")[2]) << 32 | int(offset)


def check_rows(consumer: Remembering) -> None:
    """Check every row of all windows, and where they are."""
    orders = [event for event in consumer.events if event.source.endswith(".orders")]
    rows = [(event.row["id"], event.row["note"], event.is_delete) for event in orders]
    assert rows == [
        (n, f"row {n}".ljust(150 + n % 50, "x"), False) for n in range(1, ROWS + 2 * LITTLE + 1)
    ]
    sizes = [len(events) for _, events in consumer.windows if events]
    assert sizes == [LITTLE, ROWS, LITTLE]


def read_all(relay: RunningRelay) -> list[bytes]:
    """Read everything in small answers, each continued where it says; return the row events."""
    events: list[bytes] = []
    checkpoint = Checkpoint.flexible()
    while body := (answer := relay.stream(checkpoint, size=300_000)).body:
        events += split_events(body)
        scn, offset = map(int, answer.headers["x-databus-resume"].split(","))
        checkpoint = replace(Checkpoint.at(scn), window_offset=offset)
    return [event for event in events if not peek(event).is_eop]
