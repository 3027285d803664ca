"""`python -m benchmarks.spark_torture`: a Spark job, a busy writer, and `kill -9`.

A MariaDB with many rows, a writer that never pauses, a relay whose ring is too
small for the time in which a killed job starts again, a bootstrap pair that
soon forgets, too, and a streaming query that starts from nothing: snapshot,
then stream, each batch by foreachBatch into Delta tables. The job's whole
process tree, Python workers of its executors, relay and bootstrap server are
killed again and again. No batch may have a part of a transaction, and in the
end the Delta tables must have exactly the source's rows.

Contents: writer (commits for ever), job (the query), spans (what a batch was
planned to have), log (what each batch had), batch_checks (one batch against the
promises), checks (all of them, and the tables), kills (when to kill whom),
processes (the job's process tree), run (the whole thing). What `torture` and
`bootstrap_torture` have of it is used from there.
"""

from __future__ import annotations

from benchmarks.shared.report import Figure


def figures(short: bool = False) -> list[Figure]:
    """Torture a job; the figure is the number of broken promises."""
    from benchmarks.spark_torture.run import figures as measure

    return measure(short)
