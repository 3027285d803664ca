"""Measures each pair: both write the same rows, by turns, in flushes of 5,000; medians count."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import click
from rich.console import Console

from benchmarks.shared.report import Figure, at_least, publish
from benchmarks.sink_speed import lanes
from benchmarks.sink_speed.pairs import PAIRS, Write
from benchmarks.sink_speed.rows import changes
from databus.client.sinks.serving.garbage import collect_rarely

ROWS, SHORT_ROWS = 20_000, 5_000
TURNS, SHORT_TURNS = 5, 2
_TARGET = 0.7


def measure(name: str, rows: int, turns: int) -> list[Figure]:
    """Return the rates of a sink and of its library alone, and their ratio."""
    rates: dict[str, list[float]] = {"sink": [], "alone": []}
    with PAIRS[name]() as pair:
        pair.sink(changes(0, 1))
        for turn in range(1, turns + 1):
            made = changes(turn, rows)
            prepared = pair.prepare(made)
            steps: tuple[tuple[str, Write, Sequence[object]], ...] = (
                ("alone", pair.alone, prepared),
                ("sink", pair.sink, made),
            )
            for who, write, given in steps:
                began_s = time.perf_counter()
                write(list(given))
                rates[who].append(rows / (time.perf_counter() - began_s))
    alone, sink = statistics.median(rates["alone"]), statistics.median(rates["sink"])
    return [
        Figure(f"sink {name}: rows a second", sink, "rows/s"),
        Figure(f"sink {name}: the library alone", alone, "rows/s"),
        Figure(f"sink {name}: sink / alone", sink / alone, "x", at_least(_TARGET)),
    ]


def figures(short: bool = False) -> list[Figure]:
    """Measure all pairs."""
    rows, turns = (SHORT_ROWS, SHORT_TURNS) if short else (ROWS, TURNS)
    found = [figure for name in PAIRS for figure in measure(name, rows, turns)]
    return found + lanes.figures(short)


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(PAIRS)))
@click.option("--rows", default=ROWS, show_default=True, help="Rows in each turn.")
@click.option("--turns", default=TURNS, show_default=True, help="Turns of each.")
def main(names: tuple[str, ...], rows: int, turns: int) -> None:
    """Measure the pairs NAMES, or all."""
    collect_rarely()  # as the process of sinks does
    found: list[Figure] = []
    for name in names or PAIRS:
        with Console(stderr=True).status(name):
            found += measure(name, rows, turns)
    publish("sinks", found)
