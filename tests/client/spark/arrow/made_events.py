"""Events of rows as a relay makes them, and what becomes of them as Spark's records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from databus.client.arrow._column_decoder import ColumnDecoder
from databus.client.spark.arrow import event_batches
from databus.client.spark.arrow.event_batches import EventBatches
from databus.client.spark.arrow.row_types import (
    Layout,
    WriterSchema,
    arrow_schema,
    changes_schema,
    row_schema,
)
from databus.schemas.avro_rows import row_codec, schema_id
from databus.schemas.event import v2 as event_v2
from databus.schemas.event.event import Event, Opcode, Part
from databus.schemas.event.metadata import (
    EventMetadata,
    Notes,
    Op,
    encode_metadata,
    metadata_part,
)
from databus.schemas.table import Column, Table
from databus.schemas.table_schema import avro_schema

SOURCE, OTHER = "shop.t", "shop.u"
SRC_IDS = {SOURCE: 40, OTHER: 41}
TIME_NS = 1_700_000_000_123_456_789
TIME = datetime(2023, 11, 14, 22, 13, 20, 123456, UTC)
WAYS = ["compiled", "python"]


def read_by(way: str) -> Any:
    return patch.object(event_batches, "new_decoder", ColumnDecoder if way == "compiled" else None)


def version(
    number: int,
    columns: Mapping[str, str],
    source: str = SOURCE,
    dialect: str = "mysql",
    nullable: bool = True,
) -> WriterSchema:
    made = tuple(
        Column(name, sql_type, place, nullable)
        for place, (name, sql_type) in enumerate(columns.items())
    )
    text = avro_schema(Table(source, made, dialect))
    return WriterSchema(source, SRC_IDS[source], number, text)


def target_of(
    schemas: Sequence[WriterSchema],
    layout: Layout = "columns",
    before_images: bool = True,
    as_text: Sequence[str] = (),
) -> pa.Schema:
    by_source: dict[str, list[WriterSchema]] = {}
    for schema in schemas:
        by_source.setdefault(schema.source, []).append(schema)
    rows = {source: row_schema(versions, as_text) for source, versions in by_source.items()}
    return arrow_schema(changes_schema(rows, layout, before_images))


def make_columns(
    schemas: Sequence[WriterSchema],
    target: pa.Schema | None = None,
    layout: Layout = "columns",
    **options: Any,
) -> EventBatches:
    if target is None:
        target = target_of(schemas, layout)
    return EventBatches(target, schemas, physical_source="main", layout=layout, **options)


def row_event(
    schema: WriterSchema,
    row: Mapping[str, Any],
    op: Op = Op.INSERT,
    scn: int = 5,
    index: int = 0,
    before: Mapping[str, Any] | None = None,
    notes: Notes | None = None,
    key: int | bytes = 1,
    **fields: Any,
) -> Event:
    """Make a row's event as the relay's encoder makes it."""
    codec = row_codec(schema.text)
    absent, before_absent, _, _ = notes or Notes()
    told = EventMetadata(
        op,
        fields.pop("gtid", "0-1-7"),
        row_index=index,
        before=None if before is None else codec.encode(before, before_absent),
        notes=notes,
    )
    return Event(
        scn,
        TIME_NS,
        schema.src_id,
        0,
        key,
        Opcode.DELETE if op is Op.DELETE else Opcode.UPSERT,
        Part(codec.encode(row, absent), schema_id(schema.text)),
        fields.pop("metadata", metadata_part(encode_metadata(told))),
        **fields,
    )


def wire(*events: Event) -> bytes:
    return b"".join(map(event_v2.encode, events))


def rows_of(batches: Sequence[pa.RecordBatch]) -> list[dict[str, Any]]:
    """Return the batches' rows in the order of their windows; each batch must be sound."""
    for batch in batches:
        batch.validate(full=True)
    rows = [row for batch in batches for row in batch.to_pylist()]
    return sorted(rows, key=order)


def order(row: Mapping[str, Any]) -> tuple[int, int, str]:
    """Order records by their windows."""
    return row["_databus"]["scn"], row["_databus"]["index"] or 0, str(row)


def read(columns: EventBatches, *events: Event) -> list[dict[str, Any]]:
    data = wire(*events)
    assert columns.take(data) == len(data)
    return rows_of(columns.flush())


FOREIGN = WriterSchema(
    SOURCE,
    40,
    1,
    '{"type":"record","name":"t","fields":[{"name":"a","type":["string","null"]},'
    '{"name":"b","type":"boolean"},{"name":"c","type":["null","boolean"]},'
    '{"name":"d","type":["long"]},{"name":"e","type":["bytes","null","double"]}]}',
)


ONE = version(1, {"id": "bigint", "note": "varchar(9)"})
ROW, OLD = {"id": 1, "note": "new"}, {"id": 1, "note": "old"}


def told(scn: int = 5, **changed: Any) -> dict[str, Any]:
    return {
        "op": "insert",
        "scn": scn,
        "index": 0,
        "time": TIME,
        "physical_source": "main",
        "source": SOURCE,
        "schema_version": 1,
        "as_of": scn,
        "gtid": "0-1-7",
        "before": None,
        **changed,
    }


def truncate(scn: int = 5, src_id: int = 40, index: int = 0) -> Event:
    metadata = metadata_part(encode_metadata(EventMetadata(Op.TRUNCATE, "0-1-7", row_index=index)))
    return Event(scn, TIME_NS, src_id, 0, b"", Opcode.DELETE, None, metadata)


# Dialect, SQL type, and values at the ends of its range.
EXTREMES: list[tuple[str, str, list[Any]]] = [
    ("mysql", "tinyint", [-128, 0, 127]),
    ("mysql", "int", [-(1 << 31), -1, 0, 63, 64, (1 << 31) - 1]),
    ("mysql", "int unsigned", [0, (1 << 32) - 1]),
    ("mysql", "bigint", [-(1 << 63), -65, -64, (1 << 63) - 1]),
    ("mysql", "bigint unsigned", [Decimal(0), Decimal((1 << 64) - 1), Decimal(1 << 63)]),
    ("mysql", "decimal(5,2)", [Decimal("-999.99"), Decimal("0.00"), Decimal("1.20")]),
    ("mysql", "decimal(38,0)", [Decimal(10**38 - 1), Decimal(1 - 10**38), Decimal(1 << 64)]),
    ("mysql", "decimal(38,38)", [Decimal("0." + "9" * 38), Decimal(-1).scaleb(-38)]),
    ("mysql", "float", [0.5, -1.5, 3.4028234663852886e38]),
    ("mysql", "double", [0.1, -1e308, 5e-324]),
    ("mysql", "date", [date.min, date(1970, 1, 1), date(1969, 12, 31), date.max]),
    ("mysql", "time(6)", [-838 * 3_600_000_000 - 1, 0, 838 * 3_600_000_000]),
    ("mysql", "datetime(6)", [datetime.min, datetime(1969, 12, 31, 23, 59, 59, 1), datetime.max]),
    (
        "mysql",
        "timestamp(6)",
        [datetime(1970, 1, 1, tzinfo=UTC), datetime(2038, 1, 19, 3, 14, 7, 999999, UTC)],
    ),
    ("mysql", "year", [1901, 2155]),
    ("mysql", "bit(9)", [b"\x01\xff"]),
    ("mysql", "enum('a','b')", ["a"]),
    ("mysql", "json", ['{"a": "ü"}']),
    ("mysql", "varchar(9)", ["", "x", "naïve", "漢字", "😀" * 40, "\0"]),
    ("mysql", "longtext", ["y" * 70_000]),
    ("mysql", "varbinary(9)", [b"", b"\0\xff"]),
    ("mysql", "point", [bytes(25)]),
    ("sqlite", "INTEGER", [-(1 << 63), (1 << 63) - 1]),
    ("sqlite", "REAL", [0.1]),
    ("sqlite", "TEXT", ["ü"]),
    ("sqlite", "BLOB", [b"\0"]),
]
