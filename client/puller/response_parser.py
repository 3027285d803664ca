"""Reads one HTTP/1.1 response as its bytes arrive. Pure: bytes in, parts of the body out.

h11 parses. It gives the trailers, which tornado's client refuses: a stock relay that fails in
mid-body names the error there, a stock bootstrap server the end of a phase. Nothing is logged
here: what ends a connection is the caller's one problem to report.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import h11

from databus.daemon.http.chunked_body import ChunkedBody, MalformedResponseError

MAX_HEADER_BYTES = 64 << 10
_HEAD_END = b"\r\n\r\n"


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
        # From the end of the headers on, as long as there are plain chunks; h11 reads the rest.
        self._chunks: ChunkedBody | None = None
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
        head_bytes = 0 if self.has_begun else data.find(_HEAD_END) + len(_HEAD_END)
        self.has_begun = True
        body = b""
        # So that h11 knows of the headers, and has seen nothing of the body yet.
        if len(_HEAD_END) <= head_bytes < len(data):
            body, data = self._ask_h11(data[:head_bytes]), data[head_bytes:]
        if self._chunks is not None and data:
            return body + self._take_chunks(self._chunks, data)
        if self._left_bytes and data:
            return body + self._take_body(data)
        return body + self._ask_h11(data)

    def _ask_h11(self, data: bytes) -> bytes:
        try:
            self._connection.receive_data(data)
            return b"".join(self._body_parts())
        except h11.RemoteProtocolError as error:
            raise MalformedResponseError(str(error)) from error

    def _take_chunks(self, chunks: ChunkedBody, data: bytes) -> bytes:
        body, rest = chunks.receive(data)
        self._check_size(self.body_bytes + len(body))
        self.body_bytes += len(body)
        if not rest:
            return body
        self._chunks = None
        return body + self._ask_h11(rest)

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
                self._look_at_form()
                return  # more bytes are needed

    def _look_at_form(self) -> None:
        """Find out whether what is missing of the body can be read without h11."""
        if not self.status or self._connection.trailing_data[0]:
            return
        if "transfer-encoding" in self.headers:
            if not self.body_bytes:
                self._chunks = ChunkedBody()
        elif self.body_bytes:
            length = int(self.headers.get("content-length", 0))
            self._left_bytes = max(0, length - self.body_bytes)

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
