"""Runs groups of 1, 2 and 4 processes over the same rows."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

from benchmarks.group_scale import CREATE, SOURCE
from benchmarks.shared.report import Figure, at_least, command, median
from databus.demo.processes import python_module, stopped_by_signals, wait_until
from databus.demo.stage import Stage

PARTITIONS = 32
ROWS_A_WINDOW = 20
PATIENCE_S = 120.0
ROWS = {"cpu": 12_000, "wait": 2_000}
SHORT = 10  # times fewer
SPEED_UP = {("cpu", 2): 1.0, ("wait", 4): 3.0}


def figures(short: bool = False) -> list[Figure]:
    """Run the groups; return ratios of rows per second."""
    found = []
    for (kind, processes), least in SPEED_UP.items():
        rows = ROWS[kind] // (SHORT if short else 1)
        pairs = []
        for _ in range(1 if short else 3):
            one, many = (rows_per_s(kind, count, rows) for count in (1, processes))
            pairs.append((many / one, one, many))
        ratios = iter(sorted(pairs))
        ratio = median(len(pairs), lambda: next(ratios)[0])  # noqa: B023
        _, one, many = sorted(pairs)[len(pairs) // 2]
        what = "computes" if kind == "cpu" else "waits 5 ms a row"
        found += [
            Figure(f"1 process, callback {what}", one, "rows/s"),
            Figure(f"{processes} processes, callback {what}", many, "rows/s"),
            Figure(f"{processes} / 1 process, callback {what}", ratio, "x", at_least(least)),
        ]
    return found


def rows_per_s(kind: str, processes: int, rows: int) -> float:
    """Return the rows per second that a group of so many processes consumes."""
    with stopped_by_signals(), Stage("sqlite", [CREATE], [SOURCE]) as stage:
        stage.start_relay()
        folder = stage.folder
        members = [
            stage.child(
                f"member-{number}",
                python_module("benchmarks.group_scale.process", stage.url, folder, kind, number),
            )
            for number in range(processes)
        ]
        for member in members:
            member.start()
        wait_until(lambda: _sum(folder, "owned", processes) == PARTITIONS, PATIENCE_S, "a share")
        wait_until(lambda: _are_even(folder, processes), PATIENCE_S, "equal shares")
        _insert(stage, rows)
        wait_until(lambda: _sum(folder, "rows", processes) >= rows, PATIENCE_S, "rows")
        for member in members:
            member.stop(PATIENCE_S)
        done = [json.loads((folder / f"done.{number}").read_text()) for number in range(processes)]
    counts, first_s, last_s = zip(*done, strict=True)
    assert sum(counts) == rows, f"{counts} of {rows} rows"
    took_s: float = max(last_s) - min(first_s)
    return rows / took_s


def _insert(stage: Stage, rows: int) -> None:
    with closing(stage.database.connect()) as session:
        for first in range(1, rows + 1, ROWS_A_WINDOW):
            session.begin()
            for number in range(first, min(first + ROWS_A_WINDOW, rows + 1)):
                session.execute(f"INSERT INTO orders VALUES ({number}, 'tea')")
            session.commit()


def _values(folder: Path, name: str, processes: int) -> list[int]:
    paths = [folder / f"{name}.{number}" for number in range(processes)]
    return [json.loads(path.read_text()) if path.exists() else 0 for path in paths]


def _sum(folder: Path, name: str, processes: int) -> int:
    return sum(_values(folder, name, processes))


def _are_even(folder: Path, processes: int) -> bool:
    return set(_values(folder, "owned", processes)) == {PARTITIONS // processes}


main = command("group scale", figures)
