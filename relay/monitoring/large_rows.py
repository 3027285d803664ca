"""Rows larger than the largest answer, which are captured but cannot be sent to consumers. Pure.

They are reported when captured, once per table, before a consumer is blocked by one.
"""

from __future__ import annotations

from collections.abc import Callable

from databus.schemas.event.v2 import SMALLEST_BYTES, peek


class LargeRows:
    """Finds large rows in captured events. One thread."""

    def __init__(self, most_bytes: int, name_of: Callable[[int], str]) -> None:
        self._most_bytes = most_bytes  # the `http.max_response_bytes`
        self._name_of = name_of
        self._warnings: dict[int, str] = {}

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings since the start, one per table."""
        return tuple(self._warnings.values())

    def check(self, data: bytes) -> list[str]:
        """Check whole events, stamped or not; return the new warnings.

        Usually a single comparison: data below the limit contains no larger row.
        """
        return self._check_each(data) if self.may_be_in(len(data)) else []

    def may_be_in(self, size_bytes: int) -> bool:
        """Return whether so many bytes of events can have a large row."""
        return size_bytes > self._most_bytes

    def _check_each(self, data: bytes) -> list[str]:
        new: list[str] = []
        at, last = 0, len(data) - SMALLEST_BYTES
        while at <= last:
            event = peek(data, at)
            if event.length > self._most_bytes and event.src_id not in self._warnings:
                self._warnings[event.src_id] = self._text(event.src_id, event.length)
                new.append(self._warnings[event.src_id])
            at += max(event.length, SMALLEST_BYTES)
        return new

    def _text(self, src_id: int, size_bytes: int) -> str:
        name = self._name_of(src_id) if src_id >= 0 else "a control event"
        return (
            f"{name}: a row of {size_bytes} bytes was captured, and no consumer over HTTP can read "
            f"it, or past it: http.max_response_bytes is {self._most_bytes}; raise it in the "
            "relay's settings and restart, and also max_window_bytes of the consumers if it is "
            "lower"
        )
