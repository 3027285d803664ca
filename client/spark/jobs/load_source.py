"""Where a load's rows come from: a bootstrap server's table as of an SCN, or the database itself.

Both give a table in chunks, each a DataFrame of the row's columns and
`_databus_scn`; a chunk is the same keys whenever it is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession, functions as sf
from pyspark.sql.types import StructType

from databus.client.spark.arrow.row_keys import key_columns
from databus.client.spark.options import parse_options
from databus.client.spark.planning.server_pool import ServerPool
from databus.client.spark.source.database_reader import DatabaseReader, physical_source_of
from databus.client.spark.source.table_reader import SCN_COLUMN, TableReader
from databus.client.spark.targets.changes import SCN
from databus.relay.sources.kind import open_scan
from databus.relay.sources.table_scan import KeyRange
from databus.schemas.errors import ServerError, SettingsError
from databus.schemas.filters import AnyOf, ModFilter, RangeFilter

RETRY_S = 60.0
# Rests in a chunk, to be parted between tasks: not their number, which may be another one
# when the load is started again.
_PARTS = 64
# Numbers that a target's notes hold whatever kind it is of.
_LARGEST_NOTED = 1 << 62

assert SCN == SCN_COLUMN, "one name for it in what is read and in what is written"


@dataclass(frozen=True, slots=True)
class Cut:
    """How a table is cut into chunks: their count, and the keys from first to last.

    `first` and `last` are 0 where chunks are made by the rest of the key's division.
    """

    chunks: int = 1
    first: int = 0
    last: int = 0


class Origin(Protocol):
    """One table to be loaded."""

    source: str
    physical_source: str
    columns: StructType  # of the rows, all of them

    def begin(self) -> int:
        """Return the SCN as of which the table is now read."""
        ...

    def cut(self, scn: int, chunk_rows: int) -> Cut:
        """Return how it is cut into chunks of about so many rows."""
        ...

    def estimate_rows(self) -> int:
        """Return about how many rows there are; 0 when nobody knows."""
        ...

    def chunk(self, scn: int, cut: Cut, number: int, columns: Sequence[str]) -> DataFrame:
        """Return the rows of a chunk, with `_databus_scn`; no `columns`: all."""
        ...


class BootstrapOrigin:
    """A table as of an SCN, of a bootstrap server; all chunks are of one moment."""

    def __init__(
        self,
        spark: SparkSession,
        source: str,
        servers: Sequence[str],
        *,
        as_of: int | None = None,
        partitions: int | None = None,
    ) -> None:
        self.source = source
        self._spark = spark
        self._servers = list(servers)
        self._as_of = as_of
        self._partitions = partitions or spark.sparkContext.defaultParallelism
        self.columns = TableReader.columns(self._options())
        self.physical_source, self._rows = self._ask_for_status()

    def begin(self) -> int:
        """Return the SCN that was asked for, or the newest; raises DatabusError."""
        more = {} if self._as_of is None else {"asOf": str(self._as_of)}
        options = self._options(**more)
        return TableReader(options, self.columns).partitions()[0].scn

    def cut(self, scn: int, chunk_rows: int) -> Cut:  # noqa: ARG002 - one shape for both
        """Return how it is cut."""
        return Cut(max(1, -(-self._rows // chunk_rows)))

    def estimate_rows(self) -> int:
        """Return how many rows the server has counted."""
        return self._rows

    def chunk(self, scn: int, cut: Cut, number: int, columns: Sequence[str]) -> DataFrame:
        """Return the rows whose keys leave one of some rests."""
        buckets = cut.chunks * _PARTS
        begin = number * _PARTS
        # Of the least of all keys the rest is negative: it is in the first chunk.
        start = begin if number else 1 - buckets
        wanted = _filters(self.source, ModFilter(buckets, start, begin + _PARTS))
        options = self._options(asOf=str(scn), scn="true", filters=wanted)
        return _loaded(self._spark, options | _listed(columns))

    def table(self, scn: int) -> DataFrame:
        """Return all rows, without their SCN."""
        return _loaded(self._spark, self._options(asOf=str(scn)))

    def _options(self, **more: str) -> dict[str, str]:
        given = {
            "mode": "table",
            "sources": self.source,
            "bootstrapServers": ",".join(self._servers),
            "partitions": str(self._partitions),
        }
        return given | more

    def _ask_for_status(self) -> tuple[str, int]:
        pool = ServerPool(self._servers, RETRY_S, parse_options(self._options()).access)
        try:
            answer = pool.get("/bootstrapStatus", {})
        finally:
            pool.close()
        try:
            for name, store in answer.json()["physicalSources"].items():
                found = store["sources"].get(self.source)
                if found is not None:
                    # Rows are counted now and then; what was seeded is known from the beginning.
                    return name, int(found["rows"] or found["seededRows"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ServerError(answer.server, f"its status makes no sense: {error!r}") from error
        raise SettingsError(f"{answer.server} has no source {self.source!r}")


class DatabaseOrigin:
    """A table of the source database, in ranges of its keys, each read when its turn comes.

    As of the SCN that it begins with a row is what it was then, or newer: whoever
    follows the stream from there ends with the right table.
    """

    def __init__(
        self,
        spark: SparkSession,
        source: str,
        settings: Path,
        *,
        partitions: int | None = None,
    ) -> None:
        self.source = source
        self._spark = spark
        self._settings = settings
        self._partitions = partitions or spark.sparkContext.defaultParallelism
        self.columns = DatabaseReader.columns(self._options())
        self._database = physical_source_of(source, settings)
        self.physical_source = self._database.name

    def begin(self) -> int:
        """Return an SCN up to which everything is visible to whoever reads from now on."""
        with closing(open_scan(self._database)) as scan:
            scan.open()
            return scan.visible_scn()

    def cut(self, scn: int, chunk_rows: int) -> Cut:  # noqa: ARG002 - one shape for both
        """Return how it is cut: not at all without an integer key."""
        with closing(open_scan(self._database)) as scan:
            scan.open()
            whole = scan.key_range(self.source)
            rows = scan.estimate_rows(self.source)
        if whole is None or max(-whole.first, whole.last) >= _LARGEST_NOTED:
            return Cut()
        chunks = len(whole.split(max(1, -(-rows // chunk_rows))))
        return Cut(chunks, whole.first, whole.last)

    def estimate_rows(self) -> int:
        """Return the database's own estimate."""
        with closing(open_scan(self._database)) as scan:
            scan.open()
            return scan.estimate_rows(self.source)

    def chunk(self, scn: int, cut: Cut, number: int, columns: Sequence[str]) -> DataFrame:
        """Return the rows of a range of keys."""
        options = self._options() | _listed(columns)
        if cut.chunks > 1:
            part = KeyRange(cut.first, cut.last).split(cut.chunks)[number]
            # Rows that came since beyond either end are in the first and the last.
            first = part.first if number else -_LARGEST_NOTED
            last = part.last if number < cut.chunks - 1 else _LARGEST_NOTED
            options["filters"] = _filters(self.source, RangeFilter(first, last + 1))
        return _loaded(self._spark, options).withColumn(SCN, sf.lit(scn).cast("bigint"))

    def _options(self) -> dict[str, str]:
        return {
            "mode": "database",
            "sources": self.source,
            "settings": str(self._settings),
            "partitions": str(self._partitions),
        }


def primary_key(origin: Origin) -> tuple[str, ...]:
    """Return the table's key; raises SettingsError for a table without one."""
    found = key_columns(origin.columns)
    if not found:
        raise SettingsError(
            f"{origin.source} has no primary key: rows of a target are told apart by it"
        )
    return found


def _loaded(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    return spark.read.format("databus").options(**options).load()


def _filters(source: str, wanted: ModFilter | RangeFilter) -> str:
    whole: AnyOf = AnyOf((wanted,))  # type: ignore[arg-type]
    return json.dumps({source: whole.to_json_value()})


def _listed(columns: Sequence[str]) -> dict[str, str]:
    return {"columns": ",".join(columns)} if columns else {}
