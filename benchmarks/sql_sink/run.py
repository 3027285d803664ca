"""Print rows a second of the sink `sql` and of statements by hand: `python -m benchmarks.sql_sink`.

Both write the same rows in one run, in transactions of as many rows, taking turns; the median
counts. By hand: on PostgreSQL and MariaDB INSERT of 500 rows with ON CONFLICT or ON DUPLICATE KEY
by the driver alone, on SQLite `executemany`.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.sql_sink.writers import COLUMNS, Row, by_hand, by_sink
from databus.demo.private_mariadb import PrivateMariaDB
from tests.client.sinks.ready.sql.conftest import fresh
from tests.client.sinks.ready.sql.targets import Source, Target
from tests.postgres_server import PrivatePostgres
from tools.fetch_test_servers import POSTGRES

ROWS, TURNS = 20_000, 5


def rows(turn: int) -> list[Row]:
    return [(at, f"name {at}", at * 1.5, "x" * 60, turn) for at in range(ROWS)]


def measure(target: Target) -> None:
    source = Source(COLUMNS, "shop.sink")
    with ExitStack() as stack:
        sink = by_sink(target, stack)
        sink([source.insert(*row) for row in rows(0)[:1]])
        target.run("CREATE TABLE hand AS SELECT * FROM sink WHERE id < 0")
        if target.dialect == "sqlite":
            target.run("CREATE UNIQUE INDEX hand_key ON hand (id)")
        else:
            target.run("ALTER TABLE hand ADD PRIMARY KEY (id)")
        hand = by_hand(target)
        rates: dict[str, list[float]] = {"by hand": [], "sink": []}
        for turn in range(TURNS):
            listed = rows(turn)
            changes = [source.update(*row, scn=turn * ROWS + at) for at, row in enumerate(listed)]
            steps: list[tuple[str, Callable[[Any], None], list[Any]]]
            steps = [("by hand", hand, listed), ("sink", sink, changes)]
            for name, write, given in steps:
                began = time.perf_counter()
                write(given)
                rates[name].append(ROWS / (time.perf_counter() - began))
        held = [target.table(name, "id", "n") for name in ("hand", "sink")]
        assert held[0] == held[1]
    hand_s, sink_s = (statistics.median(rates[name]) for name in ("by hand", "sink"))
    ratio = sink_s / hand_s
    print(f"{target.dialect}: by hand {hand_s:,.0f} rows/s, sink {sink_s:,.0f}: {ratio:.2f}")


def main() -> None:
    """Measure each database."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        postgres = stack.enter_context(PrivatePostgres(POSTGRES.find()))  # type: ignore[arg-type]
        mariadb = stack.enter_context(PrivateMariaDB())
        for dialect in ("postgresql", "mariadb", "sqlite"):
            measure(stack.enter_context(fresh(dialect, folder, postgres, {"mariadb": mariadb})))
