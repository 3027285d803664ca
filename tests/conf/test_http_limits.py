"""What one client may cost: connections, filters, the time of one request."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from databus.conf.http import ApiHandler
from databus.relay.measure import MeasureJob
from databus.relay.stream import StreamJob
from tests.conf.test_access import said, served
from tests.conf.test_service import Daemon
from tests.relay.fakes import ServiceThread, connect, get, insert, transaction, wait_until

MOST = 3


class WorkHandler(ApiHandler):
    """Works for `parts` times 50 ms."""

    async def get(self) -> None:
        for _ in range(int(self.get_argument("parts"))):
            await self.in_time(asyncio.sleep(0.05))
            await asyncio.sleep(0.02)  # held, which does not count
        await self.send(b"done", "text/plain")


@pytest.fixture
def working() -> Iterator[ServiceThread]:
    daemon = Daemon(max_answer_s=0.3)
    daemon.service.routes.append(("/work", WorkHandler, {"limits": daemon.service.http}))  # type: ignore[attr-defined]
    thread = ServiceThread(daemon.service)
    yield thread
    thread.close()


def status_of(connection: socket.socket, path: str = "/admin") -> tuple[int, str]:
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    response = http.client.HTTPResponse(connection)
    response.begin()
    with response:
        response.read()
        return response.status, response.headers.get("x-dbus-error-message", "")


def from_address(url: str, address: str) -> socket.socket:
    parts = urlsplit(url)
    assert parts.hostname
    place = (parts.hostname, parts.port or 80)
    return socket.create_connection(place, timeout=5, source_address=(address, 0))


def test_one_address_has_so_many_connections_and_no_more(tmp_path: Path) -> None:
    with served(tmp_path, max_connections_per_client=MOST) as relay:
        held = [connect(relay.url) for _ in range(MOST)]
        for connection in held:
            assert status_of(connection)[0] == 200
        with connect(relay.url) as one_more:
            status, problem = status_of(one_more)
        assert status == 503
        assert "http.max_connections_per_client" in problem
        with from_address(relay.url, "127.0.0.2") as another:
            assert status_of(another)[0] == 200
        held.pop().close()
        wait_until(lambda: relay.server.open_connections() < MOST)
        assert get(relay.url, "/admin").status == 200
        for connection in held:
            assert status_of(connection)[0] == 200, "those that were there are served on"
            connection.close()
        wait_until(lambda: relay.server.open_connections() == 0)


def test_all_addresses_together_have_so_many_too(tmp_path: Path) -> None:
    with (
        served(tmp_path, max_connections=MOST) as relay,
        connect(relay.url) as first,
        from_address(relay.url, "127.0.0.2") as second,
        from_address(relay.url, "127.0.0.3") as third,
    ):
        for connection in (first, second, third):
            assert status_of(connection)[0] == 200
        with from_address(relay.url, "127.0.0.4") as one_more:
            status, problem = status_of(one_more)
        assert status == 503
        assert problem.endswith("http.max_connections")


@pytest.mark.parametrize(
    ("path", "name"),
    [("/stream", "filters"), ("/stream", "subs"), ("/measure", "filters")],
)
def test_a_filter_is_so_long_and_no_longer(tmp_path: Path, path: str, name: str) -> None:
    with served(tmp_path, max_filter_bytes=2048) as relay:
        relay.put(transaction(1, insert(1)))
        one = {"id": 1, "name": "*"}
        values: dict[str, Any] = {
            "filters": {"1": {"partitionType": "RANGE", "filters": [{"keyRange": [1, 2]}]}},
            "subs": [{"logicalPartition": {"source": one}}],
        }
        text = json.dumps(values[name])
        asked: dict[str, Any] = {"size": 1000}
        if name == "filters":
            asked["sources"] = "shop.person"
        fits = relay.get(path, None, **asked, **{name: text + " " * (2048 - len(text))})
        assert "max_filter_bytes" not in fits.body.decode(errors="replace")
        answer = relay.get(path, None, **asked, **{name: text + " " * (2049 - len(text))})
        assert said(answer) == (400, "InvalidRequestParamValueException")
        assert "at most 2048 bytes (http.max_filter_bytes)" in json.loads(answer.body)["message"]


def test_work_that_takes_longer_than_an_answer_may_is_ended(working: ServiceThread) -> None:
    assert get(working.url, "/work?parts=2").body == b"done"
    answer = get(working.url, "/work?parts=100")
    assert said(answer) == (503, "RequestTimedOutException")
    assert "more than 0.3 s (http.max_answer_s)" in json.loads(answer.body)["message"]
    assert get(working.url, "/work?parts=1").body == b"done", "each request has its own time"


@pytest.mark.parametrize(
    ("path", "job"),
    [("/stream?sources=1&size=1000", StreamJob), ("/measure?sources=1", MeasureJob)],
)
def test_a_look_at_the_ring_without_end_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, job: type
) -> None:
    with served(tmp_path, max_answer_s=0.2) as relay:
        relay.put(transaction(1, insert(1)))
        with monkeypatch.context() as patched:
            patched.setattr(job, "step", lambda _self: None)
            assert said(get(relay.url, path)) == (503, "RequestTimedOutException")
        assert get(relay.url, path).status == 200


def test_a_held_request_is_not_work(tmp_path: Path) -> None:
    with served(tmp_path, max_answer_s=0.1) as relay:
        relay.put(transaction(1, insert(1)))
        answer = relay.stream(streamFromLatestScn="true", wait=400)
    assert (answer.status, answer.body) == (200, b"")
