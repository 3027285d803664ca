"""Statements through chains of relays, the relay log, an archive, and to clients of version 1."""

from __future__ import annotations

from pathlib import Path

import pytest

from databus.schemas.event.control import statement_of
from databus.schemas.event.v2 import decode
from databus.schemas.stream.stream_reader import StreamReader, Window
from tests.mariadb_server import Database
from tests.promises.chaining.chain import chain, stream_of, wait_for_equal
from tests.promises.running import RunningRelay, cut_windows, running, wait_until
from tests.promises.statements.unlogged import ROW, STATEMENT, delivering, session

pytestmark = pytest.mark.mariadb

TEXTS = [
    "DELETE FROM orders WHERE id = 1",
    f"UPDATE orders SET note = 'ü' WHERE note = '{'x' * 300_000}'",
    "REPLACE INTO people SELECT 'é', 'AT', NULL",
]


def write(shop: Database, first: int) -> None:
    """Write rows and statements."""
    with session(shop.server, shop.name) as writer:
        for number, text in enumerate(TEXTS, first):
            writer.run(ROW, f"INSERT INTO orders VALUES ({number}, 'n', 1)", STATEMENT, text)
        writer.run(ROW, f"INSERT INTO orders VALUES ({first + 50}, 'last', 1)")


def statements_in(body: bytes) -> list[str]:
    """Return the texts of the statements without rows in a stream."""
    found, at = [], 0
    while at < len(body):
        event, at = decode(body, at)
        if event.is_dml:
            found.append(statement_of(event).statement)
    return found


def wait_for_statements(relay: RunningRelay, count: int) -> bytes:
    """Wait until a relay serves so many statements; return all that it serves."""
    wait_until(lambda: len(statements_in(stream_of(relay, 4 << 20))) >= count, "it", relay.tell)
    return stream_of(relay, 4 << 20)


def test_a_chain_passes_them_on_byte_for_byte(database: Database, tmp_path: Path) -> None:
    first = delivering(database, tmp_path, ring_bytes=8 << 20)
    with chain(first, tmp_path, ring_bytes=8 << 20) as relays:
        write(database, 1)
        wait_for_statements(first, len(TEXTS))
        wait_until(
            lambda: relays[-1].max_scn() == first.max_scn(), "the newest window", relays[-1].tell
        )
        assert statements_in(stream_of(relays[-1], 4 << 20)) == TEXTS
        wait_for_equal(*relays)
        for relay in relays:
            counts = relay.get("/health").json()["physicalSources"]["shop"]["unloggedStatements"]
            assert {one["source"]: one["windows"] for one in counts} == {
                f"{database.name}.orders": 2,
                f"{database.name}.people": 1,
            }
        relays[1].child.kill()
        write(database, 101)
        relays[1].start()
        wait_for_statements(relays[-1], 2 * len(TEXTS))
        wait_for_equal(*relays)


def log_minimum(relay: RunningRelay, *of: str) -> int:
    """Return the oldest SCN in the relay log, or in its archive."""
    status = relay.get("/health").json()["physicalSources"]["shop"]["relayLog"]
    for one in of:
        status = status[one]
    return int(status["minScn"] if status["minScn"] is not None else -1)


def test_the_relay_log_its_archive_and_a_replay_of_the_binlog_have_the_same_bytes(
    database: Database, tmp_path: Path
) -> None:
    log = {
        **{"segment_bytes": 1 << 20, "sync_ms": 5, "compression": "none"},
        **{"archive": (tmp_path / "archive").as_uri(), "archive_after_s": 0},
    }
    relay = delivering(database, tmp_path, ring_bytes=1 << 20, log=log)
    with running(relay):
        relay.start()
        for first in range(1, 1200, 100):
            write(database, first)
        body = wait_for_statements(relay, 12 * len(TEXTS))
        assert statements_in(body) == TEXTS * 12
        oldest = log_minimum(relay)
        wait_until(lambda: log_minimum(relay, "archive") == oldest, "the archive", relay.tell)
        relay.child.kill()
        relay.change(log=log | {"retention_bytes": 2 << 20})
        relay.start()
        wait_until(lambda: log_minimum(relay) > oldest, "fewer segments here", relay.tell)
        assert stream_of(relay, 4 << 20) == body
    folder = tmp_path / "again"
    folder.mkdir()
    with running(delivering(database, folder, ring_bytes=32 << 20)) as again:
        again.start()
        replayed = wait_for_statements(again, 12 * len(TEXTS))
    # Which empty windows there are depends on when a relay has read the log.
    assert cut_windows(replayed) == cut_windows(body)


@pytest.mark.parametrize("maxev", [1, 2])
def test_who_does_not_ask_for_statements_gets_the_rows_and_whole_windows(
    database: Database, tmp_path: Path, maxev: int
) -> None:
    relay = delivering(database, tmp_path, ring_bytes=8 << 20)
    with running(relay):
        relay.start()
        write(database, 1)
        wait_for_statements(relay, len(TEXTS))
        body = relay.stream(maxev=maxev).body
        found = StreamReader(1 << 26).receive(body)
    windows = [one.events for one in found if isinstance(one, Window)]
    assert len(windows) == len(found)  # no control event that such a client does not know
    assert [event.key for window in windows for event in window] == [1, 2, 3, 51]
