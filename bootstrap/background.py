"""A thread that works in the background and can be paused: the shell of seeders and packers."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod


class PausableThread(ABC):
    """Runs `_run` until it is stopped. The public methods may be called from any thread.

    `_run` ends soon after `_stop` is set, and waits for `_resumed` between two steps.
    """

    def __init__(self, name: str) -> None:
        self._stop = threading.Event()
        self._resumed = threading.Event()
        self._resumed.set()
        self._problem = ""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def problem(self) -> str:
        """Why it does not work at all; "" when it does."""
        return self._problem

    @property
    def is_paused(self) -> bool:
        """Whether it is paused."""
        return not self._resumed.is_set()

    def pause(self) -> None:
        """Pause after the current step, until `resume`."""
        self._resumed.clear()

    def resume(self) -> None:
        """Continue after `pause`."""
        self._resumed.set()

    def start(self) -> None:
        """Start the thread. Call it once."""
        self._thread.start()

    def stop(self, timeout_s: float | None = None) -> bool:
        """Stop the thread after the current step; return whether it stopped in time."""
        self._stop.set()
        self._resumed.set()
        if self._thread.ident is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @abstractmethod
    def _run(self) -> None:
        """Work until `_stop` is set."""
