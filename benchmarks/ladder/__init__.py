"""Every rung of history at once: `python -m benchmarks.ladder --seed S`.

Five consumers of a MariaDB server read along and leave, one after another, while the server is
written to. When they come back each one's place is held by another rung:

bootstrap   neither relay nor server has it any more: the binlogs were purged up to there
source      away for 95 times the ring's size: the server's binlogs, by a catch-up of the relay
archive     away for 50 times
log         away for 10 times
ring        away for half of it

They come back together, and the relay is killed while they read. Each must then have every
transaction, whole, in order and not twice unless announced, and rows equal to the server's; the one
that bootstraps has equal rows, and every transaction from there on. What each rung serves follows
from what it holds when they come back; that it is so is a check, too.
"""

from __future__ import annotations

from benchmarks.shared.report import Figure


def figures(short: bool = False) -> list[Figure]:
    """Climb it; return the number of problems."""
    from benchmarks.ladder.run import figures as measure

    return measure(short)
