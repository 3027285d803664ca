"""A chain of three relays under load: `python -m benchmarks.chain --kills 10 --seed S`.

The first reads a MariaDB server, each other the one before it. First rows are written at a rate,
and each relay has a reader: the time from a window's arrival at the reader of one relay to that at
the reader of the next is the latency that the link adds, reader included. Then the middle relay is
killed at random times while rows are written. At the end all three must serve the same bytes, and
the server must have one dump connection.
"""

from __future__ import annotations

from benchmarks.shared.report import Figure


def figures(short: bool = False) -> list[Figure]:
    """Run a chain; return how many streams differ, and the latency that each link adds."""
    from benchmarks.chain.run import figures as measure

    return measure(short)
