"""`python -m benchmarks.torture`: kill relay and client repeatedly; nothing may be lost.

Contents: workload (seeded transactions), writer (commits them), client
(applies what arrives to its own SQLite file and keeps a log of it), log (that
file), checks (log and tables against the promises), run (the whole thing).
The writer and the client are processes of their own.
"""

from __future__ import annotations

from benchmarks.shared.report import Figure


def figures(short: bool = False) -> list[Figure]:
    """Torture both sources; return the number of broken promises of each."""
    from benchmarks.torture.run import figures as measure

    return measure(short)
