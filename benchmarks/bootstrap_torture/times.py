"""Measures a run: wall time of its phases, CPU time of its processes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping

import psutil

from databus.demo.processes import Child

RATE_SPAN_S = 10.0


class Times:
    """Phases one after another, and the CPU seconds of children that are about to end."""

    def __init__(self) -> None:
        self.phases_s: dict[str, float] = {}
        self.cpu_s: defaultdict[str, float] = defaultdict(float)
        self._phase = ""
        self._since = time.monotonic()

    @property
    def total_s(self) -> float:
        """Total time of all phases."""
        return sum(self.phases_s.values())

    def begin(self, phase: str) -> None:
        """End the current phase and begin another; "" begins none."""
        now = time.monotonic()
        if self._phase:
            self.phases_s[self._phase] = now - self._since
        self._phase, self._since = phase, now

    def note_cpu(self, child: Child) -> None:
        """Add what a running child has used so far: call it once, right before its end."""
        if child.exit_code is None:
            used = psutil.Process(child.pid).cpu_times()
            self.cpu_s[child.name] += used.user + used.system

    def note_servers(self) -> None:
        """Add what a private database server has used."""
        for child in psutil.Process().children():
            if child.name().startswith(("mariadbd", "mysqld")):
                used = child.cpu_times()
                self.cpu_s["database"] += used.user + used.system

    def lines(self) -> list[str]:
        """Return the measurements as lines."""
        return [f"wall: {_listed(self.phases_s)}", f"CPU: {_listed(self.cpu_s)}"]


class Rate:
    """Transactions per second: the average, and the worst ten seconds."""

    def __init__(self, number: int, now_s: float) -> None:
        self._first = self._last = (number, now_s)
        self.average = 0.0
        self.worst: float | None = None

    def take(self, number: int, now_s: float) -> None:
        """Record the current count; `worst` stays None in a run shorter than a span."""
        self.average = _per_s(self._first, (number, now_s))
        if now_s - self._last[1] >= RATE_SPAN_S:
            rate = _per_s(self._last, (number, now_s))
            self.worst = rate if self.worst is None else min(self.worst, rate)
            self._last = (number, now_s)

    def __str__(self) -> str:
        worst = "" if self.worst is None else f", {self.worst:.0f} in the worst {RATE_SPAN_S:.0f} s"
        return f"{self.average:.0f} transactions/s{worst}"


def _per_s(begin: tuple[int, float], end: tuple[int, float]) -> float:
    return (end[0] - begin[0]) / max(end[1] - begin[1], 1e-9)


def _listed(seconds: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.1f} s" for name, value in seconds.items())
