"""`python -m benchmarks.capture`: how fast capture writes a binlog into the ring.

Contents: log (a private MariaDB, the tables and what is written), readers (the
raw stream, mysql-replication and the relay's own capture over one stretch of
the log), run (in turns, medians, ratios, the command).
"""

from __future__ import annotations

from benchmarks.shared.report import Figure


def figures(short: bool = False) -> list[Figure]:
    """Measure the four workloads."""
    from benchmarks.capture.run import figures as measure

    return measure(short)
