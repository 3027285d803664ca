"""Parses one HTTP/1.1 response as its bytes arrive. Pure: bytes in, parts of the body out.

It reads what servers of the Databus protocol send: bodies in chunks (with trailers: a stock
relay that fails in mid-body names the error there, a stock bootstrap server the end of a
phase), of a given length, or up to the end of the connection. Everything else is a
MalformedResponseError that says what was wrong. It never logs: what ends a connection is the
caller's one problem to report.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum, auto

MAX_HEADER_BYTES = 64 << 10
_MAX_CHUNK_LINE_BYTES = 1 << 10

_STATUS_LINE = re.compile(rb"HTTP/1\.[01] (\d{3})(?: .*)?")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?")
_BODILESS = (204, 304)


class MalformedResponseError(Exception):
    """The bytes are not a whole, well-formed response."""


class _Part(Enum):
    """What the next bytes are."""

    STATUS_LINE = auto()
    HEADERS = auto()
    BODY = auto()  # of a known length
    UNTIL_CLOSE = auto()
    CHUNK_SIZE = auto()
    CHUNK = auto()
    CHUNK_END = auto()
    TRAILERS = auto()
    NOTHING = auto()


class ResponseParser:
    """One response. `headers` has lower-case names, and the trailers once they have arrived."""

    def __init__(self, max_body_bytes: int) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body_bytes = 0
        self.is_whole = False
        self.has_begun = False
        self._max_body_bytes = max_body_bytes
        self._unread = bytearray()
        self._header_bytes = 0
        self._left = 0  # bytes of the body, or of the chunk, that are still to come
        self._part = _Part.STATUS_LINE
        self._steps: dict[_Part, Callable[[list[bytes]], bool]] = {
            _Part.STATUS_LINE: self._read_status_line,
            _Part.HEADERS: self._read_header,
            _Part.BODY: self._read_body,
            _Part.UNTIL_CLOSE: self._read_until_close,
            _Part.CHUNK_SIZE: self._read_chunk_size,
            _Part.CHUNK: self._read_body,
            _Part.CHUNK_END: self._read_chunk_end,
            _Part.TRAILERS: self._read_header,
        }

    @property
    def may_be_kept(self) -> bool:
        """Whether another request may follow on the connection."""
        wants_close = self.headers.get("connection", "").lower() == "close"
        # Bytes behind the end belong to no request: what follows cannot be trusted.
        return self.is_whole and not wants_close and not self._unread

    def receive(self, data: bytes) -> bytes:
        """Take bytes of the connection; return the part of the body that they bring.

        Raises MalformedResponseError.
        """
        self.has_begun = True
        if self._part in (_Part.BODY, _Part.CHUNK) and not self._unread and len(data) < self._left:
            # The inside of a large body: passed on without a copy.
            self._left -= len(data)
            self.body_bytes += len(data)
            return data
        self._unread += data
        found: list[bytes] = []
        while not self.is_whole and self._steps[self._part](found):
            pass
        return found[0] if len(found) == 1 else b"".join(found)

    def close(self) -> bool:
        """Say that the connection has ended; return whether the response is whole."""
        if self._part is _Part.UNTIL_CLOSE:
            self._end()
        return self.is_whole

    # Each step reads one part, and returns False when it needs more bytes.

    def _read_status_line(self, _found: list[bytes]) -> bool:
        line = self._line(MAX_HEADER_BYTES)
        if line is None:
            return False
        match = _STATUS_LINE.fullmatch(line)
        if match is None:
            raise MalformedResponseError(f"it begins with {bytes(line[:40])!r}")
        self.status = int(match[1])
        self.headers = {}
        self._header_bytes = 0
        self._part = _Part.HEADERS
        return True

    def _read_header(self, _found: list[bytes]) -> bool:
        line = self._line(MAX_HEADER_BYTES)
        if line is None:
            return False
        self._header_bytes += len(line)
        if self._header_bytes > MAX_HEADER_BYTES:
            raise MalformedResponseError(f"its headers have more than {MAX_HEADER_BYTES} bytes")
        if line:
            self._add_header(line.decode("latin-1"))
        elif self._part is _Part.TRAILERS:
            self._end()
        else:
            self._begin_body()
        return True

    def _add_header(self, line: str) -> None:
        name, colon, value = line.partition(":")
        if not colon or not _HEADER_NAME.fullmatch(name):
            raise MalformedResponseError(f"a line among its headers is {line[:40]!r}")
        name, value = name.lower(), value.strip()
        # A trailer replaces the header that was sent before the value was known.
        if name in self.headers and self._part is _Part.HEADERS:
            value = f"{self.headers[name]},{value}"
        self.headers[name] = value

    def _begin_body(self) -> None:
        coding, length = self.headers.get("transfer-encoding"), self.headers.get("content-length")
        if 100 <= self.status < 200:  # an interim response: the real one follows
            self._part = _Part.STATUS_LINE
        elif self.status in _BODILESS:
            self._end()
        elif coding is not None:
            if coding.lower() != "chunked" or length is not None:
                raise MalformedResponseError(f"its body is {coding!r} of length {length!r}")
            self._part = _Part.CHUNK_SIZE
        elif length is not None:
            self._begin_known_body(length)
        else:
            self._part = _Part.UNTIL_CLOSE

    def _begin_known_body(self, text: str) -> None:
        lengths = {part.strip() for part in text.split(",")}
        length = lengths.pop()
        if lengths or not (length.isascii() and length.isdecimal()):
            raise MalformedResponseError(f"its Content-Length is {text!r}")
        self._left = int(length)
        self._check_size(self._left)
        self._part = _Part.BODY
        if not self._left:
            self._end()

    def _read_body(self, found: list[bytes]) -> bool:
        if not self._unread:
            return False
        piece = bytes(self._unread[: self._left])
        del self._unread[: self._left]
        self._left -= len(piece)
        self._add(piece, found)
        if not self._left:
            if self._part is _Part.BODY:
                self._end()
            else:
                self._part = _Part.CHUNK_END
        return True

    def _read_until_close(self, found: list[bytes]) -> bool:
        self._add(bytes(self._unread), found)
        self._unread.clear()
        return False

    def _read_chunk_size(self, _found: list[bytes]) -> bool:
        line = self._line(_MAX_CHUNK_LINE_BYTES)
        if line is None:
            return False
        match = _CHUNK_SIZE.fullmatch(line)
        if match is None:
            # As when a relay that fails answers a second time, inside the body.
            raise MalformedResponseError(f"where a chunk should begin stands {bytes(line[:40])!r}")
        self._left = int(match[1], 16)
        self._check_size(self.body_bytes + self._left)
        self._part = _Part.CHUNK if self._left else _Part.TRAILERS
        return True

    def _read_chunk_end(self, _found: list[bytes]) -> bool:
        if len(self._unread) < 2:
            return False
        if self._unread[:2] != b"\r\n":
            raise MalformedResponseError("a chunk is longer than its size says")
        del self._unread[:2]
        self._part = _Part.CHUNK_SIZE
        return True

    def _add(self, piece: bytes, found: list[bytes]) -> None:
        self.body_bytes += len(piece)
        self._check_size(self.body_bytes)
        found.append(piece)

    def _check_size(self, size_bytes: int) -> None:
        if size_bytes > self._max_body_bytes:
            raise MalformedResponseError(f"its body has more than {self._max_body_bytes} bytes")

    def _end(self) -> None:
        self.is_whole = True
        self._part = _Part.NOTHING

    def _line(self, max_bytes: int) -> bytearray | None:
        """Return the next line without its end, or None while it has not arrived."""
        end = self._unread.find(b"\n", 0, max_bytes)
        if end < 0:
            if len(self._unread) > max_bytes:
                raise MalformedResponseError(f"a line of it has more than {max_bytes} bytes")
            return None
        line = self._unread[:end]
        del self._unread[: end + 1]
        return line[:-1] if line.endswith(b"\r") else line
