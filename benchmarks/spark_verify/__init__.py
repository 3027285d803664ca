"""`python -m benchmarks.spark_verify`: verify and repair while a writer runs and the target lags.

A MariaDB with orders, a relay, a bootstrap pair, and a job that follows them
into a Delta table with a batch every few seconds. While orders are written rows
of the Delta table are damaged behind everybody's back: exactly those must be
reported, by fetching the rows of the chunks that differ and no others; repairing
them must leave newer values as they are; and in the end, with the writer
stopped, both tables must be equal, row by row.

Contents: shop (table, rows, changes), writer (a process), run (the whole thing).
"""

from __future__ import annotations

from benchmarks.shared.report import Figure


def figures(short: bool = False) -> list[Figure]:
    """Run everything; the figure is the number of problems."""
    from benchmarks.spark_verify.run import figures as measure

    return measure(short)
