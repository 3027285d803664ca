"""Lets a group of 1,000 processes change, and counts."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from benchmarks.group_assignment.simulation import Change, Simulation
from benchmarks.shared.report import Figure, at_most, command, percentile

PROCESSES, PARTITIONS = 1000, 10_000
CHANGES, SHORT_CHANGES = 50, 5
AT_ONCE = 100
SEED = 17


def changes(number: int, seed: int = SEED) -> dict[str, list[Change]]:
    """Return what came of each kind of change, repeated a number of times."""
    random, group = Random(seed), Simulation(PARTITIONS, seed)
    found = {"first start": [group.change(joins=PROCESSES)]}
    one = (("join", 1, 0), ("leave", 0, 1), ("kill", 0, 1), ("join", 1, 0))
    many = ((f"join of {AT_ONCE}", AT_ONCE, 0), (f"kill of {AT_ONCE}", 0, AT_ONCE))
    for round_number in range(number):
        for name, joins, leaves in (*one, *many) if round_number % 10 == 0 else one:
            gone = random.sample(group.members, leaves)
            change = group.change(joins, gone, kills=name.startswith("kill"))
            found.setdefault(name, []).append(change)
    return found


def figures_of(name: str, done: Sequence[Change]) -> list[Figure]:
    """Return the figures of one kind of change."""
    moved = [change.moved for change in done]
    return [
        Figure(f"{name}: moves", percentile(moved, 50), "partitions"),
        Figure(f"{name}: most moves", max(moved), "partitions"),
        Figure(
            f"{name}: moves beyond the fewest",
            max(change.moved - change.fewest for change in done),
            "partitions",
            at_most(0),
        ),
        Figure(f"{name}: assignment", max(change.assign_s for change in done) * 1000, "ms"),
        Figure(f"{name}: all owned after", max(change.settle_s for change in done), "s (fake)"),
    ]


def figures(short: bool = False) -> list[Figure]:
    """Run it; return moves and times."""
    done = changes(SHORT_CHANGES if short else CHANGES)
    return [figure for name, some in done.items() for figure in figures_of(name, some)]


main = command("groups of 1,000 processes with 10,000 partitions", figures)
