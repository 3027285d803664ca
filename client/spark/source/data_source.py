"""`format("databus")`: the classes that Spark finds and sends to its workers.

Spark pickles these classes, and this module registers itself to be pickled by value:
a worker that lacks the package still gets the classes, and can report the problem.
So this file imports nothing of the project at import time.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile, is_zipfile

from pyspark import SparkFiles
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    import pyarrow as pa

_PACKAGE = "databus"
# The archive that this process has imported the package from. It is pickled with the classes: the
# processes that plan queries on the driver's machine are not given `--py-files` by Spark.
_ARCHIVE = next((str(one) for one in Path(__file__).parents if one.is_file()), "")


class DatabusDataSource(DataSource):
    """The data source; `register(spark)` registers it."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "databus"

    def schema(self) -> StructType:
        """Return the current columns of the servers, which stay fixed for the whole query."""
        schema: StructType = _ours("readers").schema_of(dict(self.options))
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader for `spark.read`."""
        return DatabusReader(dict(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Return the reader for `spark.readStream`."""
        return DatabusStreamReader(dict(self.options), schema)


class DatabusReader(DataSourceReader):
    """A table, or the changes between two SCNs."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options, self._schema = dict(options), schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return the partitions of the tasks."""
        texts = _ours("readers").partitions_of(self._options, self._schema)
        return [InputPartition(text) for text in texts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a task's rows."""
        if partition.value is None:
            return iter(())  # Spark's own, where there are no partitions
        return iter(_ours("readers").read_partition(self._options, self._schema, partition.value))


class DatabusStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream of changes."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options, self._schema = dict(options), schema
        self._made: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": None}  # connections cannot be pickled

    @property
    def _stream(self) -> Any:
        if self._made is None:
            self._made = _ours("change_stream").ChangeStream(self._options)
        return self._made

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        """Read up to the current newest SCN, then end."""
        self._stream.aim_at_newest()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's
        """Return the most rows of a batch."""
        limit: ReadLimit = self._stream.default_limit()
        return limit

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's
        """Return the offset of a query that has read nothing."""
        offset: dict[str, Any] = self._stream.initial_offset()
        return offset

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch."""
        offset: dict[str, Any] = self._stream.latest_offset(start, limit)
        return offset

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's
        """Return the newest windows of the relays, for the query's progress."""
        offset: dict[str, Any] | None = self._stream.newest_offset()
        return offset

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the partitions of a batch's tasks."""
        return [InputPartition(text) for text in self._stream.partitions(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a task's rows."""
        if partition.value is None:
            return iter(())  # Spark's own, where there are no partitions
        read = _ours("change_stream").read_changes
        return iter(read(self._options, self._schema, partition.value))

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: servers keep their rows independently of readers."""

    def stop(self) -> None:
        """Close the planner's connections."""
        if self._made is not None:
            self._made.close()


def _ours(module: str) -> Any:
    """Import a module of this folder; raises ImportError that says how to install it."""
    name = f"{_PACKAGE}.client.spark.source.{module}"
    try:
        try:
            return import_module(name)
        except ModuleNotFoundError as error:
            found = _shipped() if error.name == _PACKAGE else []
            if not found:
                raise
            sys.path[:0] = found
            return import_module(name)
    except ModuleNotFoundError as error:
        raise ImportError(
            f"the Python of this Spark worker ({sys.executable} on {platform.node()}) lacks "
            f"{error.name}: install databus-cdc there, in the driver's version and with its extra "
            "`spark` (pip install '.[spark]' in a checkout, or 'FILE.whl[spark]' of a wheel), or "
            "name with PYSPARK_PYTHON a Python that has it"
        ) from error


def _shipped() -> list[str]:
    """Return the archives with the package that came by `--py-files`.

    Spark does not put a wheel on the path, nor any archive in the process that plans a stream.
    """
    # Elsewhere Spark would ask a session, and there may be none.
    root = SparkFiles._root_directory if SparkFiles._is_running_on_worker else None
    folder = Path(root or _ARCHIVE)
    paths = [Path(_ARCHIVE), *(sorted(folder.iterdir()) if folder.is_dir() else ())]
    return [str(path) for path in paths if is_zipfile(path) and _has_package(path)][:1]


def _has_package(path: Path) -> bool:
    with ZipFile(path) as archive:
        return f"{_PACKAGE}/__init__.py" in archive.namelist()


register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
