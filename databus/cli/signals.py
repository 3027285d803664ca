"""SIGTERM and Ctrl-C as an event, for commands that finish their current work first."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_NUMBERS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def ended_by_signal() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM and Ctrl-C set; a second signal has its default effect."""
    ended = threading.Event()

    def end(number: int, frame: object) -> None:  # noqa: ARG001 - a handler's signature
        ended.set()
        for each in _NUMBERS:
            signal.signal(each, signal.SIG_DFL)

    before = {number: signal.signal(number, end) for number in _NUMBERS}
    try:
        yield ended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
