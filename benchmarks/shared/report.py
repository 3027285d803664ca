"""Figures: measured values with their units and targets.

A module's command is made with `command`; a figure worth repeating is the
`median` of its repeats. Nothing here measures anything but a repeat's time.

    def figures(short: bool = False) -> list[Figure]:
        ratio = median(3 if short else 9, measure_once)
        return [Figure("ring append / memory copy", ratio, "x", at_least(0.30))]

    main = command("ring", figures)
    if __name__ == "__main__":
        main()
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, Protocol

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tools.repository import ROOT

PIPE_COLUMNS = 120  # a table that goes to a file is not cut to a terminal's 80


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a figure: `at_least` or `at_most` a bound."""

    relation: Literal[">=", "<="]
    bound: float

    def is_met(self, value: float) -> bool:
        """Return whether a value satisfies the target; not-a-number never does."""
        return value >= self.bound if self.relation == ">=" else value <= self.bound

    def __str__(self) -> str:
        return f"{'≥' if self.relation == '>=' else '≤'} {show_number(self.bound)}"


def at_least(bound: float) -> Target:
    """Return the target that a larger value is better than `bound`."""
    return Target(">=", bound)


def at_most(bound: float) -> Target:
    """Return the target that a smaller value is better than `bound`."""
    return Target("<=", bound)


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number: `unit` is printed beside it (`ms`, `events/s`, `x` = a ratio)."""

    name: str
    value: float
    unit: str
    target: Target | None = None

    @property
    def is_met(self) -> bool | None:
        """Return whether the target is met; None without a target."""
        return None if self.target is None else self.target.is_met(self.value)


class Figures(Protocol):
    """The function `figures` of each benchmark module."""

    def __call__(self, short: bool = False) -> list[Figure]:
        """Measure; `short` trades precision for seconds."""


def median(repeats: int, measure: Callable[[], float]) -> float:
    """Call `measure` a number of times and return the median of its results."""
    return statistics.median(measure() for _ in range(repeats))


def seconds(work: Callable[[], object]) -> float:
    """Return how long `work()` took, wall clock."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the nearest-rank percentile of at least one value: always one that was measured."""
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)  # rounded up
    return ordered[min(len(ordered) - 1, max(0, int(rank) - 1))]


def show_number(value: float) -> str:
    """Write a number so that the eye finds its size: 1,234,567 or 12.3 or 0.0042."""
    if value != value:
        return "not measured"
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.1f}"


def table_of(title: str, figures: Iterable[Figure]) -> Table:
    """Return the table of figures, each with its target and whether it was met."""
    table = Table(title=title, title_justify="left")
    table.add_column("figure")
    table.add_column("value", justify="right")
    table.add_column("unit")
    table.add_column("target", justify="right")
    table.add_column("")
    verdicts = {None: Text(""), True: Text("met", "green"), False: Text("missed", "bold red")}
    for figure in figures:
        target = "" if figure.target is None else str(figure.target)
        row = (figure.name, show_number(figure.value), figure.unit, target)
        table.add_row(*row, verdicts[figure.is_met])
    return table


def as_json(figures: Iterable[Figure]) -> str:
    """Return the figures as JSON text, with what is needed to compare two runs."""
    rows = [
        {
            "name": figure.name,
            "value": None if figure.value != figure.value else figure.value,
            "unit": figure.unit,
            "target": None if figure.target is None else str(figure.target),
            "met": figure.is_met,
        }
        for figure in figures
    ]
    return json.dumps({"host": _host(), "figures": rows}, indent=2, ensure_ascii=False) + "\n"


def _host() -> dict[str, object]:
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "machine": platform.machine(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "cpu": _cpu_model(),
        "cpus": os.cpu_count(),
        "load": os.getloadavg()[0],
    }


def _commit() -> str:
    """Return the short name of the commit, with `+` for changes; "unknown" outside a repository."""
    command = ("git", "describe", "--always", "--dirty=+", "--abbrev=8", "--exclude=*")
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def publish(title: str, figures: Sequence[Figure], json_file: Path | None = None) -> None:
    """Print the table; write the JSON file when one is asked for."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPE_COLUMNS)
    console.print(table_of(title, figures))
    if json_file is not None:
        json_file.write_text(as_json(figures), encoding="utf-8")


def command(title: str, figures: Figures) -> click.Command:
    """Make a benchmark module's command: measure, print, write."""

    @click.command(help=f"Measure and print: {title}.")
    @click.option("--short", is_flag=True, help="Trade precision for seconds.")
    @click.option(
        "--json", "json_file", type=click.Path(path_type=Path), help="Write figures here."
    )
    def run(short: bool, json_file: Path | None) -> None:
        publish(title, figures(short), json_file)

    return run
