"""`python -m benchmarks.growth [NAMES…] [--short]`: how cost grows with the size of the work.

Each name is an axis with one or more curves: CPU seconds of the process that works, at
sizes that lie far apart, and the exponent with which they grow.

Contents: curve (sizes, costs and the exponent; no I/O), processes (one measurement in a
process of its own), captured (a log, and the CPU that a relay takes for it), rows
(columns, transaction size, row width), tables (number of tables, and of their versions),
rings (ring size, look-ups), sources (physical sources of a relay), consumers (held
requests), run (the axes, repeats, the command).
"""

from __future__ import annotations

from benchmarks.shared.report import Figure


def figures(short: bool = False) -> list[Figure]:
    """Measure every axis."""
    from benchmarks.growth.run import figures as measure

    return measure(short)
