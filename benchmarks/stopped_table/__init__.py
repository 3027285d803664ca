"""One table of three becomes unreadable under load: `python -m benchmarks.stopped_table`.

A MariaDB server whose log does not name columns is written to, and one table is altered behind the
log's back: its rows cannot be read any more. Its consumers stop at the window before; the other
tables' go on. After ten seconds the definition is repaired, and the table's consumers must get
every row in order. Counted is the lag of the others, from just before a row's commit to their
callback: at most so far, while the table is stopped, and while it is repaired and caught up with.
"""

from __future__ import annotations

from benchmarks.shared.report import Figure


def figures(short: bool = False) -> list[Figure]:
    """Run it; return the lags and the number of problems."""
    from benchmarks.stopped_table.run import figures as measure

    return measure(short)
