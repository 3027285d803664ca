"""HTTP to one server over one persistent connection.

One request at a time. Anything that is not a well-formed answer, in time and within its size
limit, is a ServerError and closes the connection; nothing is logged here. h11 writes requests
and reads answers.

What arrives is read where the loop receives it. A relay sends each transaction as soon as it is
committed, and a task that is woken for each of them costs more than the rest of the way.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from urllib.parse import urlencode, urlsplit

import h11

from databus import __version__
from databus.client.puller.response_parser import MAX_HEADER_BYTES, ResponseParser
from databus.conf.settings import ClientSettings
from databus.daemon.credentials import ServerAccess
from databus.daemon.http.chunked_body import MalformedResponseError
from databus.daemon.http.decoding import ZSTD, BodyDecoder, DecodingError, is_zstd
from databus.daemon.tls import NO_TLS, explain_tls
from databus.schemas.errors import ServerError, SettingsError, UnauthorizedError
from databus.schemas.protocol import Header

OnChunk = Callable[[bytes], None]

# At a time. Of copies larger than 128 KiB, too, the memory comes from the system.
RECEIVED_BYTES = 96 << 10


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer; `body` is empty if `on_chunk` took its chunks.

    `body_bytes` is the size of the body, decoded.
    """

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
    takes_zstd: bool = False


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
        self._connection: _Connection | None = None
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
        takes_zstd: bool = False,
    ) -> Answer:
        """Send a GET request and return the answer, whatever its status.

        The chunks of a successful answer's body go to `on_chunk` as they arrive. An
        exception of `on_chunk` closes the connection and is raised here. Raises
        ServerError without a whole answer within `timeout_s`. With `takes_zstd` the server may
        send the body compressed; `max_bytes` is then the limit of what it decodes to, too.
        """
        target = f"{path}?{urlencode(parameters)}" if parameters else path
        request = _Request(server, "GET", path, target, takes_zstd=takes_zstd)
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
        except _ClosedError as error:
            why = error.__cause__
            cause = f": {explain_tls(why) or why}" if why else ""
            raise ServerError(server, f"closed the connection in {path}{cause}") from error
        except (MalformedResponseError, DecodingError) as error:
            raise ServerError(server, f"the answer to {path} is malformed: {error}") from error
        finally:
            if self._is_broken:
                self.close()

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _ask(self, request: _Request, max_bytes: int, on_chunk: OnChunk | None) -> Answer:
        server = request.server
        was_kept = self._connection is not None
        while True:
            reading = _Reading(max_bytes, on_chunk)
            self._is_broken = True
            connection = self._connection = self._connection or await self._connect(server)
            try:
                await connection.exchange(self._request_bytes(request, reading.http), reading)
            except _ClosedError:
                # The server may just have closed an idle connection. A request without a
                # byte of answer was not handled, so it is sent again.
                if not was_kept or reading.parser.has_begun:
                    raise
                was_kept = False
                self.close()
                continue
            # After a 401 the next connection reads the token file again.
            is_refused = reading.parser.status == UnauthorizedError.status
            self._is_broken = is_refused or not reading.parser.may_be_kept or connection.is_closed
            return reading.answer()

    def _request_bytes(self, request: _Request, http: h11.Connection) -> bytes:
        url = urlsplit(request.server)
        headers = {"Host": url.netloc, "User-Agent": f"databus/{__version__}"}
        headers |= self._headers
        headers |= self._shown
        if request.takes_zstd:
            headers["Accept-Encoding"] = ZSTD
        if request.method == "POST":
            headers["Content-Type"] = "application/json"
            headers["Content-Length"] = str(len(request.body))
        # Behind a proxy a server may have a prefix.
        target = url.path.rstrip("/") + request.target
        try:
            head = http.send(
                h11.Request(method=request.method, target=target, headers=[*headers.items()])
            )
            body = http.send(h11.Data(data=request.body)) if request.body else b""
            http.send(h11.EndOfMessage())
        except h11.LocalProtocolError as error:  # such as a line break in a header
            raise ServerError(request.server, f"cannot be asked {request.path}: {error}") from error
        return (head or b"") + (body or b"")

    async def _connect(self, server: str) -> _Connection:
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
                return await _open(url.hostname, port, secure, self._connect_timeout_s)
        except TimeoutError:
            problem = f"no connection within {self._connect_timeout_s:g} s"
            raise ServerError(server, f"{problem}; {NO_TLS}" if is_secure else problem) from None
        except SettingsError as error:
            raise ServerError(server, str(error)) from error
        except OSError as error:
            raise ServerError(server, explain_tls(error) or f"cannot connect: {error}") from error


async def _open(host: str, port: int, tls: ssl.SSLContext | None, within_s: float) -> _Connection:
    """Connect to the first address of a host that answers; each gets its share of the time.

    No socket stays open after an error or a cancellation.
    """
    loop = asyncio.get_running_loop()
    addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    problems: list[OSError] = []
    for family, kind, protocol, _, address in addresses:
        try:
            async with asyncio.timeout(within_s / len(addresses)):
                return await _open_at(socket.socket(family, kind, protocol), address, host, tls)
        except OSError as error:  # includes TimeoutError
            problems.append(error)
    raise problems[0]


async def _open_at(
    plain: socket.socket, address: Any, host: str, tls: ssl.SSLContext | None
) -> _Connection:
    loop = asyncio.get_running_loop()
    try:
        plain.setblocking(False)
        try:
            await loop.sock_connect(plain, address)
        except ConnectionError as error:  # asyncio names the address in place of the reason
            raise OSError(error.errno, os.strerror(error.errno or 0)) from error
        _, connection = await loop.create_connection(
            _Connection, sock=plain, ssl=tls, server_hostname=None if tls is None else host
        )
    except BaseException:
        plain.close()
        raise
    return connection


class _ClosedError(Exception):
    """The connection ended before the answer did; the cause is the system's, if there is one."""


class _Connection(asyncio.BufferedProtocol):
    """One connection. A request is a small packet, and is not held back: asyncio sees to it.

    All bytes are received into one buffer. New memory for each of 256 KiB, as asyncio has it
    otherwise, comes from the system and goes back there: its page faults cost more than a copy.
    """

    def __init__(self) -> None:
        self.is_closed = False
        self._received = memoryview(bytearray(RECEIVED_BYTES))
        self._reading: _Reading | None = None
        self._transport: asyncio.Transport
        self._answered: asyncio.Future[None]

    async def exchange(self, request: bytes, reading: _Reading) -> None:
        """Send a request, and let `reading` take its answer.

        Raises _ClosedError, MalformedResponseError, and what `on_chunk` raises.
        """
        if self.is_closed:
            raise _ClosedError
        self._answered = asyncio.get_running_loop().create_future()
        self._reading = reading
        self._transport.write(request)
        try:
            await self._answered
        finally:
            self._reading = None

    def close(self) -> None:
        """Close it without waiting for anything."""
        self.is_closed = True
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep what writes to the socket."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Return where the next bytes go."""
        return self._received

    def buffer_updated(self, nbytes: int) -> None:
        """Take bytes of the answer; close the connection if no request is waiting for them."""
        reading, data = self._reading, bytes(self._received[:nbytes])
        if reading is None or self._answered.done():
            self.close()
            return
        try:
            reading.receive(data)
        except Exception as error:
            self._answered.set_exception(error)
            self.close()
        else:
            if reading.parser.is_whole:
                self._answered.set_result(None)

    def eof_received(self) -> None:
        """End the answer; asyncio closes the connection."""
        self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the answer."""
        self._end(exc)

    def _end(self, error: Exception | None) -> None:
        self.is_closed = True
        if self._reading is None or self._answered.done():
            return
        if self._reading.parser.close():
            self._answered.set_result(None)
        else:
            closed = _ClosedError()
            closed.__cause__ = error
            self._answered.set_exception(closed)


class _Reading:
    """Collects one answer as it arrives."""

    def __init__(self, max_bytes: int, on_chunk: OnChunk | None) -> None:
        self._on_chunk = on_chunk
        # One for each request: nothing of an answer can be taken for the next one's.
        self.http = h11.Connection(h11.CLIENT, MAX_HEADER_BYTES)
        self.parser = ResponseParser(self.http, max_bytes)
        self._chunks: list[bytes] = []
        self._max_bytes = max_bytes
        self._take: Callable[[bytes], object] | None = None  # once the headers are known
        self._decoder: BodyDecoder | None = None

    def receive(self, data: bytes) -> None:
        """Take bytes; raises MalformedResponseError, DecodingError, and what `on_chunk` raises."""
        chunk = self.parser.receive(data)
        if chunk:
            take = self._take = self._take or self._begin()
            take(chunk)

    def _begin(self) -> Callable[[bytes], object]:
        """Return what takes the body."""
        take: Callable[[bytes], object] = self._chunks.append
        if self._on_chunk is not None and self._is_good:
            take = self._on_chunk
        if not is_zstd(self.parser.headers):
            return take
        self._decoder = BodyDecoder(take, self._max_bytes)
        return self._decoder.receive

    @property
    def _is_good(self) -> bool:
        return self.parser.status == 200 and Header.ERROR.lower() not in self.parser.headers

    def answer(self) -> Answer:
        """Return the whole answer."""
        parser, decoder = self.parser, self._decoder
        body_bytes = parser.body_bytes if decoder is None else decoder.decoded_bytes
        return Answer(parser.status, parser.headers, b"".join(self._chunks), body_bytes)


def make_transport(settings: ClientSettings, client_id: str = "") -> Transport:
    """Return a client's transport, whose requests carry `client_id`."""
    headers = {Header.CLIENT_ID: client_id} if client_id else {}
    return Transport(settings.connect_timeout_s, headers, ServerAccess(settings.access))
