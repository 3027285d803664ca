"""Read the changes that a comparison replays, with `format("databus")`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from pyspark.sql import Column, DataFrame, SparkSession, functions as sf

from databus.client.spark import register
from databus.client.spark.arrow.row_types import CHANGE_COLUMN
from databus.client.spark.consuming.apply import latest_per_key
from databus.client.spark.options import parse_options
from databus.client.spark.source.change_stream import make_measure_client
from databus.client.spark.verify.replay import NOWHERE, Changes, LastChange
from databus.client.spark.verify.spark_texts import value_of
from databus.client.spark.verify.table_shape import Key, Row, Shape
from databus.client.spark.verify.target_table import key_frame
from databus.schemas.errors import SettingsError, SourceUnavailableError

PATIENCE_S = 60.0
_POLL_S = 0.05
_PLACE, _IS_ROW, _IS_KEY = "_databus_place", "_databus_is_row", "_databus_is_key"


class StreamChanges:
    """The changes of one source, from its relays and bootstrap servers."""

    def __init__(
        self,
        spark: SparkSession,
        shape: Shape,
        physical_source: str,
        relays: Sequence[str],
        bootstrap_servers: Sequence[str] = (),
        where: str = "",
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._spark = spark
        self._shape = shape
        self._physical_source = physical_source
        self._where = where
        self._pause = pause
        self._options = {
            "mode": "changes",
            "sources": shape.source,
            "relays": ",".join(relays),
            "bootstrapServers": ",".join(bootstrap_servers),
            "layout": "columns",
        }

    def between(self, after_scn: int, reach_scn: int, keys: Sequence[Key]) -> Changes:
        """Return the last changes of keys after one SCN, up to another SCN or a later one.

        Waits until a relay has reached it. Raises SourceUnavailableError if none does,
        SettingsError for relays of another database, and the data source's errors.
        """
        until = self.reached(reach_scn)
        if until <= after_scn:
            return Changes({}, until)
        changes = self.read(after_scn, until)
        by_key: dict[Key, LastChange] = {}
        truncated = NOWHERE
        for place, row, is_row in self._collect(changes, keys):
            if row is None:
                truncated = max(truncated, place)
            else:
                by_key[self._shape.key_of(row)] = LastChange(place, row if is_row else None)
        return Changes(by_key, until, truncated)

    def read(self, after_scn: int, until_scn: int, source: str = "") -> DataFrame:
        """Return the changes after one SCN up to another, of the table or of another source."""
        register(self._spark)
        options = {**self._options, "after": str(after_scn), "until": str(until_scn)}
        options["sources"] = source or self._shape.source
        return self._spark.read.format("databus").options(**options).load()

    def is_row(self) -> Column:
        """Return the condition that a row exists after a change, for the comparison."""
        is_there = sf.col(f"{CHANGE_COLUMN}.op") != "delete"
        if self._where:
            # To a comparison of part of a table, a row that leaves that part is deleted.
            is_there = is_there & sf.coalesce(sf.expr(f"({self._where})"), sf.lit(False))
        return is_there

    def reached(self, reach_scn: int) -> int:
        """Wait until the newest SCN of the relays is at least `reach_scn`, and return it.

        Raises SourceUnavailableError if it is not reached, SettingsError for relays of another
        database.
        """
        measure_client = make_measure_client(parse_options(self._options))
        deadline = time.monotonic() + PATIENCE_S
        try:
            while True:
                found = measure_client.newest_scns()
                if self._physical_source not in found:
                    raise SettingsError(
                        f"the relays do not have {self._shape.source} in physical source "
                        f"{self._physical_source}, but in {', '.join(found)}: name relays of this "
                        "project that read the same database"
                    )
                newest = found[self._physical_source]
                if newest >= reach_scn:
                    return newest
                if time.monotonic() > deadline:
                    raise SourceUnavailableError(
                        f"source {self._physical_source}: the relays are at scn {newest}, but the "
                        f"database is at {reach_scn}: is a relay running, and is it capturing?"
                    )
                self._pause(_POLL_S)
        finally:
            measure_client.close()

    def _collect(
        self, changes: DataFrame, keys: Sequence[Key]
    ) -> Iterator[tuple[tuple[int, int], Row | None, bool]]:
        """Yield (place, row, whether the row exists) of the last changes; no row = a truncate."""
        is_truncate = sf.col(f"{CHANGE_COLUMN}.op") == "truncate"
        is_there = self.is_row()
        frame, is_same = key_frame(self._spark, self._shape, keys)
        marked = sf.broadcast(frame.withColumn(_IS_KEY, sf.lit(True)))
        # A left join: truncates have no key, and must stay.
        found = latest_per_key(changes, self._shape.key_names).join(marked, is_same, "left")
        place = sf.array(f"{CHANGE_COLUMN}.scn", sf.col(f"{CHANGE_COLUMN}.index").cast("bigint"))
        columns = [value_of(column).alias(column.name) for column in self._shape.columns]
        rows = found.where(sf.col(_IS_KEY) | is_truncate).select(
            *columns, place.alias(_PLACE), is_there.alias(_IS_ROW), is_truncate.alias("_truncate")
        )
        for row in rows.toArrow().to_pylist():
            scn, index = row.pop(_PLACE)
            is_row, is_empty = row.pop(_IS_ROW), row.pop("_truncate")
            yield (scn, index), None if is_empty else row, is_row
