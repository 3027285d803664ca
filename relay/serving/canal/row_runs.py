"""Takes runs of row events from a body: the rows of one entry. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from databus.relay.serving.canal.messages import ROW_DATAS
from databus.relay.serving.columns.column_writer import ColumnWriter
from databus.relay.serving.protobuf import bytes_field
from databus.schemas.errors import ProtocolError
from databus.schemas.event.event import Event
from databus.schemas.event.metadata import EventMetadata, metadata_of
from databus.schemas.event.v2 import decode

try:
    from databus.relay.serving.canal._row_runs import take_rows
except ImportError:  # not built: Python takes every row
    is_compiled = False
else:
    is_compiled = True

# As MySQL's binlog_row_event_max_size: so large are the entries of its own log, too.
MOST_RUN_BYTES = 8192

WriterOf = Callable[[bytes], ColumnWriter]  # of a schema's id


class Run(NamedTuple):
    """Consecutive rows of one schema and one kind of change, with the first one's metadata.

    `rows` are the fields of a RowChange; `end` is where the run ends in the body.
    """

    rows: bytes
    row_count: int
    end: int
    timestamp_ns: int
    schema_id: bytes
    metadata: EventMetadata


def take_run(body: bytes, at: int, writer_of: WriterOf) -> Run:
    """Return the run that begins with the row event at `at`.

    Raises ProtocolError for what is no row event with metadata.
    """
    first, end = decode(body, at)
    metadata, schema_id = _metadata_of(first, at), first.schema_id
    writer = writer_of(schema_id)
    if is_compiled and writer.compiled is not None:
        taken = take_rows(body, at, MOST_RUN_BYTES, writer.compiled, schema_id)
        if taken is not None:
            return Run(*taken, first.timestamp_ns, schema_id, metadata)
    rows, one, event, limit = [], metadata, first, at + MOST_RUN_BYTES
    while True:
        row = writer.row_data(one.op, event.value, one.before, one.notes)
        rows.append(bytes_field(ROW_DATAS, row))
        if end >= min(limit, len(body)):
            break
        event, next_end = decode(body, end)
        if event.is_control or event.is_truncate or event.schema_id != schema_id:
            break
        one = _metadata_of(event, end)
        if one.op is not metadata.op:
            break
        end = next_end
    return Run(b"".join(rows), len(rows), end, first.timestamp_ns, schema_id, metadata)


def _metadata_of(event: Event, at: int) -> EventMetadata:
    found = metadata_of(event)
    if found is None:
        raise ProtocolError("a row event without metadata of a known version", at)
    return found
