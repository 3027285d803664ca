"""Canal's stock client on a relay, and on Canal's own server: speed, CPU time and memory."""

from __future__ import annotations

from benchmarks.shared.report import Figure


def figures(short: bool = False) -> list[Figure]:
    """Let the client read one binlog through both, in turns; return both, and their ratios."""
    from benchmarks.canal_speed import run

    return run.figures(short)
