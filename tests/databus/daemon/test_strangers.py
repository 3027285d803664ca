"""Strangers at the relay, the bootstrap server and a client's own server: the same for all."""

from __future__ import annotations

import logging
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import pytest

from databus.bootstrap.server import handlers as bootstrap_http
from databus.relay.serving.databus import handlers as relay_http
from tests import PATIENCE_S
from tests.bootstrap.filled import PERSON, SEEDED_SCN
from tests.bootstrap.serving import ServedStore
from tests.bootstrap.walking import snapshot_at
from tests.client.fake_relay import FakeRelay
from tests.client.monitoring.test_http import serving
from tests.client.shop import orders
from tests.relay.fakes import ServedRelay, get, insert, transaction, wait_until
from tests.strangers import besiege

REQUESTS = 300
SILENT, UNREAD = 60, 50
EVERYWHERE = ("/health", "/ready", "/metrics", "/admin", "/", "*", "//", "/api/v1/openapi.json")
LIMITS: dict[str, Any] = {"port": 0, "max_wait_ms": 50, "request_s": 2.0, "max_connections": 90}
END_S = 30.0  # docs/operating.md says 5 s, on a machine that is busy with nothing else


class Met(NamedTuple):
    """A server that strangers come to: its paths, and what is its largest answer."""

    url: str
    paths: list[str]
    largest: str


def paths_of(commands: Any) -> list[str]:
    """Return the paths of a table of commands, with a name in their gaps."""
    gaps = re.compile(r"\(\?:/\(\.\*\)\)\?|\([^)]*\)")
    found = [gaps.sub("shop", path) for path, _ in commands]
    return [path for path in found if "control" not in path]  # what those do is wanted


@contextmanager
def relay(folder: Path) -> Iterator[Met]:
    served = ServedRelay(folder, http=LIMITS)
    try:
        served.put(transaction(1, *(insert(key, "x" * 3000) for key in range(1000))))
        served.put(*(transaction(scn, insert(scn)) for scn in range(2, 20)))
        api = [f"/api/v1/{one}" for one in ("relay", "physicalSources/shop", "clients", "schemas")]
        paths = [*paths_of(relay_http.COMMANDS), "/stream", "/stream", "/measure", *api]
        yield Met(served.url, paths, "/stream?sources=1&size=16000000&maxev=2")
    finally:
        served.close()


@contextmanager
def bootstrap(folder: Path) -> Iterator[Met]:
    served = ServedStore(folder, http=LIMITS, persons=20_000)
    try:
        api = [f"/api/v1/{one}" for one in ("bootstrap", "physicalSources/shop", "sessions")]
        paths = [*paths_of(bootstrap_http.COMMANDS), "/bootstrap", "/bootstrap", *api]
        at = quote(snapshot_at(PERSON.source, SEEDED_SCN).to_json())
        page = f"/bootstrap?sources=1&batchSize=16000000&maxev=2&checkPoint={at}"
        yield Met(served.url, paths, page)
    finally:
        served.close()


@contextmanager
def client(_folder: Path) -> Iterator[Met]:
    with FakeRelay(orders(range(1, 6), per_window=2)) as fake, serving(fake, http=LIMITS) as one:
        yield Met(one.client.url, ["/api/v1/client", "/api/v1/registrations"], "/metrics")


Open = Callable[[Path], AbstractContextManager[Met]]
each_server = pytest.mark.parametrize("opened", [relay, bootstrap, client])


def come(crowd: ExitStack, url: str) -> socket.socket:
    """Connect, and take in hardly anything."""
    link = crowd.enter_context(closing(socket.socket()))
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    link.settimeout(PATIENCE_S)
    link.connect((urlsplit(url).hostname, urlsplit(url).port))
    return link


@each_server
def test_whatever_anybody_sends_is_answered_or_closed_and_never_a_500(
    opened: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path) as met:
        besiege(met.url, [*met.paths, *EVERYWHERE], Random(5), REQUESTS)
        assert get(met.url, "/admin").body == b"GOOD"
    said = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert not [record.getMessage() + str(record.exc_info) for record in said]


@each_server
def test_a_crowd_that_says_nothing_keeps_nobody_out(opened: Open, tmp_path: Path) -> None:
    with opened(tmp_path) as met, ExitStack() as crowd:
        for _ in range(2 * SILENT):
            come(crowd, met.url)
        for _ in range(5):
            assert get(met.url, "/admin").body == b"GOOD"


@each_server
def test_it_ends_soon_though_a_crowd_does_not_read_what_it_asked_for(
    opened: Open, tmp_path: Path
) -> None:
    with ExitStack() as crowd:
        with opened(tmp_path) as met:
            links = [come(crowd, met.url) for _ in range(UNREAD)]
            for link in links:
                link.sendall(f"GET {met.largest} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
            wait_until(lambda: bool(links[0].recv(1, socket.MSG_PEEK)))
            assert get(met.url, "/admin").body == b"GOOD"
            begun_s = time.monotonic()
        assert time.monotonic() - begun_s < END_S
