"""The gate between a ring and its log: what the log has not got durably stays in the ring.

The ring's writer waits here, and so does the database behind it. Nobody loses a window, however
slow the log's disk is. Positions are the ring's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from databus.relay.clock import Clock
from databus.relay.ring.room import WaitEndedError

_LOOK_EVERY_S = 0.1  # whether the wait is over for another reason


class LogGate:
    """Opens as the log becomes durable. Thread-safe."""

    def __init__(
        self, is_ended: Callable[[], bool], on_wait: Callable[[], None], clock: Clock
    ) -> None:
        """`is_ended` says that the ring's writer is to do something else.

        `on_wait` is called while it waits; it must not block.
        """
        self._is_ended = is_ended
        self._on_wait = on_wait
        self._clock = clock
        self._changed = threading.Condition()
        self._durable = -1
        self._waited_s = 0.0
        self._since_s: float | None = None

    @property
    def waiting_s(self) -> float | None:
        """For how long the ring's writer has been waiting; None if it is not."""
        since_s = self._since_s
        return None if since_s is None else self._clock.monotonic_s() - since_s

    @property
    def waited_s(self) -> float:
        """Time that the ring's writer has spent waiting, all in all."""
        return self._waited_s + (self.waiting_s or 0.0)

    def is_open(self, position: int) -> bool:
        """Return whether everything before a position may be evicted."""
        return position <= self._durable

    def wait_for(self, position: int) -> None:
        """Return once everything before a position may be evicted; raise WaitEndedError."""
        if position > self._durable:
            self.wait_until(lambda: position <= self._durable)

    def wait_until(self, is_done: Callable[[], bool]) -> None:
        """Return once something is done, after which `open_to` is called; raise WaitEndedError."""
        began_s = self._since_s = self._clock.monotonic_s()
        try:
            with self._changed:
                while not is_done():
                    if self._is_ended():
                        raise WaitEndedError
                    self._on_wait()
                    self._changed.wait(_LOOK_EVERY_S)
        finally:
            self._since_s = None
            self._waited_s += self._clock.monotonic_s() - began_s

    def open_to(self, position: int) -> None:
        """Let everything before a position go."""
        with self._changed:
            self._durable = max(self._durable, position)
            self._changed.notify_all()
