"""Plans whom to kill and when, by the seed. No I/O.

Not by the clock, which would mostly hit a job that is starting: each kill comes
so many batches after the one before, and then a while later.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

# Half of the kills hit the driver, which is the hardest case.
VICTIMS = ("driver", "executor", "driver", "relay", "driver", "server", "driver", "executor")
BATCHES = (0, 1, 1, 2, 2, 3)
LONGEST_DELAY_S = 1.5


@dataclass(frozen=True, slots=True)
class Kill:
    """A kill, a number of batches after the previous kill, and `delay_s` later."""

    batches: int
    delay_s: float
    victim: str


def plan_kills(seed: int, kills: int) -> list[Kill]:
    """Return a number of kills in order."""
    draw = random.Random(f"spark kills {seed}")
    victims = [VICTIMS[number % len(VICTIMS)] for number in range(kills)]
    draw.shuffle(victims)
    return [
        Kill(draw.choice(BATCHES), draw.uniform(0, LONGEST_DELAY_S), victim) for victim in victims
    ]
