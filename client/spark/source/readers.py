"""Choose the reader by the option `mode`.

Spark asks for the schema in the same way for streams and batches, so the mode must
be an option. Its default is `changes`.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from databus.client.spark.options import Mode, parse_options
from databus.client.spark.source.change_stream import changes_type, read_changes
from databus.client.spark.source.changes_between import ranges_of_changes

_TABLES = {
    Mode.TABLE: "databus.client.spark.source.table_reader:TableReader",
    Mode.DATABASE: "databus.client.spark.source.database_reader:DatabaseReader",
}


def schema_of(options: Mapping[str, str]) -> StructType:
    """Return the columns for the options; raises DatabusError."""
    mode = parse_options(options).mode
    if mode is Mode.CHANGES:
        return changes_type(options)
    schema: StructType = _table_reader(mode).columns(options)
    return schema


def partitions_of(options: Mapping[str, str], schema: StructType) -> Sequence[bytes]:
    """Return the partitions of a batch's tasks."""
    mode = parse_options(options).mode
    if mode is Mode.CHANGES:
        return [text.encode() for text in ranges_of_changes(options)]
    return [pickle.dumps(one) for one in _table_reader(mode)(options, schema).partitions()]


def read_partition(
    options: Mapping[str, str], schema: StructType, partition: bytes
) -> Iterator[pa.RecordBatch]:
    """Yield a task's rows."""
    mode = parse_options(options).mode
    if mode is Mode.CHANGES:
        yield from read_changes(options, schema, partition.decode())
    else:
        yield from _table_reader(mode)(options, schema).read(pickle.loads(partition))


def _table_reader(mode: Mode) -> Any:
    module, _, name = _TABLES[mode].partition(":")
    return getattr(import_module(module), name)
