"""What one client may cost: connections, filters, the time of one request."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import http.client
import json
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from databus.daemon import descriptors
from databus.daemon.descriptors import fit_connections
from databus.daemon.http.handlers import ApiHandler
from databus.relay.serving.databus.measure import MeasureJob
from databus.relay.serving.reading.stream import StreamJob
from databus.schemas.errors import SettingsError
from tests import PATIENCE_S
from tests.databus.daemon.test_access import said, served
from tests.databus.daemon.test_service import Daemon
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
    daemon = Daemon(max_answer_s=1.5)
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
    return socket.create_connection(place, timeout=PATIENCE_S, source_address=(address, 0))


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


def figure(url: str, name: str) -> float:
    while (answer := get(url, "/metrics")).status == 503:
        time.sleep(0.01)  # the connection before it is not forgotten yet
    lines = answer.body.decode().splitlines()
    (line,) = [line for line in lines if line.startswith(f"databus_http_{name} ")]
    return float(line.split()[1])


def turned_away(url: str, limit: str) -> float:
    return figure(url, f'turned_away_total{{limit="{limit}"}}')


def is_closed(connection: socket.socket) -> bool:
    connection.settimeout(PATIENCE_S)
    with contextlib.suppress(ConnectionResetError):
        return connection.recv(1) == b""
    return True


def test_a_connection_that_sends_no_whole_request_is_closed_soon(tmp_path: Path) -> None:
    begin = b"GET /admin HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"
    with (
        served(tmp_path, request_s=2.0) as relay,
        connect(relay.url) as silent,
        connect(relay.url) as slow,
        connect(relay.url) as without_body,
        connect(relay.url) as good,
    ):
        slow.sendall(begin[:30])
        without_body.sendall(begin + b"12345678")
        assert status_of(good)[0] == 200
        for connection in (silent, slow, without_body):
            assert is_closed(connection)
        assert status_of(good)[0] == 200, "who has sent one may wait before the next"
        assert turned_away(relay.url, "request_s") == 3


def test_who_says_nothing_makes_room_for_who_does(tmp_path: Path) -> None:
    with served(tmp_path, max_connections=MOST) as relay, connect(relay.url) as heard:
        assert status_of(heard)[0] == 200
        silent = [connect(relay.url) for _ in range(5 * MOST)]
        for _ in range(MOST):
            assert get(relay.url, "/admin").status == 200
        assert all(is_closed(connection) for connection in silent[: 4 * MOST])
        assert status_of(heard)[0] == 200
        assert turned_away(relay.url, "max_connections") >= 4 * MOST
        assert figure(relay.url, "connections") <= figure(relay.url, "max_connections") == MOST
        for connection in silent:
            connection.close()


def test_what_is_turned_away_is_counted(tmp_path: Path) -> None:
    with served(tmp_path, max_connections=2, max_connections_per_client=1) as relay:
        with connect(relay.url) as first:
            assert status_of(first)[0] == 200
            for _ in range(3):
                with connect(relay.url) as second:
                    assert status_of(second)[0] == 503
            with from_address(relay.url, "127.0.0.2") as another:
                assert status_of(another)[0] == 200
                with from_address(relay.url, "127.0.0.3") as third:
                    assert status_of(third)[0] == 503
        wait_until(lambda: relay.server.open_connections() == 0)
        assert turned_away(relay.url, "max_connections_per_client") == 3
        assert turned_away(relay.url, "max_connections") == 1


def test_no_more_connections_are_served_than_descriptors_are_left_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(descriptors, "limit", lambda: 256)
    monkeypatch.setattr(descriptors, "open_files", lambda: 20)
    assert fit_connections(150, own_files=48) == 150
    assert not caplog.records
    assert fit_connections(1000, own_files=48) == 188
    for part in ("256 files", "188 connections", "http.max_connections = 1000", "LimitNOFILE"):
        assert part in caplog.text
    with pytest.raises(SettingsError, match=r"no room for connections; allow it 1251"):
        fit_connections(1000, own_files=231)


def test_the_limit_of_descriptors_is_raised_as_far_as_it_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = {"now": (1024, 4096)}
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits["now"])
    monkeypatch.setattr(resource, "setrlimit", lambda _, wanted: limits.update(now=wanted))
    descriptors.raise_limit()
    assert limits["now"] == (4096, 4096)
    limits["now"] = (1024, resource.RLIM_INFINITY)
    descriptors.raise_limit()
    assert limits["now"] == (1 << 20, resource.RLIM_INFINITY)


def test_without_a_descriptor_nothing_is_accepted_for_a_moment_and_all_is_served_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path) as relay, connect(relay.url) as held:
        assert status_of(held)[0] == 200
        with monkeypatch.context() as patched:

            def refuse(_self: object) -> None:
                raise OSError(errno.EMFILE, "Too many open files")

            patched.setattr(socket.socket, "accept", refuse)
            began_s = time.monotonic()
            with connect(relay.url) as late:
                late.sendall(b"GET /admin HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert status_of(held)[0] == 200
                time.sleep(0.5)
                patched.undo()
                assert late.recv(100).startswith(b"HTTP/1.1 200")
        tries_s = time.monotonic() - began_s
        assert 1 <= turned_away(relay.url, "descriptors") < 20 * tries_s, "not all the time"


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
        assert said(answer) == (
            400,
            "com.linkedin.databus2.core.container.request.InvalidRequestParamValueException",
        )
        assert "at most 2048 bytes (http.max_filter_bytes)" in json.loads(answer.body)["message"]


def test_work_that_takes_longer_than_an_answer_may_is_ended(working: ServiceThread) -> None:
    assert get(working.url, "/work?parts=2").body == b"done"
    answer = get(working.url, "/work?parts=100")
    assert said(answer) == (503, "RequestTimedOutException")
    assert "more than 1.5 s (http.max_answer_s)" in json.loads(answer.body)["message"]
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
