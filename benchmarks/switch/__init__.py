"""Servers that are killed and replaced under load: `python -m benchmarks.switch --switches 20`.

Two MariaDB servers, or two of MySQL 8, replicate with GTIDs, and a relay has both in its list. A
client reads what is written to the first one, which is killed again and again. One of two things
must come of it, and the benchmark forces both:

complete    the replica has all that was delivered: it takes over, and the client gets exactly what
            is there. The dead server is built anew, as its replica
lacking     the replica was held back: the relay must stop, and name as many transactions as it
            lacks. Then the dead server comes back, and capture is resumed

After each, the client must have the rows of the server that is read: all, in order, none twice.
"""

from __future__ import annotations

from benchmarks.shared.report import Figure


def figures(short: bool = False) -> list[Figure]:
    """Switch servers of both kinds; return rows lost, rows twice, and problems."""
    from benchmarks.switch.run import figures as measure

    return measure(short)
