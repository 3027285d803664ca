"""What building Canal's entries costs, alone: CPU seconds per million rows."""

from __future__ import annotations

import statistics
import time

from benchmarks.capture.log import BULK_ROWS, Kind
from databus.relay.serving.canal.entries import EntryWriter
from databus.schemas.avro_rows import row_codec, schema_id
from databus.schemas.event.control import end_of_period
from databus.schemas.event.event import Event, Opcode, Part
from databus.schemas.event.metadata import EventMetadata, Op, encode_metadata, metadata_part
from databus.schemas.event.v2 import encode
from databus.schemas.scn import BinlogPosition
from databus.schemas.table import Column, Table
from databus.schemas.table_schema import avro_schema

_TEXT = avro_schema(
    Table(
        "d.narrow",
        (
            Column("id", "int", 0, False, 0),
            Column("name", "varchar(50)", 1),
            Column("quantity", "bigint", 2),
            Column("is_sold", "tinyint", 3),
            Column("weight", "double", 4),
            Column("note", "text", 5),
        ),
    )
)
_EVENT_BYTES = 300
_NS = 1_700_000_000_000_000_000


def windows(count: int, rows: int) -> bytes:
    """Return so many windows of so many rows each."""
    made: list[bytes] = []
    for number in range(count):
        scn = BinlogPosition(0, 7, (number + 1) * (rows + 2) * _EVENT_BYTES).to_scn()
        made += [_event(scn, number * rows + index, index) for index in range(rows)]
        made.append(encode(end_of_period(scn, _NS)))
    return b"".join(made)


def _event(scn: int, key: int, index: int) -> bytes:
    values = (key, f"name {key}", key * 1000, key & 1, key / 3, "a note of some length " * 4)
    names = ("id", "name", "quantity", "is_sold", "weight", "note")
    row = Part(row_codec(_TEXT).encode(dict(zip(names, values, strict=True))), schema_id(_TEXT))
    offset = scn & 0xFFFFFFFF
    metadata = EventMetadata(Op.INSERT, None, 9, "mysql-bin.000007", offset, 0, index)
    part = metadata_part(encode_metadata(metadata))
    return encode(Event(scn, _NS, 7, 0, key, Opcode.UPSERT, row, part))


def cpu_s_per_million(kind: Kind, repeats: int, rows: int = 20 * BULK_ROWS) -> float:
    """Return the median of what building entries of such windows costs."""
    per_window = BULK_ROWS if kind == "bulk" else 1
    body = windows(rows // per_window, per_window)
    found = []
    for _ in range(repeats):
        writer = EntryWriter(lambda _: _TEXT, lambda _: "d.narrow")
        began_s = time.process_time()
        writer.entries(body)
        found.append((time.process_time() - began_s) / rows * 1e6)
    return statistics.median(found)
