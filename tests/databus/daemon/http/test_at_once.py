"""A handler's class may answer at once; what it declines, and its errors, are the handler's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from tornado.httputil import HTTPHeaders, HTTPServerRequest, RequestStartLine

from databus.daemon.access import Access
from databus.daemon.fair_queue import FairQueue
from databus.daemon.http.at_once import CHUNK_END, AtOnceApplication, ReadyAnswer, head_of
from databus.daemon.http.handlers import CommandHandler
from tests.databus.daemon.test_service import Daemon
from tests.relay.fakes import ServiceThread, connect, get, post, wait_until

BODY = b"x" * 20_000_000  # more than a socket takes


class Ready:
    """An answer that is there."""

    def __init__(self, request: HTTPServerRequest, ended: list[str]) -> None:
        head = head_of(request, "text/plain", {"x-at-once": "yes"}, len(BODY))
        self.parts = (head, BODY, CHUNK_END)
        self._path, self._ended = str(request.uri), ended

    def end(self) -> None:
        self._ended.append(self._path)


ENDED: list[str] = []


def at_once(
    request: HTTPServerRequest, access: Access, arguments: Mapping[str, Any]
) -> ReadyAnswer | None:
    assert access.is_open
    assert "limits" in arguments
    if request.query == "fail":
        raise ZeroDivisionError
    return None if request.query == "decline" else Ready(request, ENDED)


class ReadyHandler(CommandHandler):
    at_once = staticmethod(at_once)

    async def answer(self, *_path: str) -> None:
        await self.send(b"handled", "text/plain")


@pytest.fixture
def url() -> Iterator[str]:
    ENDED.clear()
    daemon = Daemon(idle_connection_s=2.0)
    daemon.service.routes.append(("/ready-made", ReadyHandler, {"limits": daemon.service.http}))  # type: ignore[attr-defined]
    thread = ServiceThread(daemon.service)
    yield thread.url + "/ready-made"
    thread.close()


def test_an_answer_larger_than_a_socket_takes_is_whole(url: str) -> None:
    answer = get(url, "/ready-made")
    assert (answer.headers["x-at-once"], answer.body) == ("yes", BODY)
    # The server ends it after its last byte, which the client may have before.
    wait_until(lambda: ENDED == ["/ready-made"])


@pytest.mark.parametrize("query", ["decline", "fail"])
def test_what_is_declined_or_fails_is_the_handler_s(url: str, query: str) -> None:
    assert get(url, f"/ready-made?{query}").body == b"handled"
    assert not ENDED


def test_a_request_with_a_body_is_the_handler_s(url: str) -> None:
    assert post(url, "/ready-made", {"Connection": "close"}).body == b"handled"
    with connect(url) as sock:
        sock.sendall(
            b"GET /ready-made HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
            b"Content-Length: 2\r\n\r\nok"
        )
        answer = b"".join(iter(lambda: sock.recv(1 << 16), b""))
    assert b"handled" in answer
    assert not ENDED


def test_one_connection_has_many_answers(url: str) -> None:
    with connect(url) as sock:
        for _ in range(3):
            sock.sendall(b"GET /ready-made HTTP/1.1\r\nHost: a\r\n\r\n")
            received = bytearray()
            while not received.endswith(CHUNK_END):
                received += sock.recv(1 << 20)
            assert received.endswith(BODY + CHUNK_END)
        wait_until(lambda: len(ENDED) == 3)


def test_a_client_that_does_not_read_or_goes_ends_its_answer(url: str) -> None:
    for number in (1, 2):
        with connect(url) as sock:
            # Pipelined: the second is never begun.
            sock.sendall(b"GET /ready-made HTTP/1.1\r\nHost: a\r\n\r\n" * 2)
            if number == 1:
                wait_until(lambda: len(ENDED) == 1)
        wait_until(lambda number=number: len(ENDED) == number)  # type: ignore[misc]
    assert get(url, "/ready-made").body == BODY


def test_what_waits_when_its_connection_closes_is_not_begun() -> None:
    ENDED.clear()
    is_closed = False

    async def run() -> None:
        nonlocal is_closed
        queue = FairQueue(budget_s=0)
        application = AtOnceApplication(
            [], fair_queue=queue, access=Access(), requests=set(), log_function=print
        )
        connection: Any = SimpleNamespace(stream=SimpleNamespace(closed=lambda: is_closed))
        request = HTTPServerRequest(
            start_line=RequestStartLine("GET", "/ready-made", "HTTP/1.1"),
            headers=HTTPHeaders({"Host": "a"}),
            connection=connection,
        )
        limits = Daemon().service.http
        receiver = application.get_handler_delegate(request, ReadyHandler, {"limits": limits})
        queue.call(lambda: None)
        receiver.finish()
        assert queue.waiting == 1
        is_closed = True
        while queue.waiting:
            await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(run())
    assert not ENDED
