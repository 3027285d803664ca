"""Processes that copy memory while they are told to, and know nothing of any relay.

A reader at full speed, and a process that serves it, copy megabytes all the time. What that alone
does to a program beside it, whose caches and cores they share, these processes show.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

from benchmarks.serving_processes.told import processes, tell_all

_BYTES = 32 << 20
_SLICE_BYTES = 1 << 20


class Copiers:
    """Processes that copy."""

    def __init__(self, pipes: list[Connection]) -> None:
        self._pipes = pipes

    def copy(self, seconds: float) -> None:
        """Let all copy for so long."""
        tell_all(self._pipes, seconds)


@contextmanager
def copiers(count: int) -> Iterator[Copiers]:
    """Start so many; end them afterwards."""
    with processes(count, _serve) as pipes:
        yield Copiers(pipes)


def _serve(pipe: Connection) -> None:
    source, target = (memoryview(bytearray(_BYTES)) for _ in range(2))
    while seconds := pipe.recv():
        end_s = time.perf_counter() + seconds
        while time.perf_counter() < end_s:
            for at in range(0, _BYTES, _SLICE_BYTES):
                target[at : at + _SLICE_BYTES] = source[at : at + _SLICE_BYTES]
        pipe.send(None)
