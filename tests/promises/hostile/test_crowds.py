"""Connections by the hundred, from nobody in particular: capture goes on, and so does the end."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from databus.schemas.checkpoint import Checkpoint
from tests import PATIENCE_S
from tests.promises.running import (
    Answer,
    Remembering,
    RunningRelay,
    Shop,
    consuming,
    running,
    wait_until,
)

ENDS_WITHIN_S = 25.0  # those who are held ask for more
UNREAD = 250
SILENCE_S = 3.0


def crowd(relay: RunningRelay, size: int, each: int = 250) -> list[socket.socket]:
    """Open connections from one address of loopback after another; those refused are left out."""
    found = []
    for number in range(size):
        sock = socket.socket()
        sock.settimeout(PATIENCE_S)
        sock.bind((f"127.0.0.{2 + number // each}", 0))
        with contextlib.suppress(OSError):
            sock.connect(("127.0.0.1", relay.port))
        found.append(sock)
    return found


@contextlib.contextmanager
def held(sockets: list[socket.socket]) -> Iterator[None]:
    try:
        yield
    finally:
        for sock in sockets:
            sock.close()


def figures(answer: Answer) -> dict[str, float]:
    lines = [line.rsplit(" ", 1) for line in answer.body.decode().splitlines() if line[0] != "#"]
    return {name: float(value) for name, value in lines}


@pytest.mark.parametrize("descriptors", [256, 1024])
def test_more_connections_than_descriptors_stop_neither_capture_nor_who_reads(
    shop: Shop, tmp_path: Path, descriptors: int
) -> None:
    relay = RunningRelay(
        tmp_path,
        shop.settings(),
        prefix=["bash", "-c", f'ulimit -n {descriptors}; exec "$@"', "-"],
        http={"request_s": SILENCE_S},
    )
    seen = Remembering()
    with running(relay.start()), consuming([relay.url], ["shop.orders"], seen, wait_ms=100):
        process = psutil.Process(relay.child.pid)
        shop.insert(1)
        wait_until(lambda: len(seen.events) == 1, "the first row")
        with held(crowd(relay, descriptors)):
            for number in range(2, 12):
                shop.insert(number)
                with held(crowd(relay, 20)):
                    assert process.num_fds() < descriptors - 20, "some are kept for its own work"
            wait_until(lambda: len(seen.events) == 11, "the rows in between")
            # Those that say nothing make room.
            assert relay.get("/health").status == 200
        assert [event.row["id"] for event in seen.events] == list(range(1, 12))
        told = figures(relay.get("/metrics"))
        assert told["databus_http_max_connections"] < descriptors - 40
        away = {n: v for n, v in told.items() if n.startswith("databus_http_turned_away_total")}
        assert sum(away.values()) > 100
        assert away['databus_http_turned_away_total{limit="descriptors"}'] == 0
        assert f"not http.max_connections = {1000}" in relay.child.log_tail()
        assert "Traceback" not in relay.child.log_tail()


@pytest.mark.parametrize("more", ["", "Accept-Encoding: gzip\r\n"], ids=["plain", "gzip"])
def test_a_relay_ends_within_seconds_whoever_does_not_read_what_he_asked_for(
    shop: Shop, tmp_path: Path, more: str
) -> None:
    relay = RunningRelay(tmp_path, shop.settings())
    with running(relay.start()):
        shop.insert(*range(1, 4001), note="x" * 1000, each=100)
        wait_until(
            lambda: relay.get("/containerStats/inbound/events/total").json()["events"] >= 4000,
            "the rows",
        )
        newest = Checkpoint.at(relay.max_scn()).to_json()
        target = "/stream?sources=shop.orders&size=16000000"
        asked = [target, f"{target}&output=json", f"{target}&wait=30000&checkPoint={newest}"]
        sockets = crowd(relay, UNREAD)
        with held(sockets):
            for number, sock in enumerate(sockets):
                path = asked[number % len(asked)]
                sock.sendall(f"GET {path} HTTP/1.1\r\nHost: a\r\n{more}\r\n".encode())
            time.sleep(0.3)  # some have begun, some wait for their turn
            began = time.monotonic()
            os.kill(relay.child.pid, signal.SIGTERM)
            assert relay.child.wait(PATIENCE_S) == 0
            assert time.monotonic() - began < ENDS_WITHIN_S
        assert "Traceback" not in relay.child.log_tail()
    # What it had is whole, and capture goes on where it was.
    with running(relay.start()):
        shop.insert(4001)
        wait_until(lambda: len(relay.stream(size=16 << 20).body) > 4000 * 1000, "all of it")
