"""The sources of a load: a bootstrap server's table as of an SCN, or a table of the database.

Both return a table in chunks. A chunk is a DataFrame of the row's columns and
`_databus_scn`, and has the same keys at every call.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession, functions as sf
from pyspark.sql.types import StructType

from databus.client.spark.arrow.row_keys import key_columns
from databus.client.spark.options import parse_options
from databus.client.spark.planning.server_pool import ServerPool
from databus.client.spark.session import parallelism
from databus.client.spark.source.database_reader import DatabaseReader, physical_source_of
from databus.client.spark.source.table_reader import SCN_COLUMN, TableReader
from databus.client.spark.targets.changes import SCN
from databus.relay.sources.kind import open_scan
from databus.relay.sources.table_scan import KeyRange
from databus.schemas.errors import ServerError, SettingsError, UnknownSourceError
from databus.schemas.filters import AnyOf, ModFilter, RangeFilter

# Remainders per chunk, which the tasks share. A constant, as the number of tasks may differ
# when the load is resumed.
_PARTS = 64
# Numbers that the commit log of every kind of target can store.
_LARGEST_NOTED = 1 << 62

assert SCN == SCN_COLUMN, "one name for it in what is read and in what is written"


@dataclass(frozen=True, slots=True)
class Cut:
    """A table's split into chunks: their count, and the first and last key.

    `first` and `last` are 0 if chunks are made by the remainder of the key's division.
    """

    chunks: int = 1
    first: int = 0
    last: int = 0


class LoadSource(Protocol):
    """One table to load."""

    source: str
    physical_source: str
    columns: StructType  # of the rows, all of them

    def look_again(self) -> bool:
        """Read the columns again; return whether they are others now."""
        ...

    def begin(self) -> int:
        """Return the SCN as of which to read the table."""
        ...

    def cut(self, scn: int, chunk_rows: int) -> Cut:
        """Return the split into chunks of about `chunk_rows` rows."""
        ...

    def estimate_rows(self) -> int:
        """Return an estimate of the number of rows; 0 if not known."""
        ...

    def chunk(self, scn: int, cut: Cut, number: int, columns: Sequence[str]) -> DataFrame:
        """Return the rows of a chunk, with `_databus_scn`; empty `columns` means all."""
        ...


class BootstrapLoadSource:
    """A table as of an SCN, from a bootstrap server; all chunks are of one moment."""

    def __init__(
        self,
        spark: SparkSession,
        source: str,
        servers: Sequence[str],
        more: Mapping[str, str] = MappingProxyType({}),
        *,
        as_of: int | None = None,
        partitions: int | None = None,
    ) -> None:
        self.source = source
        self._spark = spark
        self._servers = list(servers)
        self._more = more
        self._as_of = as_of
        self._partitions = partitions or parallelism(spark)
        self.columns = TableReader.columns(self._options())
        self.physical_source, self._rows = self._ask_for_status()

    def look_again(self) -> bool:
        """Ask the servers for the columns again; return whether they are others now."""
        before, self.columns = self.columns, TableReader.columns(self._options())
        return before != self.columns

    def begin(self) -> int:
        """Return the requested SCN, or the newest; raises DatabusError."""
        more = {} if self._as_of is None else {"asOf": str(self._as_of)}
        options = self._options(**more)
        return TableReader(options, self.columns).partitions()[0].scn

    def cut(self, scn: int, chunk_rows: int) -> Cut:  # noqa: ARG002 - one shape for both
        """Return the split, by the server's row count."""
        return Cut(max(1, -(-self._rows // chunk_rows)))

    def estimate_rows(self) -> int:
        """Return the server's row count."""
        return self._rows

    def chunk(self, scn: int, cut: Cut, number: int, columns: Sequence[str]) -> DataFrame:
        """Return the rows whose keys have one of the chunk's remainders."""
        buckets = cut.chunks * _PARTS
        begin = number * _PARTS
        # The smallest 64-bit key has a negative remainder: the first chunk includes those.
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
        return {**self._more, **given, **more}

    def _ask_for_status(self) -> tuple[str, int]:
        options = parse_options(self._options())
        pool = ServerPool(self._servers, options.retry_seconds, options.access)
        try:
            answer = pool.get("/bootstrapStatus", {})
        finally:
            pool.close()
        kept: list[str] = []
        try:
            for name, store in answer.json()["physicalSources"].items():
                found = store["sources"].get(self.source)
                if found is not None:
                    # The server counts rows only now and then; the seeded rows are always known.
                    return name, int(found["rows"] or found["seededRows"])
                kept += store["sources"]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ServerError(answer.server, f"its status is malformed: {error!r}") from error
        raise UnknownSourceError(self.source, kept)


class DatabaseLoadSource:
    """A table of the source database, in key ranges that are read one after another.

    A row is in the state of the start SCN or in a newer one: following the stream from
    that SCN leads to the right table.
    """

    def __init__(
        self,
        spark: SparkSession,
        source: str,
        settings: Path,
        more: Mapping[str, str] = MappingProxyType({}),
        *,
        partitions: int | None = None,
    ) -> None:
        self.source = source
        self._spark = spark
        self._settings = settings
        self._more = more
        self._partitions = partitions or parallelism(spark)
        self.columns = DatabaseReader.columns(self._options())
        self._database = physical_source_of(source, settings)
        self.physical_source = self._database.name

    def look_again(self) -> bool:
        """Ask the database for the columns again; return whether they are others now."""
        before, self.columns = self.columns, DatabaseReader.columns(self._options())
        return before != self.columns

    def begin(self) -> int:
        """Return an SCN up to which every transaction is visible to later reads."""
        with closing(open_scan(self._database)) as scan:
            scan.open()
            return scan.visible_scn()

    def cut(self, scn: int, chunk_rows: int) -> Cut:  # noqa: ARG002 - one shape for both
        """Return the split into key ranges; one chunk without an integer key."""
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
            # The first and last chunk are open, for rows inserted beyond the ends since.
            first = part.first if number else -_LARGEST_NOTED
            last = part.last if number < cut.chunks - 1 else _LARGEST_NOTED
            options["filters"] = _filters(self.source, RangeFilter(first, last + 1))
        return _loaded(self._spark, options).withColumn(SCN, sf.lit(scn).cast("bigint"))

    def _options(self) -> dict[str, str]:
        return {
            **self._more,
            "mode": "database",
            "sources": self.source,
            "settings": str(self._settings),
            "partitions": str(self._partitions),
        }


def primary_key(load_source: LoadSource) -> tuple[str, ...]:
    """Return the table's key; raises SettingsError for a table without one."""
    found = key_columns(load_source.columns)
    if not found:
        raise SettingsError(
            f"{load_source.source} has no primary key, by which a load finds a row: give the table "
            "one, or follow it with databus spark sync into a target of mode append_history"
        )
    return found


def _loaded(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    return spark.read.format("databus").options(**options).load()


def _filters(source: str, wanted: ModFilter | RangeFilter) -> str:
    whole: AnyOf = AnyOf((wanted,))  # type: ignore[arg-type]
    return json.dumps({source: whole.to_json_value()})


def _listed(columns: Sequence[str]) -> dict[str, str]:
    return {"columns": ",".join(columns)} if columns else {}
