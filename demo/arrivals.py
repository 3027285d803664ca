"""Checks that the consumer received every change once and in order. Pure.

The caller passes the clock.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from databus.schemas.event.metadata import Op

LATENCIES_KEPT = 10_000  # percentiles are computed over the latest arrivals


@dataclass(frozen=True, slots=True)
class Arrival:
    """One change as the callback saw it; `latency_ns` is from writing to callback."""

    number: int
    source: str
    op: Op
    key: object
    row: Mapping[str, Any]
    scn: int
    received_ns: int
    latency_ns: int


def arrival_of(
    source: str, op: Op, key: object, row: Mapping[str, Any], scn: int, received_ns: int
) -> Arrival:
    """Return the arrival of a row, from the stamps that the shop put into it."""
    number = int(row["change_no"]) + (op is Op.DELETE)
    latency_ns = received_ns - int(row["changed_ns"])
    return Arrival(number, source, op, key, row, scn, received_ns, latency_ns)


class Arrivals:
    """Counts arrivals and remembers the first error."""

    def __init__(self, wanted: int | None = None) -> None:
        self.wanted = wanted
        self.count = 0
        self.problem: str | None = None
        self.by_source: Counter[str] = Counter()
        self.by_op: Counter[str] = Counter()
        self._latencies_ns: deque[int] = deque(maxlen=LATENCIES_KEPT)

    def add(self, arrival: Arrival) -> None:
        """Add the next change; after the first error the order is not checked any more."""
        expected = self.count + 1
        if self.problem is None and arrival.number != expected:
            again = "again " if arrival.number < expected else ""
            self.problem = f"change {arrival.number} came {again}when {expected} was due"
        self.count += 1
        self.by_source[arrival.source] += 1
        self.by_op[arrival.op.value] += 1
        self._latencies_ns.append(arrival.latency_ns)

    @property
    def is_complete(self) -> bool:
        """Whether all expected changes have come, or an error has occurred."""
        return self.problem is not None or (self.wanted is not None and self.count >= self.wanted)

    @property
    def is_right(self) -> bool:
        """Whether every expected change came once and in order."""
        return self.problem is None and self.wanted in (None, self.count)

    def percentile_ms(self, percent: int) -> float:
        """Return the nearest-rank percentile of the latencies in ms; 0 when nothing came."""
        ordered = sorted(self._latencies_ns)
        if not ordered:
            return 0.0
        return ordered[max(0, -(-len(ordered) * percent // 100) - 1)] / 1e6

    def last_line(self) -> str:
        """Return the demo's last line."""
        of = f" of {self.wanted}" if self.wanted is not None else ""
        if self.problem is not None:
            return f"delivered {self.count}{of} changes, NOT in order: {self.problem}"
        times = f"p50 {self.percentile_ms(50):.1f} ms, p99 {self.percentile_ms(99):.1f} ms"
        if not self.is_right:
            return f"delivered {self.count}{of} changes: change {self.count + 1} never came"
        return f"delivered {self.count}{of} changes, in order, {times}"
