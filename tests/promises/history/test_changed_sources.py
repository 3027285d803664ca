"""Who stopped inside a large transaction loses nothing of it when the sources change meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from databus.schemas.checkpoint import Checkpoint
from databus.schemas.stream.stream_reader import walk
from tests.mariadb_server import Database
from tests.promises.history.databases import own_database
from tests.promises.running import (
    Answer,
    RunningRelay,
    mysql_source,
    running,
    sources_of,
    wait_until,
)

pytest_plugins = ["tests.mysql"]

RING_BYTES = 256 << 10
ROWS = 400
Place = tuple[int, int]


@pytest.fixture(params=["mariadb", pytest.param("mysql", marks=pytest.mark.mysql)])
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    """A database on a server of its own, MariaDB or MySQL."""
    options = {"binlog-row-metadata": "FULL"}
    with own_database(request, options, is_mysql=request.param == "mysql") as database:
        yield database


def ask(relay: RunningRelay, source: str, place: Place) -> Answer:
    """Ask for a part of what comes after a place."""
    at = replace(Checkpoint.at(place[0]), window_offset=place[1])
    return relay.stream(at, sources=source, size=8192, wait=10_000)


def place_of(answer: Answer) -> Place:
    """Return the place at which to go on."""
    assert answer.status == 200, answer.body
    scn, offset = map(int, answer.headers["x-databus-resume"].split(","))
    return scn, offset


def keys_of(answer: Answer) -> list[int]:
    """Return the keys of the rows in an answer."""
    return [int(event.key) for event in walk(answer.body) if not event.is_control]


def test_a_place_inside_a_transaction_is_refused_after_the_sources_changed_and_nothing_is_skipped(
    database: Database, tmp_path: Path
) -> None:
    orders, people = sources_of(database)
    settings = mysql_source(database, tmp_path, ring_bytes=RING_BYTES, sources=[people, orders])
    with running(RunningRelay(tmp_path, settings)) as relay:
        relay.start()
        database.run("INSERT INTO orders VALUES (-1, 'first', 0)")
        wait_until(lambda: relay.windows(), "the first row", relay.tell)
        begin = max(relay.windows())
        named = ", ".join(f"('{n}', 'de', NULL)" for n in range(ROWS))
        numbered = ", ".join(f"({n}, '{'x' * 100}', 0)" for n in range(ROWS))
        database.run(
            "BEGIN",
            f"INSERT INTO people VALUES {named}",
            f"INSERT INTO orders VALUES {numbered}",
            "COMMIT",
        )
        wait_until(lambda: relay.max_scn() > begin, "the transaction", relay.tell)
        answer = ask(relay, orders, (begin, -1))
        place, before = place_of(answer), keys_of(answer)
        assert 0 < len(before) < ROWS
        relay.child.stop()
        relay.change(sources=[orders])
        relay.start()
        for n in range(ROWS, ROWS * 8):
            database.run(f"INSERT INTO orders VALUES ({n}, '{'x' * 100}', 0)")
        wait_until(
            lambda: relay.get("/bufferInfo/inbound/shop/0").json()["minScn"] > place[0],
            "the transaction to be out of the ring",
            relay.tell,
        )
        refused = ask(relay, orders, place)
        assert (refused.status, b"read it from its beginning" in refused.body) == (400, True)
        place, found = (begin, -1), list[int]()
        while len(found) < ROWS * 2:
            answer = ask(relay, orders, place)
            place = place_of(answer)
            found += keys_of(answer)
        assert found == list(range(len(found)))
