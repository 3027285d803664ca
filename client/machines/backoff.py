"""The wait before the next try: `s' = min(max, s·factor + delta)`, with jitter."""

from __future__ import annotations

from random import Random

from databus.conf.settings import BackOffSettings


class BackOff:
    """Growing waits between the tries of one operation, until it succeeds.

    The jitter only shortens a wait: `max_s` is never exceeded, and clients that
    lost the same relay do not reconnect at the same moment.
    """

    def __init__(self, settings: BackOffSettings, rng: Random) -> None:
        self._settings = settings
        self._rng = rng
        self._next_s = settings.first_s

    def next_s(self) -> float:
        """Return the wait before the next try, in seconds."""
        settings, wait_s = self._settings, min(self._next_s, self._settings.max_s)
        self._next_s = min(settings.max_s, wait_s * settings.factor + settings.delta_s)
        return wait_s * (1 - settings.jitter * self._rng.random())

    def reset(self) -> None:
        """Start with the first wait again, after a success."""
        self._next_s = self._settings.first_s
