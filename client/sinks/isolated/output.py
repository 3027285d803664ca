"""What the code of a sink prints: lines for the log, and not more than anybody reads."""

from __future__ import annotations

import logging
import select
import threading
import time
from collections.abc import Iterator
from typing import IO

from databus.client.sinks.isolated.texts import shown

log = logging.getLogger(__name__)

MOST_LINES = 100
EVERY_S = 10.0
_MOST_CHARS = 1000
_CHUNK = 1 << 16
_LOOK_MS = 200
# Between two reads of one that prints too much: it waits, and no other sink does.
_PAUSE_S = 0.01
_END_S = 1.0  # of one that prints without end


class PrintedLines:
    """Cuts bytes into lines, and lets a hundred pass in ten seconds. Pure."""

    def __init__(self) -> None:
        self._rest = b""
        self._since_s = float("-inf")
        self._passed = self._dropped = 0

    @property
    def is_full(self) -> bool:
        """Whether lines are dropped now."""
        return self._passed >= MOST_LINES

    def take(self, data: bytes, now_s: float) -> Iterator[str]:
        """Yield lines to log, and how many were dropped before."""
        yield from self._begin_anew(now_s)
        *lines, self._rest = (self._rest + data).split(b"\n")
        # A line without an end does not take memory without end.
        self._rest = self._rest[:_MOST_CHARS]
        for line in lines:
            if self.is_full:
                self._dropped += 1
                continue
            self._passed += 1
            yield _text(line)

    def end(self) -> Iterator[str]:
        """Yield what is left."""
        if self._rest:
            yield _text(self._rest)
        yield from self._begin_anew(float("inf"))

    def _begin_anew(self, now_s: float) -> Iterator[str]:
        if now_s < self._since_s + EVERY_S:
            return
        if self._dropped:
            yield f"({self._dropped} lines more, which are not logged)"
        self._since_s, self._passed, self._dropped = now_s, 0, 0


def _text(line: bytes) -> str:
    return shown(line.decode(errors="replace"), _MOST_CHARS)


class OutputLog:
    """Logs what comes out of a pipe, on a thread, until its end."""

    def __init__(self, name: str, pipe: IO[bytes]) -> None:
        self._name, self._pipe = name, pipe
        self._end_s = float("inf")
        self._thread = threading.Thread(
            target=self._run, name=f"databus-sink-{name}-output", daemon=True
        )
        self._thread.start()

    def end(self) -> None:
        """Log what is there, and close the pipe; do not wait for more."""
        self._end_s = time.monotonic() + _END_S
        self._thread.join()

    @property
    def _is_ending(self) -> bool:
        return self._end_s < float("inf")

    def _run(self) -> None:
        lines = PrintedLines()
        poller = select.poll()
        poller.register(self._pipe, select.POLLIN)
        with self._pipe:
            while True:
                if not poller.poll(_LOOK_MS):
                    if self._is_ending:
                        break
                    continue
                data = self._pipe.read(_CHUNK)
                if not data or time.monotonic() > self._end_s:
                    break
                self._log(lines.take(data, time.monotonic()))
                if lines.is_full:
                    time.sleep(_PAUSE_S)
            self._log(lines.end())

    def _log(self, lines: Iterator[str]) -> None:
        for line in lines:
            log.warning("%s: %s", self._name, line)
