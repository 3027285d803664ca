"""The process that runs the code of a sink: it makes the calls that its parent sends.

The first message is a `Task`. Then come pairs (name of a call, argument); those with changes have
no answer, they are for the `write` that follows.
"""

from __future__ import annotations

import gc
import logging
import pickle
import select
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from databus.client.sinks.contract import Change, HasUniqueKeys, Sink
from databus.client.sinks.isolated.answers import (
    OUT_OF_MEMORY,
    Facts,
    answer_of,
    error_answer,
)
from databus.client.sinks.isolated.changes import decoded, opening_of
from databus.client.sinks.isolated.ends import Limits
from databus.client.sinks.isolated.frames import FrameSocket
from databus.client.sinks.isolated.own_limits import (
    lift_memory_limit,
    limit_cpu,
    limit_this_process,
)
from databus.client.sinks.loading import MakeSink, says, sink_maker

_MOST_BYTES = (1 << 32) - 1  # its parent sends what it likes
_IDLE_S = 60.0


class Task(NamedTuple):
    """Which sink it is."""

    kind: str
    options: dict[str, Any]
    file: str | None  # the settings file: relative paths in options are relative to it
    path: list[str]  # where modules are, as its parent looks for them
    log_level: int


class Worker:
    """Makes calls, one after the other, until its parent closes the connection."""

    def __init__(self, calls: socket.socket, limits: Limits) -> None:
        self._calls, self._limits = FrameSocket(calls, _MOST_BYTES), limits
        self._raw = calls
        self._made: MakeSink | None = None
        self._sink: Sink | None = None
        self._coming: list[Change] = []
        self._written: list[Change] = []  # since the last flush
        self._acts: dict[str, Callable[[Any], Any]] = {
            "load": lambda _: self._facts(),
            "open": lambda values: self._opened().open(opening_of(values)),
            "unique_keys": self._unique_keys,
            "write": lambda _: self._write(),
            "flush": lambda _: self._flush(),
            "close": lambda _: None if self._sink is None else self._sink.close(),
        }

    def run(self) -> int:
        """Run until the end; return the exit code."""
        limit_this_process(self._limits)
        limit_cpu(self._limits.cpu_s)
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        try:
            self._task = Task(*pickle.loads(self._calls.receive()))
            sys.path[:] = self._task.path
            logging.basicConfig(level=self._task.log_level, format="%(levelname)s %(message)s")
            while self._call():
                pass
        except EOFError:
            return 0
        except MemoryError:
            self._tell_out_of_memory()
            return 1
        return 0

    def _call(self) -> bool:
        """Make the next call; return whether there may be more."""
        is_there = False
        while not is_there:
            limit_cpu(self._limits.cpu_s)
            is_there = bool(select.select([self._raw], (), (), _IDLE_S)[0])
        name, argument = pickle.loads(self._calls.receive())
        if name == "changes":
            self._take(argument)
            return True
        try:
            answer = answer_of(self._acts[name](argument))
        except MemoryError:
            raise
        except BaseException as error:  # sys.exit() of the user, too
            answer = error_answer(error, self._written)
        self._calls.send(answer)
        return bool(name != "close")

    def _take(self, message: bytes) -> None:
        # Looking for cycles among a thousand new changes takes longer than making them.
        gc.disable()
        self._coming += decoded(message)
        gc.enable()

    def _maker(self) -> MakeSink:
        if self._made is None:
            task = self._task
            file = None if task.file is None else Path(task.file)
            self._made = sink_maker(task.kind, task.options, file)
        return self._made

    def _opened(self) -> Sink:
        if self._sink is None:
            self._sink = self._maker()()
        return self._sink

    def _facts(self) -> Facts:
        make = self._maker()
        return Facts(*(says(make, name) for name in Facts._fields))

    def _unique_keys(self, source: str) -> Any:
        sink = self._opened()
        return sink.unique_keys(source) if isinstance(sink, HasUniqueKeys) else ()

    def _write(self) -> None:
        changes, self._coming = self._coming, []
        self._written += changes
        self._opened().write(changes)

    def _flush(self) -> Any:
        durable = self._opened().flush()
        self._written = []
        return durable

    def _tell_out_of_memory(self) -> None:
        # The few bytes that this takes may be missing.
        lift_memory_limit()
        self._calls.send(OUT_OF_MEMORY)
