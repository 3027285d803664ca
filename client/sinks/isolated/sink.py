"""A sink whose code runs in a child process: each call is a message, and its answer another."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from databus.client.sinks.contract import Change, Opening, Position
from databus.client.sinks.errors import SinkProcessError, SinkUnavailableError
from databus.client.sinks.isolated.answers import (
    AnswerError,
    Facts,
    read_answer,
    read_facts,
    read_position,
    read_unique_keys,
)
from databus.client.sinks.isolated.changes import encoded, opening_values
from databus.client.sinks.isolated.child import SinkChild
from databus.client.sinks.isolated.ends import End, EndReason, Limits
from databus.client.sinks.isolated.frames import FrameError

_CLOSE_S = 5.0
_START_S = 30.0

Tell = Callable[[End], None]
T = TypeVar("T")


class IsolatedSink:
    """Starts its process when it is opened. Used on one thread; `abort` is for all."""

    def __init__(self, start: Callable[[], SinkChild], limits: Limits, tell: Tell) -> None:
        """`tell` is told when the process ends though it should not."""
        self._start, self._limits, self._tell = start, limits, tell
        self._child: SinkChild | None = None
        self._is_aborted = False
        self._written: list[Change] = []  # since the last flush
        self.keeps_position = self.follows_schemas = False  # known when it is open

    def facts(self) -> Facts:
        """Return what the class says of itself; raise SinkError."""
        return self._checked("load", None, read_facts)

    def open(self, opening: Opening) -> Position | None:
        """Start the process, and open the sink in it; raise SinkError."""
        facts = self.facts()
        self.keeps_position, self.follows_schemas = facts.keeps_position, facts.follows_schemas
        return self._checked("open", opening_values(opening), read_position)

    def unique_keys(self, source: str) -> Sequence[Sequence[str]]:
        """Return the unique keys that the sink knows; raise SinkError."""
        return self._checked("unique_keys", source, read_unique_keys)

    def write(self, changes: Sequence[Change]) -> None:
        """Have changes written; raise SinkError."""
        self._written += changes
        self._checked("write", None, lambda _: None, encoded(changes))

    def flush(self) -> Position | None:
        """Have them made durable; raise SinkError."""
        durable = self._checked("flush", None, read_position)
        self._written = []
        return durable

    def close(self) -> None:
        """Close the sink, and end its process with all that it has started; raise SinkError."""
        child, self._child = self._child, None
        if child is None:
            return
        end_s = time.monotonic() + min(_CLOSE_S, self._limits.call_s)
        answer = b""
        try:
            child.send(("close", None), end_s=end_s)
            answer = child.receive(end_s)
        except (OSError, EOFError, FrameError):
            child.abort()
        child.finish()
        if answer:
            with suppress(AnswerError, MemoryError):
                read_answer(answer, ())

    def abort(self) -> None:
        """Have the process killed: the call that it makes fails. Thread-safe."""
        self._is_aborted = True
        child = self._child
        if child is not None:
            child.abort()

    def _checked(
        self,
        call: str,
        argument: Any,
        read: Callable[[Any], T],
        coming: Iterable[bytes] = (),
    ) -> T:
        """Return the checked answer of a call; raise SinkError."""
        # The first call waits until the process has started.
        start_s = 0.0 if self._child is not None else _START_S
        child = self._running()
        end_s = time.monotonic() + self._limits.call_s + start_s
        try:
            for message in coming:
                child.send(("changes", message), end_s=end_s)
            child.send((call, argument), end_s=end_s)
            return read(read_answer(child.receive(end_s), self._written))
        except TimeoutError as error:
            raise self._ended(call, End(EndReason.TIME)) from error
        except MemoryError as error:
            raise self._ended(call, End(EndReason.MEMORY)) from error
        except (AnswerError, FrameError) as error:
            raise self._ended(call, End(EndReason.ANSWER), f" ({error})") from error
        except (EOFError, OSError) as error:
            raise self._ended(call) from error

    def _running(self) -> SinkChild:
        if self._child is None:
            try:
                self._child = self._start()
            except OSError as error:
                raise SinkUnavailableError(f"its process cannot be started: {error}") from error
        if self._is_aborted:
            self._child.abort()
        return self._child

    def _ended(self, call: str, known: End | None = None, more: str = "") -> SinkProcessError:
        """Kill what is left of the process, and return the error that says how it ended."""
        child, self._child = self._child, None
        assert child is not None
        if known is not None:
            child.abort()
        found = child.finish()
        end = known or found
        if not self._is_aborted:
            self._tell(end)
        return SinkProcessError(f"its process ended in {call}: {end.text(self._limits)}{more}")
