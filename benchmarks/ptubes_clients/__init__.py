"""The stock client of Ptubes on a relay: every change, whatever is killed on the way."""

from __future__ import annotations

from benchmarks.shared.report import Figure


def figures(short: bool = False) -> list[Figure]:
    """Let the stock client consume under kills; return what it has."""
    from benchmarks.ptubes_clients import run

    return run.figures(short)
