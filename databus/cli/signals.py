"""Signals that end a command: handled for a while, or as an event, to finish current work first."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_NUMBERS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def handling(
    handle: Callable[[int, FrameType | None], object],
    numbers: tuple[signal.Signals, ...] = _NUMBERS,
) -> Iterator[None]:
    """Handle signals inside a `with`; the handlers of before are put back."""
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def ended_by_signal() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM and Ctrl-C set; a second signal has its default effect."""
    ended = threading.Event()

    def end(number: int, frame: object) -> None:  # noqa: ARG001 - a handler's signature
        ended.set()
        for each in _NUMBERS:
            signal.signal(each, signal.SIG_DFL)

    with handling(end):
        yield ended
