"""When somebody is told that a sink fails: after a while, then hourly, and once when it is well."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Alert:
    """What is told. `is_well`: it works again, after `for_s` seconds."""

    is_well: bool
    for_s: float
    problem: str = ""
    source: str = ""  # the physical source: a sink may be well in one, and fail in another


class Alerts:
    """The alerts of one sink, whose parts fail and recover. Times are seconds of any clock."""

    def __init__(self, after_s: float = 30.0, every_s: float = 3600.0) -> None:
        self._after_s, self._every_s = after_s, every_s
        self._problems: dict[Hashable, str] = {}
        self._since_s = 0.0
        self._told_s: float | None = None

    def failed(self, part: Hashable, problem: str, now_s: float) -> None:
        """Take note that a part of the sink fails."""
        if not self._problems:
            self._since_s = now_s
        self._problems[part] = problem

    def recovered(self, part: Hashable) -> None:
        """Take note that a part works."""
        self._problems.pop(part, None)

    def raised_s(self, now_s: float) -> float | None:
        """Return for how long it has failed, if an alert tells of it and was not taken back."""
        return None if self._told_s is None else now_s - self._since_s

    def due(self, now_s: float) -> Alert | None:
        """Return what is to be told now, once."""
        for_s = now_s - self._since_s
        if not self._problems:
            was_told, self._told_s = self._told_s is not None, None
            return Alert(True, for_s) if was_told else None
        next_s = self._after_s if self._told_s is None else self._told_s + self._every_s
        if for_s < next_s:
            return None
        self._told_s = for_s
        return Alert(False, for_s, next(iter(self._problems.values())))
