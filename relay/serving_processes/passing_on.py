"""Passes a request on to the capturing process, and its answer back.

Each connection of a client has one of its own to the capturing process, once it needs it: what is
noted there of a connection, such as the schemas that were sent, holds for this client alone. It is
a Unix socket in the data folder that only its user may open, so the capturing process believes what
is said there of the client's address and scheme.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

from tornado.http1connection import HTTP1Connection, HTTP1ConnectionParameters
from tornado.httputil import (
    HTTPHeaders,
    HTTPMessageDelegate,
    RequestStartLine,
    ResponseStartLine,
)
from tornado.iostream import IOStream, StreamClosedError

from databus.daemon.http.handlers import ApiHandler
from databus.daemon.http.requests import Request, is_own_client
from databus.schemas.errors import DatabusError

SOCKET = "serving.sock"  # in the data folder
_OF_ONE_HOP = ("connection", "keep-alive", "transfer-encoding", "expect", "te", "upgrade")
_OF_THE_PEER = ("x-real-ip", "x-forwarded-for", "x-scheme", "x-forwarded-proto")
CHECK_EVERY_S = 1.0  # while nothing of an answer has come
_ANSWER_BYTES = 1 << 50  # no limit: it is ours


class CapturerError(DatabusError):
    """The capturing process does not answer."""

    status = 503


def socket_address(folder: Path) -> tuple[int, str]:
    """Return a descriptor of the data folder, to be closed, and the address of the socket in it.

    A path as such may be longer than the address of a Unix socket.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    return fd, f"/proc/self/fd/{fd}/{SOCKET}"


class PassingHandler(ApiHandler):
    """A handler that may leave its request to the capturing process."""

    async def pass_on(self, folder: Path, check: Callable[[], None]) -> None:
        """Answer with what the capturing process answers; raise CapturerError.

        `check` raises it, too, if that process is known to stand still.
        """
        check()
        request = self.request
        upstream = await _upstream_of(request, folder)
        if request.path == "/register" and not is_own_client(request):
            note_foreign(request)
        parameters = HTTP1ConnectionParameters(max_body_size=_ANSWER_BYTES)
        connection = HTTP1Connection(upstream, True, parameters)
        answer = _Answer(self)
        line = RequestStartLine(str(request.method), request.uri or "/", "HTTP/1.1")
        try:
            await connection.write_headers(line, _headers_on(request), request.body or None)
            connection.finish()
            reading = asyncio.ensure_future(connection.read_response(answer))
            try:
                while (
                    not answer.has_begun
                    and not (await asyncio.wait((reading,), timeout=CHECK_EVERY_S))[0]
                ):
                    check()
                await reading
            except BaseException:
                upstream.close()
                await asyncio.wait((reading,))
                if not reading.cancelled():
                    reading.exception()  # what it ended with is no news, and not to be logged
                raise
        except (StreamClosedError, OSError):
            upstream.close()
        if not answer.is_whole:
            upstream.close()
            if answer.has_begun:
                self.drop_connection()
            elif not self._sender.is_gone:
                raise CapturerError("the capturing process ends, or does not answer")
            return
        await answer.end()
        # Without it, it would still look after the stream, which the next request uses.
        connection.detach()

    @property
    def is_gone(self) -> bool:
        """Whether the client is gone."""
        return self._sender.is_gone

    async def send_on(self, data: bytes) -> None:
        """Send bytes of an answer as they are, headers included."""
        self._headers_written = True
        await self._sender.send((data,))

    async def end_answer(self, *, is_last: bool) -> None:
        """End an answer that was sent on, and with the last one the connection."""
        connection: Any = self.request.connection
        if self._sender.is_gone:
            return
        await self._sender.within_idle_time(self.finish())
        if is_last and not self._sender.is_gone:
            await self._sender.within_idle_time(connection.stream.write(b""))
            self.drop_connection()


def is_foreign(request: Request) -> bool:
    """Return whether the capturing process notes which schemas were sent on this connection."""
    context: Any = cast(Any, request.connection).context
    return bool(getattr(context, "is_foreign", False))


def note_foreign(request: Request) -> None:
    """Pass all requests of this connection on from now on."""
    cast(Any, request.connection).context.is_foreign = True


async def _upstream_of(request: Request, folder: Path) -> IOStream:
    context = cast(Any, request.connection).context
    found: IOStream | None = getattr(context, "upstream", None)
    if found is not None and not found.closed():
        return found
    fd, address = socket_address(folder)
    stream = IOStream(socket.socket(socket.AF_UNIX))
    try:
        await stream.connect(cast(Any, address))
    except (OSError, StreamClosedError) as error:
        stream.close()
        raise CapturerError(f"the capturing process does not answer: {error}") from error
    finally:
        os.close(fd)
    context.upstream, context.at_close = stream, stream.close
    return stream


def _headers_on(request: Request) -> HTTPHeaders:
    headers = HTTPHeaders()
    for name, value in request.headers.get_all():
        if name.lower() not in (*_OF_ONE_HOP, *_OF_THE_PEER, "content-length"):
            headers.add(name, value)
    headers["X-Real-Ip"] = request.remote_ip or ""
    headers["X-Scheme"] = request.protocol
    if request.body or request.method in ("POST", "PUT", "PATCH"):
        headers["Content-Length"] = str(len(request.body))
    return headers


class _Answer(HTTPMessageDelegate):
    """Sends an answer on as it comes; to clients of HTTP/1.0 as a whole, because of its length."""

    def __init__(self, handler: PassingHandler) -> None:
        self._handler = handler
        self._request = handler.request
        self._is_chunked = False
        self._is_kept = self._request.version != "HTTP/1.1"
        self._is_last = False
        self._kept: list[bytes] = []
        self._head: list[str] = []
        self.has_begun = False
        self.is_whole = False

    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> Awaitable[None] | None:
        assert isinstance(start_line, ResponseStartLine)
        is_chunked = headers.get("Transfer-Encoding", "").lower() == "chunked"
        self._is_chunked = is_chunked and self._request.method != "HEAD"
        asked = self._request.headers.get("Connection", "").lower()
        self._is_last = "close" in (asked, headers.get("Connection", "").lower())
        self._head = [f"HTTP/1.1 {start_line.code} {start_line.reason}"]
        for name, value in headers.get_all():
            is_length = self._is_kept and name.lower() == "content-length"
            if name.lower() not in _OF_ONE_HOP and not is_length:
                self._head.append(f"{name}: {value}")
        if self._is_kept:
            return None
        if self._is_last:
            self._head.append("Connection: close")
        if is_chunked:
            self._head.append("Transfer-Encoding: chunked")
        return self._send(self._head_bytes())

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        if self._is_kept:
            self._kept.append(chunk)
            return None
        return self._send(b"%x\r\n%b\r\n" % (len(chunk), chunk) if self._is_chunked else chunk)

    def finish(self) -> None:
        self.is_whole = True

    def on_connection_close(self) -> None:
        """Leave the answer cut."""

    async def end(self) -> None:
        """Send what is left of a whole answer."""
        if self._is_kept:
            size_bytes = sum(map(len, self._kept))
            self._head += [f"Content-Length: {size_bytes}", "Connection: close"]
            self._is_last = True
            await self._send(b"".join((self._head_bytes(), *self._kept)))
        elif self._is_chunked:
            await self._send(b"0\r\n\r\n")
        await self._handler.end_answer(is_last=self._is_last)

    def _head_bytes(self) -> bytes:
        return "\r\n".join((*self._head, "", "")).encode("latin-1")

    async def _send(self, data: bytes) -> None:
        self.has_begun = True
        await self._handler.send_on(data)
