"""Plans what is done to the processes, drawn from a seed. No I/O."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

FaultKind = Literal[
    "kill consumer",
    "kill relay",
    "kill node",
    "kill all nodes",
    "stop consumer",
    "stop relay",
    "stop node",
    "cut from nodes",
    "cut from relay",
]

_KILLED: tuple[FaultKind, ...] = ("kill consumer", "kill relay", "kill node")
_STOPPED: tuple[FaultKind, ...] = ("stop consumer", "stop relay", "stop node")
_CUT: tuple[FaultKind, ...] = ("cut from nodes", "cut from relay")
_KILL_WEIGHTS = (70, 15, 15)
_STOP_WEIGHTS = (60, 20, 20)
_OUTAGE_EVERY = 25  # kills
_LONG_STOP_EVERY = 5  # stops
_LONG_STOP = 10.0  # of a lease


@dataclass(frozen=True, slots=True)
class Plan:
    """The options of the command line.

    `zookeeper` = 0: the group meets in files, so nobody can be cut off from them.
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
    others wait in addition; some stops last ten times as long as a lease. A killed process is back
    before or after that.
    """
    draw = random.Random(f"faults {plan.seed}")
    has_nodes = plan.zookeeper > 0
    kinds = draw.choices(_KILLED, (*_KILL_WEIGHTS[:2], has_nodes * _KILL_WEIGHTS[2]), k=plan.kills)
    kinds += draw.choices(
        _STOPPED, (*_STOP_WEIGHTS[:2], has_nodes * _STOP_WEIGHTS[2]), k=plan.stops
    )
    kinds += draw.choices(_CUT, (has_nodes, 1), k=plan.cuts)
    if has_nodes:
        kinds += ["kill all nodes"] * max(1, plan.kills // _OUTAGE_EVERY)
    draw.shuffle(kinds)
    faults, stops = [], 0
    for kind in kinds:
        stops += kind in _STOPPED
        is_longest = kind in _STOPPED and stops % _LONG_STOP_EVERY == 0
        faults.append(_fault(kind, plan.ttl_s, draw, is_longest=is_longest))
    return faults


def _fault(kind: FaultKind, ttl_s: float, draw: random.Random, *, is_longest: bool) -> Fault:
    is_long = kind in (*_STOPPED, *_CUT, "kill all nodes")
    lasts = draw.uniform(1.4, 2.4) if is_long else draw.choice((0.0, draw.uniform(0, 2.0)))
    if is_longest:
        lasts = _LONG_STOP
    return Fault(kind, draw.random(), draw.uniform(0.1, 0.8) * ttl_s, lasts * ttl_s)
