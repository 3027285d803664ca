"""Plans what is done to the processes, drawn from a seed. No I/O."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

FaultKind = Literal[
    "kill consumer", "kill relay", "kill node", "kill all nodes", "stop consumer", "cut consumer"
]

_KILLED: tuple[FaultKind, ...] = ("kill consumer", "kill relay", "kill node")
_WEIGHTS = (70, 15, 15)
_OUTAGE_EVERY = 25  # kills


@dataclass(frozen=True, slots=True)
class Plan:
    """The options of the command line.

    `zookeeper` = 0: the group meets in files, so nobody can be cut off from it.
    """

    processes: int
    partitions: int
    kills: int
    stops: int
    cuts: int
    zookeeper: int
    seed: int
    ttl_s: float = 3.0
    rate: float = 100.0


@dataclass(frozen=True, slots=True)
class Fault:
    """After `gap_s`, the victim that `pick` draws of those that run is away for `lasts_s`."""

    kind: FaultKind
    pick: float
    gap_s: float
    lasts_s: float


def plan_faults(plan: Plan) -> list[Fault]:
    """Return all that is done, in order.

    A stop, a cut and an outage of all nodes are longer than a lease, with the quarter of it that
    others wait in addition. A killed process is back before or after that.
    """
    draw = random.Random(f"faults {plan.seed}")
    weights = _WEIGHTS if plan.zookeeper else (*_WEIGHTS[:2], 0)
    kinds = draw.choices(_KILLED, weights, k=plan.kills)
    kinds += ["stop consumer"] * plan.stops
    if plan.zookeeper:
        kinds += ["cut consumer"] * plan.cuts
        kinds += ["kill all nodes"] * max(1, plan.kills // _OUTAGE_EVERY)
    draw.shuffle(kinds)
    return [_fault(kind, plan.ttl_s, draw) for kind in kinds]


def _fault(kind: FaultKind, ttl_s: float, draw: random.Random) -> Fault:
    is_long = kind in ("stop consumer", "cut consumer", "kill all nodes")
    lasts = draw.uniform(1.4, 2.4) if is_long else draw.choice((0.0, draw.uniform(0, 2.0)))
    return Fault(kind, draw.random(), draw.uniform(0.1, 0.8) * ttl_s, lasts * ttl_s)
