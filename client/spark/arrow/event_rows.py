"""Rows that stay whole events until the rows of one source are wanted in its own columns.

A stream of many tables has no common columns, and its tables are altered while it
runs, but the columns of a DataFrame are fixed when it begins. So with
`layout=events` a record is the event as the server sent it, with `_databus` beside
it. `unpacked_events` decodes the events of one source, with the schemas known by then.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import BinaryType, StructField, StructType

from databus.client.arrow.arrow_types import RowBatch
from databus.client.spark.arrow.column_plan import Frame
from databus.client.spark.arrow.row_types import (
    CHANGE_COLUMN,
    change_type,
)
from databus.schemas.columns.avro_columns import AvroColumn, Kind, WriterSchema

EVENT: Final = "event"
_WHOLE = (AvroColumn(EVENT, Kind.BYTES),)


def events_schema() -> StructType:
    """Return the columns of layout `events`: `event`, null for a mark, and `_databus`."""
    return StructType(
        [
            StructField(EVENT, BinaryType(), True),
            StructField(CHANGE_COLUMN, change_type(None), True),
        ]
    )


class _EventCodec:
    """Takes an event as the value of the only column."""

    def decode(self, data: bytes) -> dict[str, Any]:
        return {EVENT: data}


class EventPlan:
    """Puts whole events of one schema version into batches, in the place of a `ColumnPlan`."""

    columns = _WHOLE
    codec = _EventCodec()

    def __init__(self, schema: WriterSchema, frame: Frame) -> None:
        self.schema = schema
        self._frame = frame

    def batch(self, rows: RowBatch) -> pa.RecordBatch:
        """Return events as a batch of the target."""
        return self._frame.batch(self.schema.source, self.schema.version, rows, rows.row, None)
