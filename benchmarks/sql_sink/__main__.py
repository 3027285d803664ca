"""Print rows a second of the sink `sql` and of statements by hand: `python -m benchmarks.sql_sink`.

Both write the same rows in one run, in transactions of as many rows, taking turns; the median
counts. By hand: on PostgreSQL and MariaDB INSERT of 500 rows with ON CONFLICT or ON DUPLICATE KEY
by the driver alone, on SQLite `executemany`.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from databus.client.sinks.contract import Change
from databus.demo.private_mariadb import PrivateMariaDB
from tests.client.sinks.ready.sql.conftest import fresh
from tests.client.sinks.ready.sql.targets import Source, Target
from tests.postgres_server import PrivatePostgres
from tools.fetch_test_servers import POSTGRES

ROWS, FLUSH, STATEMENT, TURNS = 20_000, 5_000, 500, 5
COLUMNS = {
    "id": "bigint", "name": "varchar(40)", "price": "double", "note": "varchar(99)", "n": "int",
}  # fmt: skip
Row = tuple[Any, ...]


def rows(turn: int) -> list[Row]:
    return [(at, f"name {at}", at * 1.5, "x" * 60, turn) for at in range(ROWS)]


def parts(listed: list[Any], size: int) -> Iterator[list[Any]]:
    return (listed[start : start + size] for start in range(0, len(listed), size))


def by_hand(target: Target) -> Callable[[list[Row]], None]:
    """Return what upserts rows with the driver alone."""
    engine = sa.create_engine(target.url, poolclass=sa.NullPool)
    driver = engine.raw_connection()
    cursor = driver.cursor()
    names = list(COLUMNS)
    if target.dialect == "mariadb":
        end = " ON DUPLICATE KEY UPDATE " + ", ".join(f"{n} = VALUES({n})" for n in names[1:])
    else:
        end = " ON CONFLICT (id) DO UPDATE SET " + ", ".join(
            f"{n} = excluded.{n}" for n in names[1:]
        )
    start = f"INSERT INTO hand ({', '.join(names)}) VALUES "

    def write(listed: list[Row]) -> None:
        for flush in parts(listed, FLUSH):
            if target.dialect == "sqlite":
                cursor.executemany(f"{start}(?,?,?,?,?){end}", flush)
            else:
                for part in parts(flush, STATEMENT):
                    text = start + ",".join(["(%s,%s,%s,%s,%s)"] * len(part)) + end
                    cursor.execute(text, [value for row in part for value in row])
            driver.commit()

    return write


def by_sink(target: Target, stack: ExitStack) -> Callable[[list[Change]], None]:
    """Return what writes changes with the sink."""
    sink = stack.enter_context(target.opened(table="sink"))

    def write(changes: list[Change]) -> None:
        for flush in parts(changes, FLUSH):
            sink.write(flush)
            sink.flush()

    return write


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
            for name, write, given in (("by hand", hand, listed), ("sink", sink, changes)):
                began = time.perf_counter()
                write(given)  # type: ignore[operator]
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


if __name__ == "__main__":
    main()
