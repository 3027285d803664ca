"""Python data sources that do almost nothing, for comparison with the real ones.

They are found by Spark's workers as a module of the repository, so that what a
worker has read into its memory stays there from task to task.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

PARTITIONS = 2


class MadeRows(DataSource):
    """A stream of the Arrow batch in a file, repeated: `rows` in all, `batch` at a time.

    Without `rows` there is always more.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "made_rows"

    def schema(self) -> StructType:
        """Return the file's columns."""
        return from_arrow_schema(batch_in(self.options["path"]).schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802
        """Return the reader."""
        return MadeRowsReader(self.options)


class MadeRowsReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A reader whose offsets are row counts."""

    def __init__(self, options: Any) -> None:
        self._path = options["path"]
        self._rows = int(options.get("rows", 1 << 60))
        self._batch = int(options["batch"])
        self._partitions = int(options.get("partitions", PARTITIONS))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        """Do nothing: the end is known."""

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's
        """Return the rows of a batch."""
        return ReadMaxRows(self._batch)

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's
        """Begin with the first."""
        return {"rows": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: ARG002, N802
        """Return the offset one batch further."""
        return {"rows": min(self._rows, start["rows"] + self._batch)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Return the partitions of the batch."""
        rows, count = end["rows"] - start["rows"], self._partitions
        return [InputPartition(rows // count + (n < rows % count)) for n in range(count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the batch until there are enough rows."""
        batch, left = batch_in(self._path), int(partition.value)
        while left > 0:
            yield batch.slice(0, left)
            left -= batch.num_rows

    def commit(self, end: dict[str, int]) -> None:
        """Do nothing."""


class ParquetRows(DataSource):
    """The rows of the Parquet files of a folder, each file a partition."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "parquet_rows"

    def schema(self) -> StructType:
        """Return the files' columns."""
        return from_arrow_schema(pq.read_schema(_files(self.options["path"])[0]))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader."""
        return ParquetRowsReader(self.options, schema)


class ParquetRowsReader(DataSourceReader):
    """Reads with pyarrow."""

    def __init__(self, options: Any, schema: StructType) -> None:
        self._path = options["path"]
        self._batch_rows = int(options["batch"])
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return the files."""
        return [InputPartition(str(file)) for file in _files(self._path)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a file's rows."""
        target = to_arrow_schema(self._schema, timezone="UTC")
        with pq.ParquetFile(partition.value) as file:
            for batch in file.iter_batches(self._batch_rows):
                yield pa.RecordBatch.from_arrays(batch.columns, schema=target)


@lru_cache
def batch_in(path: str) -> pa.RecordBatch:
    """Return the record batch in an Arrow file."""
    with pa.OSFile(path) as file, pa.ipc.open_file(file) as reader:
        return reader.get_batch(0)


def write_batch(path: Path, batch: pa.RecordBatch) -> None:
    """Write a record batch where `batch_in` finds it."""
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)


def write_parquet(folder: Path, rows: DataFrame) -> None:
    """Write rows into one file for each partition."""
    table = rows.toArrow()
    folder.mkdir()
    size = -(-table.num_rows // PARTITIONS)
    for number in range(PARTITIONS):
        pq.write_table(table.slice(number * size, size), folder / f"{number}.parquet")


def _files(folder: str) -> list[Path]:
    return sorted(Path(folder).glob("*.parquet"))
