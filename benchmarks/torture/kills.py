"""Plans kills at points of progress, drawn from the seed and spread over the run. No I/O."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

LONGEST_DELAY_S = 0.05


@dataclass(frozen=True, slots=True, order=True)
class Kill:
    """Once the run's progress is `at` and `delay_s` has passed, kill the victim.

    By progress, not by time: at that moment events are flowing. The delay lets
    the kill fall anywhere in what the victim does next.
    """

    at: float
    delay_s: float
    victim: str


def plan_kills(seed: int, spans: Mapping[str, tuple[float, float]], kills: int) -> list[Kill]:
    """Return a number of kills of each victim, in order.

    Each falls in its own part of the span in which its victim has work to do;
    the span's last part is left for its end to be reached.
    """
    draw = random.Random(f"kills {seed}")
    plan = []
    for number in range(kills):
        for victim, (begin, end) in spans.items():
            part = (end - begin) / (kills + 1)
            at = begin + part * (number + draw.random())
            plan.append(Kill(at, draw.uniform(0, LONGEST_DELAY_S), victim))
    return sorted(plan)


def lead_of(transactions: int, kills: int) -> int:
    """Return how far the writer may be ahead of the client.

    Less than a part of the plan, so that no part passes while a victim is
    down; and few enough for the ring.
    """
    return max(5, min(1000, transactions // (2 * (kills + 1))))
