"""Runs groups of 1, 2 and 4 processes over the same rows."""

from __future__ import annotations

import json
import sqlite3
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

from benchmarks.shared.report import Figure, at_least, command, median
from databus.demo.processes import Child, free_port, python_module, wait_until

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
    with tempfile.TemporaryDirectory() as name, ExitStack() as ended:
        folder = Path(name)
        url = ended.enter_context(_relay(folder))
        members = [
            Child(
                f"member-{number}",
                python_module("benchmarks.group_scale.process", url, folder, kind, number),
                folder,
            )
            for number in range(processes)
        ]
        for member in members:
            member.start()
            ended.callback(member.stop)
        wait_until(lambda: _sum(folder, "owned", processes) == PARTITIONS, PATIENCE_S, "a share")
        wait_until(lambda: _are_even(folder, processes), PATIENCE_S, "equal shares")
        _insert(folder, rows)
        wait_until(
            lambda: _sum(folder, "rows", processes) >= rows - 10 * processes, PATIENCE_S, "rows"
        )
        for member in members:
            member.stop(PATIENCE_S)
        done = [json.loads((folder / f"done.{number}").read_text()) for number in range(processes)]
    counts, first_s, last_s = zip(*done, strict=True)
    assert sum(counts) == rows, f"{counts} of {rows} rows"
    took_s: float = max(last_s) - min(first_s)
    return rows / took_s


@contextmanager
def _relay(folder: Path) -> Iterator[str]:
    port = free_port()
    with closing(sqlite3.connect(folder / "shop.db")) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT NOT NULL)")
    (folder / "relay.toml").write_text(
        f'data_dir = "relay"\n[http]\nport = {port}\n[[physical_sources]]\nname = "shop"\n'
        f'uri = "sqlite:{folder / "shop.db"}"\nsources = ["main.orders"]\nstart = "earliest"\n'
        'ring_bytes = "16MiB"\n'
    )
    arguments = ("relay", "run", "-c", folder / "relay.toml")
    child = Child("relay", python_module("databus.cli.main", *arguments), folder)
    child.start()
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: _answers(f"{url}/register"), PATIENCE_S, "the relay")
        yield url
    finally:
        child.stop()


def _answers(url: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
        return bool(json.load(answer))
    return False


def _insert(folder: Path, rows: int) -> None:
    with closing(sqlite3.connect(folder / "shop.db", isolation_level=None)) as database:
        for first in range(1, rows + 1, ROWS_A_WINDOW):
            numbers = range(first, min(first + ROWS_A_WINDOW, rows + 1))
            database.execute("BEGIN")
            database.executemany(
                "INSERT INTO orders VALUES (?, 'tea')", ((number,) for number in numbers)
            )
            database.execute("COMMIT")


def _values(folder: Path, name: str, processes: int) -> list[int]:
    paths = [folder / f"{name}.{number}" for number in range(processes)]
    return [json.loads(path.read_text()) if path.exists() else 0 for path in paths]


def _sum(folder: Path, name: str, processes: int) -> int:
    return sum(_values(folder, name, processes))


def _are_even(folder: Path, processes: int) -> bool:
    return set(_values(folder, "owned", processes)) == {PARTITIONS // processes}


main = command("group scale", figures)
