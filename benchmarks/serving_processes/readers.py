"""Readers at full speed, in processes of their own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from multiprocessing.connection import Connection

from benchmarks.serve import DEFAULT_FETCH_BYTES, TARGET_TEXT, Reader
from benchmarks.serving_processes.told import processes, tell_all

PROCESSES, CONNECTIONS = 2, 4  # eight readers


class Readers:
    """Processes that read while they are told to."""

    def __init__(self, pipes: list[Connection]) -> None:
        self._pipes = pipes

    def read(self, seconds: float) -> float:
        """Let all read for so long; return the bytes a second of all of them."""
        return sum(map(float, tell_all(self._pipes, seconds)))


@contextmanager
def readers_of(url: str) -> Iterator[Readers]:
    """Start the readers of a relay; end them afterwards."""
    with processes(PROCESSES, _serve, url) as pipes:
        yield Readers(pipes)


def _serve(url: str, pipe: Connection) -> None:
    with ExitStack() as opened:
        connections = [opened.enter_context(closing(Reader(url))) for _ in range(CONNECTIONS)]
        while seconds := pipe.recv():
            pipe.send(_read(connections, seconds))


def _read(connections: list[Reader], seconds: float) -> float:
    """Read the oldest windows of the ring again and again; return the bytes a second."""
    size_bytes, begin = 0, time.perf_counter()
    target = TARGET_TEXT % (DEFAULT_FETCH_BYTES, "-1")
    while (spent_s := time.perf_counter() - begin) < seconds:
        for one in connections:
            one.ask(target)
        for one in connections:
            size_bytes += one.get()[1]
    return size_bytes / spent_s
