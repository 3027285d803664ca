"""`python -m benchmarks.spark_sql`: compares SQL job files with the databases' own results.

Two databases, each with rows, a relay and a bootstrap pair; three jobs as a
user writes them (WHERE, UNION ALL of two shards with equal keys, JOIN of a fact
and two dimensions), which load and then follow random changes. They are stopped
in the middle of it and started again; in the end each target must have exactly
the rows that the databases answer.

Contents: shop (tables, random changes, answers), jobs (the job files), run (the
whole thing).
"""

from __future__ import annotations

from benchmarks.shared.report import Figure


def figures(short: bool = False) -> list[Figure]:
    """Run all jobs; the figure is the number of wrong rows."""
    from benchmarks.spark_sql.run import figures as measure

    return measure(short)
