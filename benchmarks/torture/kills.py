"""When to kill whom: points of progress drawn from the seed, spread over the run. No I/O."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

Victim = Literal["relay", "client"]
LONGEST_DELAY_S = 0.05


@dataclass(frozen=True, slots=True, order=True)
class Kill:
    """Once the client has applied transaction `at` and `delay_s` has passed, kill the victim.

    By progress, not by time: at that moment events are flowing. The delay lets
    the kill fall anywhere in what the victim does next.
    """

    at: int
    delay_s: float
    victim: Victim


def plan_kills(seed: int, transactions: int, kills: int) -> list[Kill]:
    """Return so many kills of each victim in order, each in its own part of the run."""
    draw = random.Random(f"kills {seed}")
    part = transactions / (kills + 1)  # the last part is left for the end to be reached
    victims: tuple[Victim, Victim] = ("relay", "client")
    plan = [
        Kill(int(part * (n + draw.random())) + 1, draw.uniform(0, LONGEST_DELAY_S), victim)
        for n in range(kills)
        for victim in victims
    ]
    return sorted(plan)


def lead_of(transactions: int, kills: int) -> int:
    """Return how far the writer may be ahead of the client.

    Less than a part of the plan, so that no part passes while a victim is
    down; and few enough for the ring.
    """
    return max(5, min(1000, transactions // (2 * (kills + 1))))
