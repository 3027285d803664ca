"""Reads one HTTP/1.1 response as its bytes arrive. Pure: bytes in, parts of the body out.

h11 parses. It gives the trailers, which tornado's client refuses: a stock relay that fails in
mid-body names the error there, a stock bootstrap server the end of a phase. Nothing is logged
here: what ends a connection is the caller's one problem to report.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress

import h11

MAX_HEADER_BYTES = 64 << 10

_CHUNK_BEGIN = re.compile(rb"([0-9A-Fa-f]{1,8})\r\n")


class MalformedResponseError(Exception):
    """The bytes are not a whole, well-formed response within the limits."""


class ResponseParser:
    """One response. `headers` has lower-case names, and the trailers once they have arrived."""

    def __init__(self, connection: h11.Connection, max_body_bytes: int) -> None:
        """Read the answer to the request that `connection` has sent."""
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body_bytes = 0
        self.is_whole = False
        self.has_begun = False
        self._connection = connection
        self._max_body_bytes = max_body_bytes
        self._is_between_chunks = False
        # Of a body with a length, once h11 has read its begin: it would copy all of it twice.
        self._left_bytes = 0
        self._ends_kept = False  # whether the connection lasts behind such a body
        self._is_kept = False

    @property
    def may_be_kept(self) -> bool:
        """Whether another request may follow on the connection."""
        # Bytes behind the end belong to no request: what follows cannot be trusted.
        has_more = bool(self._connection.trailing_data[0])
        is_done = self._connection.their_state is h11.DONE and not has_more
        return self.is_whole and (self._is_kept or is_done)

    def receive(self, data: bytes) -> bytes:
        """Take bytes of the connection; return the part of the body that they bring.

        Raises MalformedResponseError.
        """
        self.has_begun = True
        if self._is_between_chunks and (body := whole_chunks(data)):
            self._check_size(self.body_bytes + len(body))
            self.body_bytes += len(body)
            return body
        if self._left_bytes and data:
            return self._take_body(data)
        try:
            self._connection.receive_data(data)
            return b"".join(self._body_parts())
        except h11.RemoteProtocolError as error:
            raise MalformedResponseError(str(error)) from error

    def _take_body(self, data: bytes) -> bytes:
        """Take bytes of a body of which only a known length is missing."""
        body = data[: self._left_bytes]
        self._left_bytes -= len(body)
        self.body_bytes += len(body)
        if not self._left_bytes:
            self.is_whole = True
            self._is_kept = self._ends_kept and len(body) == len(data)
        return body

    def close(self) -> bool:
        """Say that the connection has ended; return whether the response is whole."""
        # A body without a length lasts until here. Of any other the end is missing.
        with suppress(MalformedResponseError):
            if self.has_begun and not self.is_whole:
                self.receive(b"")
        return self.is_whole

    def _body_parts(self) -> Iterable[bytes]:
        while not self.is_whole:
            event = self._connection.next_event()
            if isinstance(event, h11.Data):
                self._check_size(self.body_bytes + len(event.data))
                self.body_bytes += len(event.data)
                self._is_between_chunks = event.chunk_end
                yield event.data
            elif isinstance(event, h11.Response):
                self.status = event.status_code
                self._add_headers(event.headers)
                self._check_size(int(self.headers.get("content-length", 0)))
                self._ends_kept = event.http_version == b"1.1" and not self._closes
            elif isinstance(event, h11.EndOfMessage):
                # A trailer replaces the header that was sent before the value was known.
                for name, _ in event.headers:
                    self.headers.pop(name.decode("latin-1"), None)
                self._add_headers(event.headers)
                self.is_whole = True
            elif not isinstance(event, h11.InformationalResponse):
                if self._connection.trailing_data[0]:
                    self._is_between_chunks = False
                elif self.body_bytes and "transfer-encoding" not in self.headers:
                    length = int(self.headers.get("content-length", 0))
                    self._left_bytes = max(0, length - self.body_bytes)
                return  # more bytes are needed

    @property
    def _closes(self) -> bool:
        options = self.headers.get("connection", "").lower().split(",")
        return "close" in (option.strip() for option in options)

    def _add_headers(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        for key, text in headers:
            name, value = key.decode("latin-1"), text.decode("latin-1")
            known = self.headers.get(name)
            self.headers[name] = value if known is None else f"{known},{value}"

    def _check_size(self, size_bytes: int) -> None:
        if size_bytes > self._max_body_bytes:
            raise MalformedResponseError(f"its body has more than {self._max_body_bytes} bytes")


def whole_chunks(data: bytes) -> bytes:
    """Return what is in chunks, if the bytes are some of them and nothing else; else b"".

    A relay sends each part of an answer that goes on as one chunk. Mostly it arrives alone, or
    with the next ones. Behind a whole chunk h11 needs to know nothing of the next one, and takes
    much longer to read it.
    """
    found, at = [], 0
    while at < len(data):
        begin = _CHUNK_BEGIN.match(data, at)
        size_bytes = 0 if begin is None else int(begin[1], 16)
        if begin is None or not size_bytes:  # one without bytes ends the body
            return b""
        at = begin.end() + size_bytes + 2
        if data[at - 2 : at] != b"\r\n":
            return b""
        found.append(data[begin.end() : at - 2])
    return found[0] if len(found) == 1 else b"".join(found)
