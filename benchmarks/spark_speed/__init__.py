"""`python -m benchmarks.spark_speed [--rows N] [--short] [--json FILE]`: Spark, as ratios.

Everything is compared with the best possible result, in one Spark session,
the two sides taking turns:

- the stream source into a no-op sink, beside a Python data source that yields
  the same Arrow batches out of its memory;
- a micro-batch of a few rows, beside one of a source that has nothing to ask;
- the table reader, beside a Python data source that reads the same rows from
  Parquet files;
- the changes in an archive of a relay log, beside the same rows in Parquet files
  that Spark reads itself.

`python -m benchmarks.spark_speed merge [--target-rows N]… [--changes N]` merges a batch
into tables of several sizes, on the driver and on two executors, and says what the driver
holds and is sent. It takes minutes, and is left out where it is not named.

Contents: rows (the table), serving (relays and bootstrap server that have them),
sources (what is measured beside), run (the measuring); merge (merges beside each other),
merge_job (the driver of one of them), merge_rows (their rows, and what comes out).
"""

from __future__ import annotations

from benchmarks.shared.report import Figure


def figures(short: bool = False) -> list[Figure]:
    """Measure all of them."""
    from benchmarks.spark_speed.run import figures as measure

    return measure(short)
