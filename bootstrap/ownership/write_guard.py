"""Keeps a frozen process from holding a store's write lock for ever: the kernel ends it.

SQLite's lock belongs to the process, and no other one can take it away. So while this process
writes, a timer of the kernel stands by, which a thread puts off again and again. If the process is
stopped, nobody does: the kernel ends it and with it the lock, and the transaction is rolled back.
By then its lease is over. A process that is slow, or waits for a disk, puts the timer off.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

_PUT_OFF = 1 / 8  # of the limit


class Timer(Protocol):
    """See `KillTimer`."""

    def set(self, after_s: float) -> None:
        """Kill this process after so many seconds; 0 = never."""

    def close(self) -> None:
        """Remove the timer."""


class WriteGuard:
    """Ends this process when it stands still for `limit_s` within a `writing` block."""

    def __init__(self, limit_s: float, timer: Timer) -> None:
        """Own the timer."""
        self._limit_s, self._timer = limit_s, timer
        self._lock = threading.Lock()
        self._writes = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="write-guard", daemon=True)

    def start(self) -> None:
        """Begin to put the timer off."""
        self._thread.start()

    def stop(self) -> None:
        """Remove the timer: nothing is written any more, or the process ends."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
        with self._lock:
            self._timer.set(0)
            self._timer.close()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Guard the block; several threads may be in one."""
        self._enter(1)
        try:
            yield
        finally:
            self._enter(-1)

    def _enter(self, step: int) -> None:
        with self._lock:
            self._writes += step
            if self._ended.is_set():
                return
            if self._writes == 0:
                self._timer.set(0)
            elif step > 0 and self._writes == 1:
                self._timer.set(self._limit_s)

    def _run(self) -> None:
        while not self._ended.wait(self._limit_s * _PUT_OFF):
            with self._lock:
                if self._writes:
                    self._timer.set(self._limit_s)
