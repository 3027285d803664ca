"""`python -m benchmarks.torture`: kill relay and client again and again; nothing may be lost.

Contents: workload (seeded transactions), writer (commits them), client
(applies what arrives to its own SQLite file and keeps a log of it), log (that
file), checks (log and tables against the promises), run (the whole thing).
The writer and the client are processes of their own.
"""

from __future__ import annotations

from benchmarks.shared.report import Figure


def figures(short: bool = False) -> list[Figure]:
    """Torture both sources; one figure each says how many promises were broken."""
    from benchmarks.torture.run import figures as measure

    return measure(short)
