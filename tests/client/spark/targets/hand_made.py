"""Batches made by hand, in the shape in which the stream has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType, IntegerType, StringType, StructField, StructType

from databus.client.spark.arrow.row_types import KEY, arrow_schema, changes_schema

Row = Mapping[str, Any]
_TYPES: dict[str, DataType] = {"int": IntegerType(), "string": StringType()}


@dataclass(frozen=True)
class Change:
    """One record of a batch; `row` is None in marks."""

    source: str
    op: str
    scn: int
    row: Row | None = None
    before: Row | None = None
    index: int | None = 0
    as_of: int | None = None  # None: the SCN
    physical_source: str = "shop"


def row_type(columns: Mapping[str, str], *key: str) -> StructType:
    """Return a source's row type, its key in the metadata."""
    return StructType(
        [
            StructField(
                name,
                _TYPES[kind],
                True,
                {KEY: key.index(name)} if name in key else None,
            )
            for name, kind in columns.items()
        ]
    )


def batch_of(
    spark: SparkSession, rows: Mapping[str, StructType], changes: Iterable[Change]
) -> DataFrame:
    """Return a batch in layout `structs`."""
    schema = changes_schema(rows, "structs")
    table = pa.Table.from_pylist(
        [_record(change) for change in changes], schema=arrow_schema(schema)
    )
    return spark.createDataFrame(table, schema=schema)


def _record(change: Change) -> dict[str, Any]:
    meta = {
        "op": change.op,
        "scn": change.scn,
        "index": change.index,
        "physical_source": change.physical_source,
        "source": change.source,
        "as_of": change.scn if change.as_of is None else change.as_of,
        "before": None if change.before is None else {change.source: change.before},
    }
    return {change.source: change.row, "_databus": meta}
