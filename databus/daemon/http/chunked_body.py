"""The plain chunks of a body, as their bytes arrive. Pure: bytes in, parts of the body out.

A relay sends an answer of a megabyte, and each part of an answer that goes on, as one chunk. h11
copies such a chunk three times and makes forty calls for each piece of it that arrives, which costs
more than to read the rows in it. And it needs to know nothing of a chunk to read what follows.
"""

from __future__ import annotations

import re

_BEGIN = re.compile(rb"([0-9A-Fa-f]{1,8})\r\n")
_CUT_BEGIN = re.compile(rb"[0-9A-Fa-f]{1,8}\r?")
_END = b"\r\n"


class MalformedResponseError(Exception):
    """The bytes are not a whole, well-formed response within the limits."""


class ChunkedBody:
    """Reads a body up to the first line that does not begin a plain chunk."""

    def __init__(self) -> None:
        self._left_bytes = 0  # of the chunk that is being read, its end included
        self._cut_begin = b""  # of the next chunk: what has arrived of its first line

    @property
    def is_between(self) -> bool:
        """Whether the bytes so far end with the end of a chunk."""
        return not self._left_bytes and not self._cut_begin

    def receive(self, data: bytes, at: int = 0) -> tuple[bytes, bytes]:
        """Take bytes from `at` on; return what the chunks bring, and the bytes behind them.

        There are such bytes only from the begin of another line on: of the last chunk, which has
        no bytes, of a chunk with an extension, or of no chunk. Raises MalformedResponseError for
        a chunk without its end.
        """
        if self._cut_begin:
            data, at, self._cut_begin = self._cut_begin + data[at:], 0, b""
        parts: list[bytes] = []
        while at < len(data):
            if not self._left_bytes:
                begin = _BEGIN.match(data, at)
                size_bytes = 0 if begin is None else int(begin[1], 16)
                if begin is None or not size_bytes:
                    break
                at, self._left_bytes = begin.end(), size_bytes + len(_END)
            at = self._take(data, at, parts)
        rest = data[at:]
        if _CUT_BEGIN.fullmatch(rest):
            self._cut_begin, rest = rest, b""
        return b"".join(parts), rest

    def _take(self, data: bytes, at: int, parts: list[bytes]) -> int:
        """Take bytes of a chunk, and of its end; return where they end."""
        if (body_bytes := self._left_bytes - len(_END)) > 0:
            part = data[at : at + body_bytes]
            parts.append(part)
            at += len(part)
            self._left_bytes -= len(part)
        if self._left_bytes <= len(_END):
            end = data[at : at + self._left_bytes]
            if not _END[-self._left_bytes :].startswith(end):
                raise MalformedResponseError(f"malformed chunk footer: {end!r}")
            at += len(end)
            self._left_bytes -= len(end)
        return at
