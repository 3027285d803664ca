"""The listening side of every HTTP daemon, with limits on number and time of connections.

A connection beyond a limit is answered in one packet and closed before it costs anything: no
stream, no handshake, no parser. A connection that has not sent a whole request is closed after
some seconds, or earlier if another one needs its place. So silent connections keep no client out.
All of these are counted, for `/metrics`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import re
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPHeaders, HTTPMessageDelegate, RequestStartLine, ResponseStartLine
from tornado.ioloop import IOLoop
from tornado.iostream import IOStream

from databus.conf.settings import HttpSettings
from databus.daemon.http.sending import SLICE_BYTES
from databus.daemon.tls import server_context
from databus.schemas.error_headers import full_name
from databus.schemas.errors import DatabusError, SettingsError
from databus.schemas.protocol import Header

log = logging.getLogger(__name__)

MOST_ACCEPTED = 64  # in one turn of the loop
REST_S = 0.2  # pause of accepting without a free descriptor or memory
ALL, OF_ONE = "max_connections", "max_connections_per_client"
DESCRIPTORS, SLOW = "descriptors", "request_s"
_ABSOLUTE = re.compile(r"https?://(?P<host>[^/?]+)(?P<path>.*)", re.IGNORECASE)
_TOO_MANY = (
    "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n"
    f"{Header.ERROR}: {full_name(DatabusError.wire_name)}\r\n"
    f"{Header.ERROR_MESSAGE}: too many connections; see http.%s\r\n\r\n"
).encode()


class BoundedServer(HTTPServer):
    """An HTTP server that refuses connections beyond a limit."""

    def initialize(
        self,
        *args: Any,
        max_connections: int = 1000,
        max_connections_per_client: int = 300,
        request_s: float = 20.0,
        **options: Any,
    ) -> None:
        """Set limits beside tornado's arguments: connections in total and of one client.

        `request_s` is the time in which a new connection must send its first request.
        """
        super().initialize(*args, **options)
        self.most, self._most_of_one = max_connections, max_connections_per_client
        self._request_s = request_s
        self._by_client: Counter[str] = Counter()
        self._unheard: dict[IOStream, asyncio.TimerHandle] = {}  # the oldest first
        self._dropped: set[IOStream] = set()  # closed, but `on_close` was not called yet
        self.turned_away = Counter({ALL: 0, OF_ONE: 0, DESCRIPTORS: 0, SLOW: 0})

    def add_sockets(self, sockets: Iterable[socket.socket]) -> None:
        """Accept connections on these sockets."""
        for sock in sockets:
            self._sockets[sock.fileno()] = sock
            self._handlers[sock.fileno()] = partial(IOLoop.current().remove_handler, sock)
            self._accept_from(sock)

    def _accept_from(self, sock: socket.socket) -> None:
        if sock.fileno() >= 0:  # else it was closed meanwhile
            IOLoop.current().add_handler(sock, self._accept, IOLoop.READ)

    def _accept(self, sock: socket.socket, _events: int) -> None:
        for _ in range(MOST_ACCEPTED):
            if sock.fileno() < 0:
                return
            try:
                connection, address = sock.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                self._rest(sock, error)
                return
            self._take(connection, address)

    def _rest(self, sock: socket.socket, error: OSError) -> None:
        """Stop accepting for a moment; open connections are served meanwhile."""
        if not self.turned_away[DESCRIPTORS]:
            log.error("no connection can be accepted just now (%s); those open are served", error)
        self.turned_away[DESCRIPTORS] += 1
        IOLoop.current().remove_handler(sock)
        IOLoop.current().call_later(REST_S, self._accept_from, sock)

    def _take(self, connection: socket.socket, address: Any) -> None:
        address = address or ("", 0)  # of a Unix socket
        if self._by_client[address[0]] >= self._most_of_one:
            self._turn_away(connection, OF_ONE)
        elif self.open_connections >= self.most and not self._make_room():
            self._turn_away(connection, ALL)
        else:
            self._handle_connection(connection, address)

    def _make_room(self) -> bool:
        """Close the oldest connection without a request; return whether there was one."""
        silent = next(iter(self._unheard), None)
        if silent is not None:
            self._drop(silent, ALL)
        return silent is not None

    def _turn_away(self, connection: socket.socket, limit: str) -> None:
        self.turned_away[limit] += 1
        connection.setblocking(False)
        with connection, contextlib.suppress(OSError):
            if self.ssl_options is None:  # with TLS, an answer would need the handshake first
                connection.send(_TOO_MANY % limit.encode())
            connection.shutdown(socket.SHUT_WR)
            # Closing with unread bytes sends RST, and the client would lose the answer.
            connection.recv(SLICE_BYTES)

    def handle_stream(self, stream: IOStream, address: tuple[Any, ...]) -> None:
        """Serve a new connection, and start the timer of its first request."""
        self._by_client[address[0]] += 1
        loop = asyncio.get_running_loop()
        self._unheard[stream] = loop.call_later(self._request_s, self._drop, stream, SLOW)
        super().handle_stream(stream, address)

    def start_request(self, server_conn: Any, request_conn: Any) -> HTTPMessageDelegate:
        """Read a request."""
        delegate = super().start_request(server_conn, request_conn)
        is_first = server_conn.stream in self._unheard
        hear = partial(self._hear, server_conn.stream) if is_first else None
        return _RequestReader(delegate, hear)

    def _hear(self, stream: IOStream) -> None:
        timer = self._unheard.pop(stream, None)
        if timer is not None:
            timer.cancel()

    def _drop(self, stream: IOStream, limit: str) -> None:
        self._hear(stream)
        self.turned_away[limit] += 1
        self._dropped.add(stream)
        stream.close()

    def on_close(self, server_conn: object) -> None:
        """Forget a connection."""
        super().on_close(server_conn)
        connection: Any = server_conn
        self._hear(connection.stream)
        self._dropped.discard(connection.stream)
        at_close: Callable[[], None] | None = getattr(connection.context, "at_close", None)
        if at_close is not None:
            at_close()
        client = connection.context.address[0]
        self._by_client[client] -= 1
        if not self._by_client[client]:
            del self._by_client[client]

    @property
    def open_connections(self) -> int:
        """The number of open connections."""
        return len(self._connections) - len(self._dropped)

    async def drain(self, deadline_s: float) -> None:
        """Close idle connections at once, the others after their answer.

        Call after `stop`. Connections that are open at the deadline are cut; their handlers end
        at their next step.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + deadline_s
        while self._connections and loop.time() < end:
            for connection in self._streams():
                # Reading = waiting for a request; a request in hand is not read from.
                if connection.reading() and not connection.writing():
                    connection.close()
            await asyncio.sleep(0.01)
        # Without waiting in between, so that no handler does more work meanwhile.
        for connection in self._streams():
            connection.close()

    def _streams(self) -> list[IOStream]:
        return [connection.stream for connection in list(self._connections)]


class _RequestReader(HTTPMessageDelegate):
    """Passes a request on: with target and host in standard form, and with a call when whole."""

    def __init__(self, delegate: HTTPMessageDelegate, heard: Callable[[], None] | None) -> None:
        self._delegate = delegate
        self._heard = heard

    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> Awaitable[None] | None:
        if isinstance(start_line, RequestStartLine):
            start_line = in_origin_form(start_line, headers)
        host = headers.get("Host")
        # Before tornado's own check, which refuses a slash.
        if host is not None and "/" in host:
            headers["Host"] = host_of_java(host)
        return self._delegate.headers_received(start_line, headers)

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        return self._delegate.data_received(chunk)

    def finish(self) -> None:
        if self._heard is not None:
            self._heard()
        self._delegate.finish()

    def on_connection_close(self) -> None:
        self._delegate.on_connection_close()


def in_origin_form(start_line: RequestStartLine, headers: HTTPHeaders) -> RequestStartLine:
    """Return a start line with a path, as `http://host/path` is for a proxy (RFC 9112, 3.2.2).

    The target's host takes the place of the Host header, and is checked like one. Without a
    single Host header, the request stays refused.
    """
    found = _ABSOLUTE.fullmatch(start_line.path)
    if found is None:
        return start_line
    if "," not in headers.get("Host", ","):
        headers["Host"] = found["host"]
    path = found["path"]
    return start_line._replace(path=path if path.startswith("/") else f"/{path}")


def host_of_java(text: str) -> str:
    """Return the host and port in the text of a Java socket address; other texts unchanged.

    LinkedIn's client sends `InetSocketAddress.toString()` as its Host header: a host name that
    may be empty, a slash, address and port. Before Java 14 an IPv6 address has no brackets.
    """
    if "," in text:  # several headers, joined: tornado refuses them
        return text
    place = text.rpartition("/")[2]
    address, _, port = place.rpartition(":")
    return f"[{address}]:{port}" if ":" in address and "[" not in address else place


class Connections(Protocol):
    """The connections of a server, or of several."""

    @property
    def most(self) -> int:
        """The most that may be open at once."""
        ...

    @property
    def turned_away(self) -> Mapping[str, int]:
        """The numbers of refused connections, by limit."""
        ...

    @property
    def open_connections(self) -> int:
        """The number of open connections."""
        ...


class ServerMetrics(Collector):
    """A server's connections in Prometheus' form."""

    def __init__(self, server: Connections) -> None:
        self._server = server

    def collect(self) -> Iterator[Metric]:
        """Yield the numbers of open, allowed and refused connections."""
        server = self._server
        for name, text, value in (
            ("connections", "Connections open now", server.open_connections),
            ("max_connections", "Most connections served at once", server.most),
        ):
            yield GaugeMetricFamily(f"databus_http_{name}", text, value)
        away = CounterMetricFamily(
            "databus_http_turned_away", "Connections closed, by the limit", labels=["limit"]
        )
        for limit, count in server.turned_away.items():
            away.add_metric([limit], count)
        yield away


def make_server(application: Any, settings: HttpSettings, max_connections: int) -> BoundedServer:
    """Return a server with the limits and the TLS of the settings, not yet listening.

    Raises SettingsError when certificate and key cannot be used.
    """
    return BoundedServer(
        application,
        max_connections=max_connections,
        max_connections_per_client=settings.max_connections_per_client,
        request_s=settings.request_s,
        ssl_options=server_context(settings),
        max_header_size=settings.max_request_bytes,
        max_body_size=settings.max_request_bytes,
        max_buffer_size=2 * settings.max_request_bytes + SLICE_BYTES,
        idle_connection_timeout=settings.idle_connection_s,
        body_timeout=settings.request_s,
    )


def listen(server: HTTPServer, settings: HttpSettings) -> str:
    """Bind and listen; return the URL. Raises SettingsError with advice."""
    sock = bind(settings)
    server.add_socket(sock)
    return url_of(sock, settings)


def url_of(sock: socket.socket, settings: HttpSettings) -> str:
    """Return the URL of a bound socket."""
    host, port = sock.getsockname()[:2]
    scheme = "https" if settings.tls_cert else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def bind(settings: HttpSettings, port_setting: str = "http.port") -> socket.socket:
    """Bind the address of the settings; raises SettingsError with advice."""
    try:
        return _bind(settings)
    except OSError as error:
        raise SettingsError(explain_bind(settings, error, port_setting)) from error


def _bind(settings: HttpSettings) -> socket.socket:
    # Not tornado's bind_sockets: that one leaks the socket when binding fails.
    family, *_, address = socket.getaddrinfo(
        settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    sock = socket.create_server(address[:2], family=family, backlog=256)
    sock.setblocking(False)
    return sock


def explain_bind(settings: HttpSettings, error: OSError, port_setting: str = "http.port") -> str:
    """Return what is wrong with the address of the settings, with advice."""
    place = f"{settings.host}:{settings.port}"
    if error.errno == errno.EADDRINUSE:
        return (
            f"{place} is in use: stop what listens there, or choose another port ({port_setting})"
        )
    if error.errno == errno.EACCES:
        return f"{place} may not be bound by this user: choose a port above 1023 ({port_setting})"
    return f"cannot listen on {place} (http.host, {port_setting}): {error.strerror or error}"
