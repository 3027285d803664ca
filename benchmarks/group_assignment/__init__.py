"""Large groups of consumers on a fake clock: `python -m benchmarks.group_assignment`.

The assignment and the hand-over are the client's own code, for 1,000 processes with 10,000
partitions. Leases, watches and callbacks are numbers: how long a store, a watch and the end of a
window take. Counted are the partitions that move when processes join and leave, one or many at
once, against the fewest that can, the processor time of an assignment, and the time on the fake
clock from a change until each partition has its owner.
"""

from __future__ import annotations

from benchmarks.shared.report import Figure


def figures(short: bool = False) -> list[Figure]:
    """Run it; return moves and times."""
    from benchmarks.group_assignment.run import figures as measure

    return measure(short)
