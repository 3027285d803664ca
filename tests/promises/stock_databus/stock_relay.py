"""A stand-in for LinkedIn's relay: serves events out of recordings, as its Netty 3 writes them.

Bodies are chunked, an empty one has `Content-Length: 0`, errors have full class names and status
500. A request in `script` is answered as that says, and not from the recording: ends and errors
in the middle of a body.
"""

from __future__ import annotations

import json
import socket
import socketserver
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import unquote

from tests.promises.stock_databus.stock_events import StockEvent, cut_events

SCN_NOT_FOUND = "com.linkedin.databus.core.ScnNotFoundException"
_REQUEST = "com.linkedin.databus2.core.container.request."
CHUNK_BYTES = 700  # so that chunks end inside events


@dataclass(frozen=True, slots=True)
class Recording:
    """What a stock relay sent, and what it was asked for."""

    sources: bytes
    register: bytes
    register4: bytes
    streams: Mapping[int, bytes]  # by maxev


class Connection(socketserver.StreamRequestHandler):
    """One client's connection."""

    server: StockRelayServer

    def handle(self) -> None:
        """Answer requests until the client or the test ends the connection."""
        relay = self.server.relay
        relay.opened(self.request)
        try:
            while (target := self._read_request()) and relay.answer(self, target):
                pass
        except OSError:  # the test stopped the relay
            return
        finally:
            relay.closed(self.request)

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.wfile.write(data)
        self.wfile.flush()

    def send_head(self, status: str = "200 OK", **headers: str) -> None:
        """Send the status line and the headers of a stock relay."""
        lines = [
            f"HTTP/1.1 {status}",
            "Content-Type: text/plain; charset=UTF-8",
            "Access-Control-Allow-Origin: *",
            "x-dbus-server-host: server",
            *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items()),
        ]
        self.send(("\r\n".join(lines) + "\r\n\r\n").encode())

    def send_chunk(self, data: bytes) -> None:
        """Send one chunk."""
        self.send(b"%x\r\n%s\r\n" % (len(data), data))

    def send_body(self, body: bytes, status: str = "200 OK", **headers: str) -> None:
        """Send a whole answer: in chunks, or empty."""
        if not body:
            self.send_head(status, **headers, Content_Length="0")
            return
        self.send_head(status, **headers, Transfer_Encoding="chunked")
        for at in range(0, len(body), CHUNK_BYTES):
            self.send_chunk(body[at : at + CHUNK_BYTES])
        self.send(b"0\r\n\r\n")

    def send_error(self, error: str, message: str, cause: str | None = None) -> None:
        """Send an error, with status 500 whatever it is."""
        headers = {"x_dbus_error": error, "x_dbus_error_message": message}
        if cause:
            headers |= {"x_dbus_error_cause": cause}
            headers |= {"x_dbus_error_cause_message": "No message provided"}
        body = json.dumps({"error": error, "message": message}, separators=(",", ":")).encode()
        self.send_body(body, "500 Internal Server Error", **headers)

    def _read_request(self) -> str:
        line = self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return line.decode("latin-1").split(" ")[1] if line else ""


# Answers a /stream request that has a body; False ends the connection.
Act = Callable[[Connection, bytes], bool]


class StockRelayServer(socketserver.ThreadingTCPServer):
    """The listening socket of a stock relay."""

    allow_reuse_address = True
    daemon_threads = False
    relay: StockRelay


class StockRelay:
    """A relay of the recorded windows; use it as a context manager."""

    def __init__(self, recording: Recording, port: int = 0) -> None:
        self.recording = recording
        self.gone_scn = -1  # the newest SCN that is no longer held
        self.held_scn = 1 << 62  # the newest SCN that is held already
        self.script: deque[Act] = deque()
        self.requests: list[tuple[str, dict[str, str]]] = []
        self._port = port
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Listen."""
        self._server = StockRelayServer(("127.0.0.1", self._port), Connection)
        self._server.relay = self
        self._port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def stop(self) -> None:
        """Close the port and, at once, every connection."""
        self._server.shutdown()
        self._thread.join()
        with self._lock:
            for connection in self._connections:
                with suppress(OSError):  # the peer has closed it
                    connection.shutdown(socket.SHUT_RDWR)
        self._server.server_close()  # waits for the connections' threads

    def opened(self, connection: socket.socket) -> None:
        """Note a connection."""
        with self._lock:
            self._connections.add(connection)

    def closed(self, connection: socket.socket) -> None:
        """Forget a connection."""
        with self._lock:
            self._connections.discard(connection)

    def paths(self) -> list[str]:
        """Return the paths asked for so far."""
        return [path for path, _ in self.requests]

    def answer(self, to: Connection, target: str) -> bool:
        """Answer a request; False ends the connection."""
        path, _, query = target.partition("?")
        pairs = (part.partition("=") for part in query.split("&") if part)
        asked = {name: unquote(value.replace("+", " ")) for name, _, value in pairs}
        self.requests.append((path, asked))
        if path == "/stream":
            return self._stream(to, asked)
        if path == "/sources":
            to.send_body(self.recording.sources)
        elif path == "/register":
            version = asked.get("protocolVersion", "3")
            recording = self.recording
            body = recording.register4 if version == "4" else recording.register
            to.send_body(body, x_dbus_protocol_version=version)
        else:
            name = path.strip("/")
            to.send_error(f"{_REQUEST}UnknownCommandException", f"Unknown databus command: {name}")
        return True

    def _stream(self, to: Connection, asked: Mapping[str, str]) -> bool:
        since = _checkpoint_of(asked)
        if asked.get("streamFromLatestScn") == "true":  # sends the newest window again
            since = {"windowScn": self._newest_scn(asked), "windowOffset": 0}
        if 0 <= since["windowScn"] < self.gone_scn:
            to.send_error(f"{_REQUEST}RequestProcessingException", SCN_NOT_FOUND, SCN_NOT_FOUND)
            return True
        body, pending_bytes = self._body(since, asked)
        if body and self.script:
            return self.script.popleft()(to, body)
        headers = {"x_dbus_pending_event_size": str(pending_bytes)} if pending_bytes else {}
        to.send_body(body, **headers)
        return True

    def _newest_scn(self, asked: Mapping[str, str]) -> int:
        held = self._events_after(-1, -1, int(asked.get("maxev", "0")))
        return max((event.scn for event, _ in held), default=-1)

    def _body(self, since: Mapping[str, int], asked: Mapping[str, str]) -> tuple[bytes, int]:
        """Return the events of an answer, and the size of an event that does not fit."""
        wanted, size = _selection(asked), int(asked["size"])
        events = self._events_after(
            since["windowScn"], since["windowOffset"], int(asked.get("maxev", "0"))
        )
        body = b""
        for event, data in events:
            if not event.is_control and not wanted(event):
                continue
            if len(body) + len(data) > size:
                return body, 0 if body else len(data)
            body += data
        return body, 0

    def _events_after(
        self, scn: int, offset: int, max_version: int
    ) -> Iterator[tuple[StockEvent, bytes]]:
        count = 0
        for event, data in cut_events(self.recording.streams[max_version]):
            if not self.gone_scn < event.scn <= self.held_scn or event.scn < scn:
                continue
            count += event.scn == scn
            if event.scn == scn and (offset < 0 or count <= offset):
                continue
            yield event, data


def _checkpoint_of(asked: Mapping[str, str]) -> dict[str, int]:
    text = asked.get("checkPoint")
    if text is None:
        (text,) = json.loads(asked["checkPointMult"]).values()
    fields: dict[str, int] = json.loads(text)
    return fields


def _selection(asked: Mapping[str, str]) -> Callable[[StockEvent], bool]:
    """Return which rows a request asks for."""
    if "subs" in asked:
        subscribed = {one["logicalPartition"]["source"]["id"] for one in json.loads(asked["subs"])}
    else:
        subscribed = set(map(int, asked["sources"].split(",")))
    filters = {int(key): one for key, one in json.loads(asked.get("filters", "{}")).items()}
    return lambda event: event.src_id in subscribed and _matches(filters.get(event.src_id), event)


def _matches(one: dict[str, Any] | None, event: StockEvent) -> bool:
    if one is None or one["partitionType"] == "NONE":
        return True
    number = event.key if isinstance(event.key, int) else _number(event.key)
    if one["partitionType"] == "MOD":
        return any(
            part["bktRange"]["start"] <= abs(number) % part["numBuckets"] < part["bktRange"]["end"]
            for part in one["filters"]
        )
    return any(
        part["keyRange"]["start"] <= number < part["keyRange"]["end"] for part in one["filters"]
    )


def _number(key: bytes) -> int:
    """Return Java's `Long.parseLong` of a key, or its `String.hashCode`."""
    text = key.decode()
    try:
        return int(text)
    except ValueError:
        code = 0
        for at in range(0, len(units := text.encode("utf-16-be")), 2):
            code = (31 * code + int.from_bytes(units[at : at + 2])) & 0xFFFFFFFF
        return code - (1 << 32) if code >> 31 else code
