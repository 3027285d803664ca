"""A Delta table that a shop's orders are brought into, for tests of comparisons."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from databus.client.spark import register
from databus.client.spark.consuming.apply import apply_changes
from databus.client.spark.targets.target import open_target
from tests.client.spark.source.table_shop import TableShop

PATIENCE_S = 300


class Lake:
    """A Delta table of a table's rows, and the job that fills it when it is told to."""

    def __init__(
        self, shop: TableShop, folder: Path, spark: SparkSession, table: str = "orders"
    ) -> None:
        self.uri = f"delta:{folder / table}"
        self._table = table
        self._path = str(folder / table)
        self._checkpoint = str(folder / "checkpoint")
        self._shop = shop
        self._spark = spark
        register(spark)

    def catch_up(self) -> None:
        """Bring everything that there is now."""
        self._shop.scn()
        query = self._query().trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE_S)

    @contextlib.contextmanager
    def following(self) -> Iterator[None]:
        """Bring what comes, for the length of a `with`."""
        query = self._query().trigger(processingTime="200 milliseconds").start()
        try:
            yield
        finally:
            query.stop()

    def damage(self, missing: list[int], extra: list[int], changed: list[int]) -> None:
        """Make rows wrong behind everybody's back."""
        table = DeltaTable(self._path)
        table.delete(f"id in ({', '.join(map(str, missing))})")
        table.update({"note": "'damaged'"}, predicate=f"id in ({', '.join(map(str, changed))})")
        schema = pa.schema(table.schema().to_arrow())
        rows = [{"id": number, "note": "extra", "_databus_scn": 1} for number in extra]
        write_deltalake(table, pa.Table.from_pylist(rows, schema), mode="append")

    def rows(self) -> list[tuple[Any, ...]]:
        """Return the rows in the order of their ids."""
        found = self._spark.read.parquet(*DeltaTable(self._path).file_uris())
        return sorted((row["id"], row["note"]) for row in found.collect())

    def _query(self) -> DataStreamWriter:
        changes = (
            self._spark.readStream.format("databus")
            .option("mode", "changes")
            .option("relays", self._shop.relay.url)
            .option("bootstrapServers", self._shop.server)
            .option("shards", "1")
            .load(f"shop.{self._table}")
        )

        def consume(batch: DataFrame, batch_id: int) -> None:
            with closing(open_target(self.uri)) as target:
                apply_changes(batch, batch_id, target)

        writer = changes.writeStream.foreachBatch(consume)
        return writer.option("checkpointLocation", self._checkpoint)
