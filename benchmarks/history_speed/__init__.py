"""`python -m benchmarks.history_speed`: what a relay log costs, and how fast history is.

Ratios of one run, both sides in turns:

- capture with a log beside capture without, and the bytes on disk of binlog, ring and log;
- history as it lies on disk beside the same bytes, sent with sendfile by a bare tornado handler;
- history that the relay decodes beside the same windows out of its ring;
- the first windows at a place in 100 GB of history, and the SCN of a GTID in it;
- finding the GTIDs of a frame beside making it.

Contents: history (a ring and a log of one relay, and a log of many sparse segments), serving,
gtids, capturing, run.
"""

from __future__ import annotations

from benchmarks.shared.report import Figure


def figures(short: bool = False) -> list[Figure]:
    """Measure all of them."""
    from benchmarks.history_speed.run import figures as measure

    return measure(short)
