"""HTTP to one server over one persistent connection.

tornado's simple client opens a connection per request. Here the stream is kept. One request
at a time. Anything that is not a well-formed answer, in time and within its size limit, is a
ServerError and closes the connection; nothing is logged here. h11 writes requests and
reads answers.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from urllib.parse import urlencode, urlsplit

import h11
from tornado.iostream import IOStream, SSLIOStream, StreamClosedError

from databus import __version__
from databus.client.puller.response_parser import (
    MAX_HEADER_BYTES,
    MalformedResponseError,
    ResponseParser,
)
from databus.conf.settings import ClientSettings
from databus.daemon.credentials import ServerAccess
from databus.daemon.tls import NO_TLS, explain_tls
from databus.schemas.errors import ServerError, SettingsError, UnauthorizedError
from databus.schemas.protocol import Header

READ_BYTES = 256 << 10

OnChunk = Callable[[bytes], None]


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer; `body` is empty if `on_chunk` took its chunks."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    body_bytes: int


@dataclass(frozen=True, slots=True)
class _Request:
    """One request; `target` is the path with its parameters."""

    server: str
    method: str
    path: str
    target: str
    body: bytes = b""


class Transport:
    """One connection to one server at a time. For one asyncio task."""

    def __init__(
        self,
        connect_timeout_s: float,
        headers: Mapping[str, str] = MappingProxyType({}),
        access: ServerAccess | None = None,
    ) -> None:
        """Send `headers` and the credentials of `access` with each request."""
        self._connect_timeout_s = connect_timeout_s
        self._headers = headers
        self._access = access or ServerAccess()
        self._shown: Mapping[str, str] = {}  # credentials sent on this connection
        self._tls: ssl.SSLContext | None = None
        self._stream: IOStream | None = None
        self._server = ""
        self._is_broken = False  # part of an answer may still arrive

    async def get(
        self,
        server: str,
        path: str,
        parameters: Mapping[str, str],
        *,
        timeout_s: float,
        max_bytes: int,
        on_chunk: OnChunk | None = None,
    ) -> Answer:
        """Send a GET request and return the answer, whatever its status.

        The chunks of a successful answer's body go to `on_chunk` as they arrive. An
        exception of `on_chunk` closes the connection and is raised here. Raises
        ServerError without a whole answer within `timeout_s`.
        """
        target = f"{path}?{urlencode(parameters)}" if parameters else path
        request = _Request(server, "GET", path, target)
        return await self._in_time(request, timeout_s, max_bytes, on_chunk)

    async def post(
        self, server: str, path: str, body: bytes, *, timeout_s: float, max_bytes: int
    ) -> Answer:
        """Send a JSON body and return the answer, whatever its status; raises as `get` does."""
        request = _Request(server, "POST", path, path, body)
        return await self._in_time(request, timeout_s, max_bytes, None)

    async def _in_time(
        self, request: _Request, timeout_s: float, max_bytes: int, on_chunk: OnChunk | None
    ) -> Answer:
        server, path = request.server, request.path
        # One connection at a time: the machine leaves a server before it picks another one.
        if server != self._server:
            self.close()
            self._server = server
        try:
            async with asyncio.timeout(timeout_s):
                return await self._ask(request, max_bytes, on_chunk)
        except TimeoutError:
            raise ServerError(server, f"no whole answer to {path} within {timeout_s:g} s") from None
        except StreamClosedError as error:
            why = error.real_error
            cause = f": {explain_tls(why) or why}" if why else ""
            raise ServerError(server, f"closed the connection in {path}{cause}") from error
        except MalformedResponseError as error:
            raise ServerError(server, f"the answer to {path} is malformed: {error}") from error
        finally:
            if self._is_broken:
                self.close()

    def close(self) -> None:
        """Close the connection."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    async def _ask(self, request: _Request, max_bytes: int, on_chunk: OnChunk | None) -> Answer:
        server = request.server
        was_kept = self._stream is not None
        while True:
            reading = _Reading(max_bytes, on_chunk)
            self._is_broken = True
            stream = self._stream = self._stream or await self._connect(server)
            try:
                await self._exchange(stream, request, reading)
            except StreamClosedError:
                # The server may just have closed an idle connection. A request without a
                # byte of answer was not handled, so it is sent again.
                if not was_kept or reading.parser.has_begun:
                    raise
                was_kept = False
                self.close()
                continue
            # After a 401 the next connection reads the token file again.
            is_refused = reading.parser.status == UnauthorizedError.status
            self._is_broken = is_refused or not reading.parser.may_be_kept or stream.closed()
            return reading.answer()

    async def _exchange(self, stream: IOStream, request: _Request, reading: _Reading) -> None:
        await stream.write(self._request_bytes(request, reading.connection))
        while not reading.parser.is_whole:
            try:
                data = await stream.read_bytes(READ_BYTES, partial=True)
            except StreamClosedError:
                if not reading.parser.close():
                    raise
            else:
                reading.receive(data)

    def _request_bytes(self, request: _Request, connection: h11.Connection) -> bytes:
        url = urlsplit(request.server)
        headers = {"Host": url.netloc, "User-Agent": f"databus/{__version__}"}
        headers |= self._headers
        headers |= self._shown
        if request.method == "POST":
            headers["Content-Type"] = "application/json"
            headers["Content-Length"] = str(len(request.body))
        # Behind a proxy a server may have a prefix.
        target = url.path.rstrip("/") + request.target
        try:
            head = connection.send(
                h11.Request(method=request.method, target=target, headers=[*headers.items()])
            )
            body = connection.send(h11.Data(data=request.body)) if request.body else b""
            connection.send(h11.EndOfMessage())
        except h11.LocalProtocolError as error:  # such as a line break in a header
            raise ServerError(request.server, f"cannot be asked {request.path}: {error}") from error
        return (head or b"") + (body or b"")

    async def _connect(self, server: str) -> IOStream:
        url = urlsplit(server)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ServerError(server, "is not a URL like http://host:port")
        is_secure = url.scheme == "https"
        port = url.port or (443 if is_secure else 80)
        try:
            self._shown = self._access.headers()
            if is_secure and self._tls is None:
                self._tls = self._access.tls()
            secure = self._tls if is_secure else None
            async with asyncio.timeout(self._connect_timeout_s):
                stream = await _open(url.hostname, port, secure, self._connect_timeout_s)
        except TimeoutError:
            problem = f"no connection within {self._connect_timeout_s:g} s"
            raise ServerError(server, f"{problem}; {NO_TLS}" if is_secure else problem) from None
        except SettingsError as error:
            raise ServerError(server, str(error)) from error
        except (OSError, StreamClosedError) as error:
            raise ServerError(server, explain_tls(error) or f"cannot connect: {error}") from error
        # A request is one small packet, which must not wait for an acknowledgement.
        stream.set_nodelay(True)
        return stream


async def _open(host: str, port: int, tls: ssl.SSLContext | None, within_s: float) -> IOStream:
    """Connect to the first address of a host that answers; each gets its share of the time.

    No socket stays open after an error or a cancellation. tornado's TCPClient leaks a
    connection that is established at that moment.
    """
    loop = asyncio.get_running_loop()
    addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    problems: list[BaseException] = []
    for family, kind, protocol, _, address in addresses:
        try:
            async with asyncio.timeout(within_s / len(addresses)):
                return await _open_at(socket.socket(family, kind, protocol), address, host, tls)
        except StreamClosedError as error:
            problems.append(error.real_error or error)
        except OSError as error:  # includes TimeoutError
            problems.append(error)
    raise problems[0]


async def _open_at(
    plain: socket.socket, address: Any, host: str, tls: ssl.SSLContext | None
) -> IOStream:
    stream = IOStream(plain) if tls is None else SSLIOStream(plain, ssl_options=tls)
    try:
        await stream.connect(address, server_hostname=None if tls is None else host)
    except BaseException:
        stream.close()
        raise
    return stream


class _Reading:
    """Collects one answer as it arrives."""

    def __init__(self, max_bytes: int, on_chunk: OnChunk | None) -> None:
        self._on_chunk = on_chunk
        # One for each request: nothing of an answer can be taken for the next one's.
        self.connection = h11.Connection(h11.CLIENT, MAX_HEADER_BYTES)
        self.parser = ResponseParser(self.connection, max_bytes)
        self._chunks: list[bytes] = []

    def receive(self, data: bytes) -> None:
        """Take bytes; raises MalformedResponseError, and what `on_chunk` raises."""
        chunk = self.parser.receive(data)
        if not chunk:
            return
        if self._on_chunk is not None and self._is_good:
            self._on_chunk(chunk)
        else:
            self._chunks.append(chunk)

    @property
    def _is_good(self) -> bool:
        return self.parser.status == 200 and Header.ERROR.lower() not in self.parser.headers

    def answer(self) -> Answer:
        """Return the whole answer."""
        parser = self.parser
        return Answer(parser.status, parser.headers, b"".join(self._chunks), parser.body_bytes)


def make_transport(settings: ClientSettings, client_id: str = "") -> Transport:
    """Return a client's transport, whose requests carry `client_id`."""
    headers = {Header.CLIENT_ID: client_id} if client_id else {}
    return Transport(settings.connect_timeout_s, headers, ServerAccess(settings.access))
