"""`python -m benchmarks.bootstrap_torture`: a new client, a busy writer, and `kill -9`.

A source with many rows, a writer that never pauses, a relay that has evicted
the past, a bootstrap pair that is seeded meanwhile, and a client that starts
from nothing: each is a process of its own, each but the writer is killed again
and again. At the end the client must have exactly the source's rows.

Contents: filling (the rows that are there before), writer (commits for ever),
stage (the processes), log (what the client applied, and of which SCN each key
is), client (applies), checks (log and tables against the promises), times
(where the time went), run (the whole thing). What `benchmarks.torture` has of
it is used from there.
"""

from __future__ import annotations

from benchmarks.shared.report import Figure


def figures(short: bool = False) -> list[Figure]:
    """Torture both sources; return the number of broken promises of each."""
    from benchmarks.bootstrap_torture.run import figures as measure

    return measure(short)
