"""What writes the same rows: the driver alone with the best statements, and the sink."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import sqlalchemy as sa

from databus.client.sinks.contract import Change
from tests.client.sinks.ready.sql.targets import Target

FLUSH, STATEMENT = 5_000, 500
COLUMNS = {
    "id": "bigint", "name": "varchar(40)", "price": "double", "note": "varchar(99)", "n": "int",
}  # fmt: skip
Row = tuple[Any, ...]


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
