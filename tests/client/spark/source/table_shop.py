"""A shop's relay and bootstrap pair, for whoever reads tables of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from databus.client.spark.arrow.row_types import arrow_schema
from databus.client.spark.source.table_reader import TableReader
from tests.promises.bootstrapping import (
    RunningPair,
    SqlitePlace,
    running_pair,
    serving,
)
from tests.promises.running import RunningRelay, Shop, wait_until


@dataclass(frozen=True)
class TableShop:
    """What runs, and where the server is."""

    place: SqlitePlace
    relay: RunningRelay
    pair: RunningPair
    server: str

    def options(self, **more: Any) -> dict[str, str]:
        """Return the options of a read of the orders."""
        given = {"mode": "table", "sources": "shop.orders", "bootstrapServers": self.server}
        return given | {key: str(value) for key, value in more.items()}

    def scn(self) -> int:
        """Return the newest SCN, which the pair has come to."""
        ((scn,),) = self.place.run("SELECT coalesce(max(id), 0) FROM _databus_log")
        self.relay.wait_for_scn(scn)
        wait_until(lambda: self.pair.position() >= scn, f"scn {scn} in the store")
        return int(scn)


@contextlib.contextmanager
def table_shop(folder: Path, rows: int, *tables: str, **options: Any) -> Iterator[TableShop]:
    """Run a shop with orders, that a bootstrap server has."""
    place = SqlitePlace(Shop(folder / "shop.db"))
    place.run(
        "WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n LIMIT "
        f"{rows}) INSERT INTO orders (id, note) SELECT id, 'note ' || id FROM n"
    )
    for table in tables:
        place.run(f"CREATE TABLE {table}")
    names = [table.partition("(")[0].strip() for table in tables]
    with running_pair(folder, place, *names, **options) as (relay, pair):
        pair.seed()
        with serving(pair.server()) as (server,):
            yield TableShop(place, relay, pair, server)


def read(options: dict[str, str], between: Any = None) -> pa.Table:
    """Read a table as Spark's tasks do, one partition after another.

    `between` is called after each batch.
    """
    schema = TableReader.columns(options)
    reader = TableReader(options, schema)
    batches = []
    for partition in reader.partitions():
        for batch in reader.read(partition):
            batches.append(batch)
            if between is not None:
                between()
    return pa.Table.from_batches(batches, arrow_schema(schema))
