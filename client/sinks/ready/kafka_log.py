"""What librdkafka logs: a broker that is away gives a few lines, not hundreds in a second.

Code of isolated sinks prints whatever it likes, so `isolated/output.py` counts its lines. Here it
is known what a line says: each is logged, but not again and again.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

log = logging.getLogger(__name__)

EVERY_S = 30.0
MOST_KINDS = 1000
# What differs between lines that say the same: names of connections, times and counts.
_CLIENT = re.compile(r"\brdkafka#\w+-\d+")
_AMOUNT = re.compile(
    r"\d+(?=ms\b| (?:identical|in-flight|retry-queued|out-queue|partially-sent)\b)"
)
_MORE = re.compile(r", \d+ identical error\(s\) suppressed")


class Line(NamedTuple):
    """What is logged."""

    level: int
    text: str


class RepeatedLines:
    """Lets a line pass once in 30 seconds, and counts those that say the same. Pure."""

    def __init__(self) -> None:
        # The kinds that have passed lately, the oldest first.
        self._since_s: dict[str, float] = {}
        self._left_out: dict[str, int] = {}
        self._passed: dict[str, Line] = {}

    def take(self, line: Line, now_s: float) -> Iterator[Line]:
        """Yield how many lines were left out, where it is time to say so, and the line, or not."""
        yield from self._forget(now_s)
        kind = _kind(line.text)
        if kind in self._since_s:
            self._left_out[kind] += 1
            return
        self._since_s[kind], self._left_out[kind], self._passed[kind] = now_s, 0, line
        yield line

    def _forget(self, now_s: float) -> Iterator[Line]:
        while self._since_s:
            kind = next(iter(self._since_s))
            is_due = now_s >= self._since_s[kind] + EVERY_S
            if not is_due and len(self._since_s) < MOST_KINDS:
                return
            del self._since_s[kind]
            count, line = self._left_out.pop(kind), self._passed.pop(kind)
            if count:
                yield Line(line.level, f"({count} more lines, not logged, as: {line.text})")


class LibraryLog:
    """The `logger` of librdkafka's clients, which call nothing of it but `log`. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines = RepeatedLines()

    def log(self, level: int, message: str, *args: object) -> None:
        """Log a line, if it is not one of many."""
        with self._lock:
            lines = list(self._lines.take(Line(level, message % args), time.monotonic()))
        for line in lines:
            log.log(line.level, "%s", line.text)


def _kind(text: str) -> str:
    """Return what all lines have that say the same."""
    return _AMOUNT.sub("N", _MORE.sub("", _CLIENT.sub("rdkafka", text)))
