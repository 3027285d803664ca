"""A session that reads on: whole windows, parts of a large one, what comes later, another rung."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from databus.daemon.fair_queue import FairQueue
from databus.relay.monitoring.clients import Caller
from databus.relay.ring.selection import Selection
from databus.relay.serving.reading.feed import Feed
from databus.relay.sources.source import Transaction
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import ScnNotFoundError
from databus.schemas.event.v2 import peek
from tests import PATIENCE_S
from tests.relay.fakes import ServedRelay, insert, transaction

CALLER = Caller("session", "127.0.0.1", "a stock client")
QUEUE = FairQueue()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedRelay]:
    relay = ServedRelay(tmp_path)
    yield relay
    relay.close()


def make_feed(served: ServedRelay, checkpoint: Checkpoint | None = None) -> Feed:
    selection = Selection("shop", checkpoint or Checkpoint.flexible(), wants_ddl=True)
    return Feed(served.relay, QUEUE, CALLER, selection, "")


def rows(scn: int, count: int, text: str = "x") -> Transaction:
    return transaction(scn, *(insert(scn * 1000 + i, text) for i in range(count)))


def read(
    served: ServedRelay, feed: Feed, size_bytes: int = 1 << 20, wait_s: float = 0.0
) -> list[int]:
    """Return the SCNs of the events of the next answer, in their order."""
    body, found, at = served.server.run(feed.read(size_bytes, 0.0)).body, [], 0
    while at < len(body):
        event = peek(body, at)
        found.append(event.scn)
        at += event.length
    return found


def test_it_goes_on_where_it_was(served: ServedRelay) -> None:
    feed = make_feed(served)
    served.put(rows(1, 1), rows(2, 2))
    assert read(served, feed) == [1, 1, 2, 2, 2]
    assert read(served, feed) == []
    served.put(rows(3, 1))
    assert read(served, feed) == [3, 3]
    assert feed.selection.checkpoint == Checkpoint.at(3)


def test_a_large_window_comes_in_parts_and_a_large_event_alone(served: ServedRelay) -> None:
    feed = make_feed(served)
    served.put(rows(1, 3, "y" * 2000))
    parts: list[list[int]] = []
    while not parts or feed.selection.checkpoint.window_offset != -1:
        parts.append(read(served, feed, size_bytes=1000))
    assert [len(part) for part in parts[:3]] == [1, 1, 1]
    assert sum(len(part) for part in parts) == 4
    assert feed.selection.checkpoint == Checkpoint.at(1)


def test_it_waits_for_windows_to_come_until_it_is_disconnected(served: ServedRelay) -> None:
    feed = make_feed(served)
    coming = served.server.begin(feed.read(1 << 20, 60.0))
    served.put(rows(1, 1))
    assert coming.result(PATIENCE_S).body
    held = served.server.begin(feed.read(1 << 20, 60.0))
    served.server.call(feed.disconnect)
    assert held.result(PATIENCE_S).body == b""


def test_a_place_that_no_rung_holds_is_an_error(served: ServedRelay) -> None:
    served.put(rows(5, 1))
    feed = make_feed(served, Checkpoint.at(1))
    with pytest.raises(ScnNotFoundError):
        read(served, feed)
    (client,) = [one for one in served.relay.monitor.clients if one.caller.id == "session"]
    assert client.last_error
