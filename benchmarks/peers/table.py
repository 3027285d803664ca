"""The figures of the readers as a table with a line for each. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.shared.report import Figure, show_number

COLUMNS = (
    "reader",
    "bulk rows/s",
    "single tx/s",
    "CPU s per million rows, bulk",
    "CPU s per million rows, single",
    "peak MB",
)
KINDS = ("bulk", "single")
RATE, CPU, PEAK = "rows/s", "CPU s/M rows", "MB"


def lines_of(figures: Iterable[Figure]) -> list[tuple[str, ...]]:
    """Return the lines of the table: the slowest reader of bulk rows first.

    A reader's peak is the larger one of both kinds.
    """
    readers: dict[str, dict[tuple[str, str], float]] = {}
    for figure in figures:
        kind, _, title = figure.name.partition(": ")
        readers.setdefault(title, {})[kind, figure.unit] = figure.value
    by_rate = sorted(readers.items(), key=lambda one: one[1].get(("bulk", RATE), 0.0))
    return [(title, *map(_shown, _cells(values))) for title, values in by_rate]


def _cells(values: dict[tuple[str, str], float]) -> list[float | None]:
    peaks = [values[kind, PEAK] for kind in KINDS if (kind, PEAK) in values]
    rates_and_cpu = [values.get((kind, unit)) for unit in (RATE, CPU) for kind in KINDS]
    return [*rates_and_cpu, max(peaks, default=None)]


def _shown(value: float | None) -> str:
    return "" if value is None else show_number(value)
