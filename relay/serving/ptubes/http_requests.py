"""Cuts the bytes of a connection into HTTP requests. No sockets.

The stock client sends no `Host` header, which HTTP/1.1 asks for and ready-made parsers insist on.
Nothing of a request is believed to be short: its line, its headers and its body have limits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

MOST_LINE_BYTES = 4096
MOST_HEADER_BYTES = 8192
_HEAD_END = b"\r\n\r\n"
_LINE = re.compile(rb"([A-Z]{1,16}) ([\x21-\x7e]+) HTTP/1\.([01])")
_NAME = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_LENGTH = re.compile(r"[0-9]{1,12}")


class BadRequestError(Exception):
    """What came is not a request that is served; the text says why. The connection is over."""


class Request(NamedTuple):
    """One request; header names are in lower case."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    keeps_alive: bool


class _Head(NamedTuple):
    method: str
    target: str
    headers: Mapping[str, str]
    body_bytes: int
    keeps_alive: bool


class RequestParser:
    """Takes bytes as they come and hands out whole requests."""

    def __init__(self, most_body_bytes: int) -> None:
        self._most_body_bytes = most_body_bytes
        self._data = bytearray()
        self._head: _Head | None = None

    @property
    def held_bytes(self) -> int:
        """The bytes that wait for the rest of their request."""
        return len(self._data)

    def receive(self, chunk: bytes) -> None:
        """Take the next bytes."""
        self._data += chunk

    def next_request(self) -> Request | None:
        """Return the next whole request; None until it is there. Raises BadRequestError."""
        if self._head is None:
            self._head = self._take_head()
        head = self._head
        if head is None or len(self._data) < head.body_bytes:
            return None
        self._head = None
        body = bytes(self._data[: head.body_bytes])
        del self._data[: head.body_bytes]
        return _request(head, body)

    def _take_head(self) -> _Head | None:
        end = self._data.find(_HEAD_END, 0, MOST_LINE_BYTES + MOST_HEADER_BYTES + 8)
        if end < 0:
            first = self._data.find(b"\r\n", 0, MOST_LINE_BYTES + 2)
            if first < 0 and len(self._data) > MOST_LINE_BYTES:
                raise BadRequestError(f"a request line is longer than {MOST_LINE_BYTES} bytes")
            if len(self._data) > MOST_LINE_BYTES + MOST_HEADER_BYTES:
                raise BadRequestError(f"headers are longer than {MOST_HEADER_BYTES} bytes")
            return None
        line, *fields = bytes(self._data[:end]).split(b"\r\n")
        if len(line) > MOST_LINE_BYTES:
            raise BadRequestError(f"a request line is longer than {MOST_LINE_BYTES} bytes")
        if end - len(line) > MOST_HEADER_BYTES:
            raise BadRequestError(f"headers are longer than {MOST_HEADER_BYTES} bytes")
        head = self._read_head(line, fields)
        del self._data[: end + len(_HEAD_END)]
        return head

    def _read_head(self, line: bytes, fields: list[bytes]) -> _Head:
        found = _LINE.fullmatch(line)
        if found is None:
            raise BadRequestError("no HTTP/1.1 request begins here")
        headers = _headers(fields)
        if "transfer-encoding" in headers:
            raise BadRequestError("a body comes with content-length here, not in chunks")
        length = headers.get("content-length", "0")
        if not _LENGTH.fullmatch(length):
            raise BadRequestError("content-length is not a number")
        if int(length) > self._most_body_bytes:
            raise BadRequestError(
                f"a body of {int(length)} bytes is longer than {self._most_body_bytes} "
                "(ptubes.max_request_bytes)"
            )
        wish = headers.get("connection", "keep-alive" if found[3] == b"1" else "close")
        keeps_alive = "close" not in wish.lower()
        return _Head(found[1].decode(), found[2].decode(), headers, int(length), keeps_alive)


def _headers(fields: list[bytes]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for field in fields:
        name, colon, value = field.partition(b":")
        if not colon or not _NAME.fullmatch(name):
            raise BadRequestError("a header is no NAME: VALUE")
        key = name.decode().lower()
        if key in headers and key in ("content-length", "transfer-encoding", "host", "origin"):
            raise BadRequestError(f"header {key} comes twice")
        headers[key] = value.strip().decode("latin-1")
    return headers


def _request(head: _Head, body: bytes) -> Request:
    try:
        target = urlsplit(head.target)
        query = {name: values[-1] for name, values in parse_qs(target.query).items()}
    except ValueError:
        raise BadRequestError("the request's target is no path") from None
    return Request(head.method, target.path, query, head.headers, body, head.keeps_alive)


def response_bytes(
    body: bytes,
    content_type: str = "text/plain; charset=UTF-8",
    headers: Mapping[str, str] = {},
    *,
    status: str = "200 OK",
    keeps_alive: bool = True,
) -> bytes:
    """Return a response's bytes. Never compressed: the stock client could not read it."""
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {content_type}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {_one_line(value)}" for name, value in headers.items()]
    lines.append(f"Connection: {'keep-alive' if keeps_alive else 'close'}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + body


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)[:1000]
