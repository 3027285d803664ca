"""Stock clients of Canal on a relay: every change, whatever is killed on the way."""

from __future__ import annotations

from benchmarks.shared.report import Figure


def figures(short: bool = False) -> list[Figure]:
    """Let all stock clients consume under kills; return what they have."""
    from benchmarks.canal_clients import run

    return run.figures(short)
