"""The sink `sql` with several lanes: tables are made and altered once."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from databus.client.sinks.contract import Change
from databus.client.sinks.ready.sql.sink import SqlSink
from databus.client.sinks.rules.orders import Order, Part, Scheduler
from tests.client.sinks.ready.sql.conftest import NewTarget
from tests.client.sinks.ready.sql.targets import OPENING, Source

pytest_plugins = ["tests.mariadb", "tests.mysql", "tests.postgres"]

LANES, TABLES = 4, ("a", "b", "c", "d")


def transactions() -> list[list[Change]]:
    """Return transactions on four tables, which are altered between them."""
    made, scn = [], 0
    sources = [Source({"id": "int", "v": "int"}, f"shop.{name}") for name in TABLES]
    for number in range(1, 7):
        for at, table in enumerate(sources):
            for _ in range(3):
                scn += 1
                values = [number] * (len(table.columns) - 1)
                made.append([table.insert(key, *values, scn=scn) for key in range(12)])
            if number % 2:
                wider = table.columns | {f"c{number}": "int"}
                sources[at] = table.altered(wider, added={f"c{number}": 0})
            else:
                names = {
                    f"r{number}" if one.startswith("c") else one: "int" for one in table.columns
                }
                renamed = {f"r{number}": f"c{number - 1}"}
                sources[at] = table.altered(names, renamed=renamed)
    return made


def write(sink: SqlSink, changes: Sequence[Change]) -> None:
    sink.write(changes)
    sink.flush()


@pytest.mark.parametrize("dialect", ["postgresql", "mariadb", "mysql"])
@pytest.mark.parametrize("order", ["single-table", "table", "row"])
def test_lanes_neither_make_nor_alter_a_table_at_once(
    new_target: NewTarget, dialect: str, order: Order
) -> None:
    target, scheduler = new_target(dialect), Scheduler(order, LANES, follows_schemas=True)
    with ExitStack() as stack:
        assert SqlSink.follows_schemas
        sinks = [target.sink(exactly_once=False) for _ in range(LANES)]
        for sink in sinks:
            stack.callback(sink.close)
        pool = stack.enter_context(ThreadPoolExecutor(LANES))
        list(pool.map(lambda sink: sink.open(OPENING), sinks))

        def run(part: Part) -> None:
            write(sinks[part.lane], part.changes)

        for changes in transactions():
            for step in scheduler.lanes_of(changes):
                list(pool.map(run, step.parts))  # any error would be a sink that fails
    for name in TABLES:
        assert target.columns(name) == ["id", "v", "r2", "r4", "c5"]
        assert {row[1:] for row in target.table(name)} == {(6, 6, 6, 6)}
