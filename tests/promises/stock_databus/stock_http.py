"""The HTTP of a stock client: one kept connection, requests as its Netty 3 writes them.

The query strings go out as they are, JSON and all. What the client's decoder and body reader
do not take is refused here.
"""

from __future__ import annotations

import gzip
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from tests import PATIENCE_S
from tests.promises.stock_databus.stock_events import StockRefusalError

MAX_LINE_BYTES = 4096  # limits of Netty 3's HttpResponseDecoder
MAX_HEADER_BYTES = 8192
STREAMED = ("/stream", "/bootstrap")  # bodies that are read while they arrive


class ConnectionEndedError(Exception):
    """The server closed the connection between two answers, or could not be reached."""


class AnswerCutError(Exception):
    """The server closed the connection in the middle of an answer."""


@dataclass(frozen=True, slots=True)
class StockAnswer:
    """An answer; header names are lower case, trailers win over headers."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    is_chunked: bool
    chunks: int


class StockConnection:
    """A connection to one server, closed by it or by `close`."""

    def __init__(self, port: int, host_text: str = "localhost/127.0.0.1") -> None:
        """Connect; `host_text` is Java's text of the server's address."""
        self._host = f"{host_text}:{port}"
        try:
            self._socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        except OSError as error:
            raise ConnectionEndedError(f"no connection to {port}: {error}") from error
        self._unread = b""
        self.requests: list[str] = []

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def get(self, target: str) -> StockAnswer:
        """Send a request and return the answer."""
        self.requests.append(target)
        lines = [
            f"GET {target} HTTP/1.1",
            f"Host: {self._host}",
            "Connection: keep-alive",
            "Accept-Encoding: gzip",
            "x-dbus-client-host: client",
            "x-dbus-client-service: UNKNOWN",
        ]
        try:
            self._socket.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
            return self._read_answer(target.partition("?")[0])
        except TimeoutError as error:
            raise StockRefusalError(f"no answer to {target} within {PATIENCE_S} s") from error
        except OSError as error:
            raise ConnectionEndedError(f"the connection is gone: {error}") from error

    def _read_answer(self, path: str) -> StockAnswer:
        if not self._unread:
            self._unread = self._socket.recv(1 << 16)
        if not self._unread:
            raise ConnectionEndedError("closed by the server between two answers")
        start = self._line()
        version, status, *_ = start.split(" ", 2)
        if version != "HTTP/1.1" or not status.isdecimal():
            raise StockRefusalError(f"not an answer: {start!r}")
        headers = self._headers()
        length, is_chunked = headers.get("content-length"), "transfer-encoding" in headers
        if is_chunked:
            if headers["transfer-encoding"].lower() != "chunked" or length is not None:
                raise StockRefusalError(f"a body of unknown length: {headers}")
            body, chunks = self._chunked()
            headers |= self._headers()  # the trailers
        else:
            # Its body reader takes any Content-Length to say that the body is all there.
            if path in STREAMED and length != "0" and "x-dbus-error" not in headers:
                raise StockRefusalError(f"{path} with Content-Length {length} instead of chunks")
            if length is None:
                raise StockRefusalError(f"{path} without a length: it ends with the connection")
            body, chunks = self._exactly(int(length)), 0
        coding = headers.get("content-encoding", "identity")
        if coding == "gzip":  # its pipeline has an inflater
            body = gzip.decompress(body)
        elif coding != "identity":
            raise StockRefusalError(f"{path} is encoded: {coding}")
        return StockAnswer(int(status), headers, body, is_chunked, chunks)

    def _headers(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        size = 0
        while line := self._line():
            size += len(line)
            name, colon, value = line.partition(":")
            if not colon or size > MAX_HEADER_BYTES:
                raise StockRefusalError(f"a header that is none, or too many: {line!r}")
            headers[name.strip().lower()] = value.strip()
        return headers

    def _chunked(self) -> tuple[bytes, int]:
        parts = []
        while size := self._chunk_size():
            parts.append(self._exactly(size))
            if self._exactly(2) != b"\r\n":
                raise StockRefusalError("a chunk that is longer than its size")
        return b"".join(parts), len(parts)

    def _chunk_size(self) -> int:
        line = self._line()
        try:
            return int(line.partition(";")[0].strip(), 16)
        except ValueError:
            raise StockRefusalError(f"not a chunk's size: {line!r}") from None

    def _line(self) -> str:
        while (end := self._unread.find(b"\n")) < 0:
            if len(self._unread) > MAX_LINE_BYTES:
                raise StockRefusalError(f"a line of more than {MAX_LINE_BYTES} bytes")
            self._receive()
        line, self._unread = self._unread[:end], self._unread[end + 1 :]
        return line.rstrip(b"\r").decode("latin-1")

    def _exactly(self, size: int) -> bytes:
        parts = [self._unread]
        count = len(self._unread)
        while count < size:
            self._unread = b""
            self._receive()
            parts.append(self._unread)
            count += len(self._unread)
        whole = b"".join(parts)
        self._unread = whole[size:]
        return whole[:size]

    def _receive(self) -> None:
        try:
            received = self._socket.recv(1 << 20)
        except ConnectionError as error:
            raise AnswerCutError(str(error)) from error
        if not received:
            raise AnswerCutError("closed by the server in the middle of an answer")
        self._unread += received
