"""Counters equal the rows that were written, and a lag is the one that was caused. T66."""

from __future__ import annotations

import json
import re
import sqlite3
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from databus.client import DatabusClient, DataEvent
from databus.demo.processes import free_port, wait_until
from tests import PATIENCE_S
from tests.standalone.nodes import Node, make_shop, sqlite_source

TRANSACTIONS = 300


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """Run a relay of an SQLite shop, which captures."""
    made = Node(tmp_path, "relay", "run", "-c", tmp_path / "relay.toml")
    made.write(sqlite_source(make_shop(tmp_path, rows=0)))
    made.child.start()
    try:
        made.wait_for(lambda: "listening on" in made.said)
        made.wait_for(lambda: made.health(made.url)[0] == 200)
        yield made
    finally:
        made.child.stop(20)


def figure(url: str, name: str) -> float:
    """Return a figure of Prometheus' page, which has one sample of that name."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=PATIENCE_S) as answer:
        (found,) = re.findall(rf"^{name}(?:{{.*}})? (\S+)$", answer.read().decode(), re.M)
    return float(found)


def client_at(node: Node) -> dict[str, Any]:
    """Return the only client's position, as the relay's API has it."""
    with urllib.request.urlopen(f"{node.url}/api/v1/clients", timeout=PATIENCE_S) as answer:
        (client,) = json.loads(answer.read())["clients"]
    (position,) = client["positions"]
    found: dict[str, Any] = position
    return found


def test_counters_of_relay_and_client_equal_the_rows_that_were_written(node: Node) -> None:
    port, came = free_port(), [0]
    client = DatabusClient(node.url, http={"port": port})

    @client.on("shop.orders")
    def count(_event: DataEvent) -> None:
        came[0] += 1

    written = 0
    with client, closing(sqlite3.connect(node.folder / "shop.db", timeout=PATIENCE_S)) as shop:
        for number in range(TRANSACTIONS):
            size = 1 + number % 7
            rows = [(written + one, "new") for one in range(size)]
            with shop:
                shop.executemany("INSERT INTO orders VALUES (?, ?)", rows)
            written += size
        wait_until(lambda: came[0] >= written, PATIENCE_S, "every row")
        counted = [
            figure(node.url, "databus_relay_events_total"),
            figure(f"http://127.0.0.1:{port}", "databus_client_events_total"),
        ]
    assert came == [written]
    assert counted == [written, written]


def test_a_consumer_that_is_held_up_is_as_far_behind_as_it_was_held_up(node: Node) -> None:
    held, is_held = threading.Event(), threading.Event()
    client = DatabusClient(node.url, report_every_s=0.2, http={"port": free_port()})

    @client.on("shop.orders")
    def take(event: DataEvent) -> None:
        if event.row["id"] == 2:
            is_held.set()
            held.wait(PATIENCE_S)

    def order(number: int) -> None:
        with closing(sqlite3.connect(node.folder / "shop.db", timeout=PATIENCE_S)) as shop, shop:
            shop.execute(f"INSERT INTO orders VALUES ({number}, 'new')")

    with client:
        order(1)
        before_s = time.time()
        order(2)
        after_s = time.time()
        assert is_held.wait(PATIENCE_S)
        time.sleep(1.5)
        least_s = time.time() - after_s
        order(3)
        most_s = time.time() - before_s
        node.wait_for(lambda: (client_at(node)["behindS"] or 0) > 1)
        assert least_s - 1 < client_at(node)["behindS"] < most_s + 1
        held.set()
        node.wait_for(lambda: client_at(node)["behindS"] == 0)
