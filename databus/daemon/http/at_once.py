"""Sends answers that are there at once, without a handler.

A handler, its task and its turns of the loop cost several times what it costs to read a megabyte
and to send it. So the class of a handler may name a function that answers what needs no waiting,
as `ApiHandler.at_once`. The function declines every other request, also one that is answered by
an error, and has changed nothing then: a handler answers it, as if nothing had been tried.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

from tornado.httputil import (
    HTTPMessageDelegate,
    RequestStartLine,
    ResponseStartLine,
    format_timestamp,
)
from tornado.web import Application, RequestHandler

from databus.daemon.access import Access
from databus.daemon.fair_queue import FairQueue
from databus.daemon.http.requests import SERVER, Request
from databus.daemon.http.sending import Batch, FilePart, Sender, batches_of, send_at_once, size_of


class ReadyAnswer(Protocol):
    """An answer that only has to be sent."""

    @property
    def parts(self) -> Sequence[bytes | FilePart]:
        """All its bytes, headers first."""
        ...

    def end(self) -> None:
        """Record that it was sent, or that the connection is closed. Called once."""
        ...


CHUNK_END = b"\r\n0\r\n\r\n"  # after the bytes of an answer of one chunk

# Given the tokens and the arguments of the handler's route.
AtOnce = Callable[[Request, Access, Mapping[str, Any]], ReadyAnswer | None]


class AtOnceApplication(Application):
    """An application that tries `at_once` of a handler's class before it makes a handler."""

    def get_handler_delegate(
        self,
        request: Request,
        target_class: type[RequestHandler],
        target_kwargs: dict[str, Any] | None = None,
        *arguments: Any,
        **named: Any,
    ) -> Any:
        """Return what receives a request."""
        delegate: Any = super().get_handler_delegate(
            request, target_class, target_kwargs, *arguments, **named
        )
        at_once: AtOnce | None = getattr(target_class, "at_once", None)
        if at_once is None or target_kwargs is None or request.method != "GET":
            return delegate
        return _Receiver(delegate, self, request, at_once, target_kwargs)


class _Receiver(HTTPMessageDelegate):
    """Receives one request, and answers it or lets the handler do so."""

    def __init__(
        self,
        handler: HTTPMessageDelegate,
        application: Application,
        request: Request,
        at_once: AtOnce,
        arguments: Mapping[str, Any],
    ) -> None:
        self._handler = handler
        self._settings = application.settings
        self._request = request
        self._connection: Any = request.connection
        self._at_once = at_once
        self._arguments = arguments
        self._has_body = False
        self._queue: FairQueue = application.settings["fair_queue"]
        idle_s = arguments["limits"].idle_connection_s
        self._sender = Sender(request.connection, self._queue, idle_s)

    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: Any
    ) -> Any:
        return self._handler.headers_received(start_line, headers)

    def data_received(self, chunk: bytes) -> Any:
        self._has_body = True
        return self._handler.data_received(chunk)

    def finish(self) -> None:
        if self._has_body:
            self._handler.finish()
        else:
            self._queue.call(self._answer)

    def on_connection_close(self) -> None:
        self._handler.on_connection_close()

    def _answer(self) -> None:
        if self._sender.is_gone:
            return
        began = time.perf_counter()
        try:
            answer = self._at_once(self._request, self._settings["access"], self._arguments)
        except Exception:
            answer = None  # raised again in the handler, which answers and logs it
        if answer is None:
            self._handler.finish()
            return
        first, *others = batches_of(answer.parts)
        sent_bytes = send_at_once(self._connection.stream, first)
        self._queue.spent(time.perf_counter() - began)
        if not others and sent_bytes == size_of(first):
            answer.end()
            self._finish()
            return
        task = asyncio.ensure_future(self._send_rest(answer, first, sent_bytes, others))
        requests: set[asyncio.Task[None]] = self._settings["requests"]
        requests.add(task)
        task.add_done_callback(requests.discard)

    async def _send_rest(
        self, answer: ReadyAnswer, first: Batch, sent_bytes: int, others: Sequence[Batch]
    ) -> None:
        try:
            await self._sender.send_rest(first, sent_bytes)
            await self._sender.send_batches(others)
        finally:
            answer.end()
        self._finish()

    def _finish(self) -> None:
        if not self._sender.is_gone:
            self._connection.finish()


def head_of(
    request: Request, content_type: str, headers: Mapping[str, str], size_bytes: int
) -> bytes:
    """Return the headers of an answer of one chunk, and what goes before its bytes."""
    lines = [
        "HTTP/1.1 200 OK",
        f"Server: {SERVER}",
        f"Content-Type: {content_type}",
        f"Date: {_date(int(time.time()))}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    if request.headers.get("Connection", "").lower() == "close":
        lines.append("Connection: close")
    lines += ["Transfer-Encoding: chunked", "", f"{size_bytes:x}\r\n"]
    return "\r\n".join(lines).encode("latin-1")


@lru_cache(maxsize=1)
def _date(second: int) -> str:
    return format_timestamp(second)
