"""Makes sound windows and pages at random: every type of column, every kind of event. Pure."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from databus.client.subscription import RegisteredSchema
from databus.schemas.avro_rows import RowCodec, schema_id
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.event import v1 as event_v1, v2 as event_v2
from databus.schemas.event.control import checkpoint_event, ddl_event, end_of_period
from databus.schemas.event.event import Event, Opcode, Part
from databus.schemas.event.metadata import EventMetadata, Notes, Op, encode_metadata, metadata_part
from databus.schemas.table import Column, Table
from databus.schemas.table_schema import avro_schema

_MOMENT = datetime(2026, 11, 24, 20, 0, 0, 123456)
# Per type of a dialect: values of a column, the ends of its range among them.
_MYSQL: dict[str, tuple[Any, ...]] = {
    "tinyint": (-128, 0, 127),
    "int": (-(1 << 31), -1, 63, 64, (1 << 31) - 1),
    "bigint": (-(1 << 63), -65, (1 << 63) - 1),
    "bigint unsigned": (Decimal(0), Decimal((1 << 64) - 1)),
    "decimal(10,2)": (Decimal("-0.01"), Decimal("12345678.90")),
    "decimal(38,10)": (Decimal(10**38 - 1).scaleb(-10), Decimal(0)),
    "decimal(65,30)": (Decimal(1).scaleb(-30), Decimal(-(10**34))),
    "float": (0.5, -1.5),
    "double": (0.1, -1e308, 5e-324),
    "date": (date.min, date(1969, 12, 31), date.max),
    "time(6)": (-838 * 3_600_000_000, 0, 1),
    "datetime(6)": (datetime.min, _MOMENT, datetime.max),
    "timestamp(6)": (_MOMENT.replace(tzinfo=UTC),),
    "bit(9)": (b"\x01\xff",),
    "json": ('{"a": "ü"}',),
    "varchar(9)": ("", "x", "naïve", "😀" * 9, "\0"),
    "longtext": ("y" * 300,),
    "varbinary(9)": (b"", b"\0\xff"),
}
_SQLITE: dict[str, tuple[Any, ...]] = {
    "INTEGER": (-(1 << 63), 0, (1 << 63) - 1),
    "REAL": (0.1, -0.0),
    "TEXT": ("ü", ""),
    "BLOB": (b"\0", b""),
    "NUMERIC": (1, 0.5, "text", b"\xff"),
}


def _table(source: str, dialect: str, kinds: dict[str, tuple[Any, ...]], nullable: bool) -> Table:
    columns = [
        Column(f"c{place}", kind, place, nullable, 0 if place == 0 else None)
        for place, kind in enumerate(kinds)
    ]
    return Table(source, tuple(columns), dialect)


_TABLES = [
    (_table("shop.wide", "mysql", _MYSQL, nullable=False), _MYSQL),
    (_table("shop.nullable", "mysql", _MYSQL, nullable=True), _MYSQL),
    (_table("shop.any", "sqlite", _SQLITE, nullable=True), _SQLITE),
]
SRC_IDS = {table.source: 40 + place for place, (table, _) in enumerate(_TABLES)}
TEXTS = {table.source: avro_schema(table) for table, _ in _TABLES}
SCHEMAS = [RegisteredSchema(SRC_IDS[source], 1, text) for source, text in TEXTS.items()]
_CODECS = {source: RowCodec(text) for source, text in TEXTS.items()}


def make_row_event(draw: random.Random, scn: int, index: int) -> Event:
    """Return the event of a row, or of a truncate."""
    table, kinds = draw.choice(_TABLES)
    source = table.source
    op = draw.choice((Op.INSERT, Op.UPDATE, Op.DELETE, Op.SNAPSHOT))
    before = _CODECS[source].encode(_row(draw, table, kinds)) if op is Op.UPDATE else None
    row = _row(draw, table, kinds)
    notes: Notes | None = None
    absent: tuple[int, ...] = ()
    if draw.random() < 0.1:
        place = draw.randrange(len(table.columns))
        absent = (place,)
        del row[table.columns[place].name]
        notes = Notes(absent=absent)
    elif draw.random() < 0.1:
        notes = Notes(raw={table.columns[-1].name: "0000-00-00"})
    payload = Part(_CODECS[source].encode(row, absent), schema_id(TEXTS[source]), 1)
    metadata = EventMetadata(op, draw.choice((None, f"0-1-{scn}")), 1, "log", scn, 0, index, before)
    told = metadata_part(encode_metadata(metadata._replace(notes=notes)))
    key = draw.choice((draw.randrange(1 << 40), b"a,b"))
    opcode = Opcode.DELETE if op is Op.DELETE else Opcode.UPSERT
    event = Event(scn, scn * 1000, SRC_IDS[source], 0, key, opcode, payload, told)
    if draw.random() < 0.05:
        emptied = metadata_part(encode_metadata(EventMetadata(Op.TRUNCATE, row_index=index)))
        return event._replace(key=b"", opcode=Opcode.DELETE, payload=None, metadata=emptied)
    return event._replace(metadata=None) if draw.random() < 0.05 else event


def _row(draw: random.Random, table: Table, kinds: dict[str, tuple[Any, ...]]) -> dict[str, Any]:
    return {
        column.name: None
        if column.nullable and draw.random() < 0.2
        else draw.choice(kinds[column.sql_type])
        for column in table.columns
    }


def make_stream(draw: random.Random, windows: int) -> bytes:
    """Return windows of version 2; all of a schema's rows may be alike, as most streams are."""
    events: list[Event] = []
    for scn in range(1, windows + 1):
        if draw.random() < 0.1:
            events.append(ddl_event(scn, scn, 0, ["shop.wide"], "shop", "ALTER TABLE wide"))
        count = draw.choice((0, 1, 1, 3, 8))
        events += [make_row_event(draw, scn, index) for index in range(count)]
        events.append(end_of_period(scn, scn * 1000))
    return b"".join(map(event_v2.encode, events))


def make_page(draw: random.Random, rows: int) -> bytes:
    """Return a page of version 2: rows of many SCNs, and the checkpoint that ends it."""
    events = [make_row_event(draw, draw.randrange(1, 99), index) for index in range(rows)]
    end = checkpoint_event(Checkpoint.at(100))
    return b"".join(map(event_v2.encode, [*events, end]))


def in_version_1(data: bytes) -> bytes:
    """Return the same events in version 1, in which metadata is not sent."""
    pieces, at = [], 0
    while at < len(data):
        event, at = event_v2.decode(data, at)
        pieces.append(event_v1.encode(event._replace(metadata=None)))
    return b"".join(pieces)
