"""A store filled by hand: two tables, seeded as of SCN 100, and windows behind that."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path

from databus.bootstrap.store.store import Store
from databus.bootstrap.store.values import StoredEvent
from databus.schemas.avro_rows import row_codec, schema_id
from databus.schemas.event.event import Event, Opcode, Part
from databus.schemas.event.metadata import (
    EventMetadata,
    Op,
    decode_metadata,
    encode_metadata,
    metadata_part,
)
from databus.schemas.event.v2 import encode
from databus.schemas.table import Column, Table
from databus.schemas.table_schema import avro_schema

SEEDED_SCN = 100
PERSON = Table(
    "shop.person",
    (
        Column("id", "integer", 0, nullable=False, key_position=0),
        Column("name", "text", 1),
    ),
    dialect="sqlite",
)
ORDERS = Table(
    "shop.orders",
    (
        Column("id", "integer", 0, nullable=False, key_position=0),
        Column("name", "text", 1),
    ),
    dialect="sqlite",
)
SRC_IDS = {PERSON.source: 1, ORDERS.source: 2}
TEXTS = {1: avro_schema(PERSON), 2: avro_schema(ORDERS)}

Change = tuple[int, StoredEvent]


def stored(
    src_id: int, key: int | bytes, scn: int, name: str = "x", is_deleted: bool = False
) -> StoredEvent:
    """Return the event of a row; a byte key stands for a table with such a key."""
    text = TEXTS[src_id]
    row = {"id": key if isinstance(key, int) else 0, "name": name}
    opcode = Opcode.DELETE if is_deleted else Opcode.UPSERT
    op = Op.DELETE if is_deleted else Op.UPDATE
    payload = Part(row_codec(text).encode(row), schema_id(text), 1)
    metadata = metadata_part(encode_metadata(EventMetadata(op)))
    event = Event(scn, scn * 10, src_id, 0, key, opcode, payload, metadata)
    return StoredEvent(scn, key, is_deleted, encode(event))


def of_bytes(
    key: int | bytes, scn: int, data: bytes = b"x", is_deleted: bool = False
) -> StoredEvent:
    """Return a whole event of source 1 whose row is these bytes, which nobody decodes."""
    event = Event(scn, 10, 1, 0, key, Opcode.UPSERT, Part(data, bytes(16)), None)
    return StoredEvent(scn, key, is_deleted, encode(event))


def truncated(src_id: int, scn: int) -> StoredEvent:
    """Return the event of a TRUNCATE."""
    metadata = metadata_part(encode_metadata(EventMetadata(Op.TRUNCATE)))
    event = Event(scn, scn * 10, src_id, 0, b"", Opcode.DELETE, None, metadata)
    return StoredEvent(scn, b"", True, encode(event), is_truncate=True)


def is_truncate(event: Event) -> bool:
    """Whether all rows of the event's source are gone."""
    metadata = event.metadata
    return metadata is not None and decode_metadata(metadata.data).op is Op.TRUNCATE


class FilledStore:
    """A store and what is put into it; close it."""

    def __init__(self, path: Path, src_ids: dict[str, int] = SRC_IDS) -> None:
        self.path = path
        self.store = Store.open(path)
        self.store.add_sources(src_ids)
        for src_id in src_ids.values():
            self.store.add_schemas(src_id, [(1, TEXTS[src_id])])
        self.store.begin_log(SEEDED_SCN)

    def seed(self, source: str, events: Sequence[StoredEvent], scn: int = SEEDED_SCN) -> None:
        """Seed a source; it is served once a window was applied."""
        self.store.begin_seeding(source, scn, len(events))
        self.store.merge_chunk(source, events, None)
        self.store.end_seeding(source, scn)
        self.store.activate_caught_up()

    def seed_rows(self, source: str, keys: Iterable[int | bytes], name: str = "old") -> None:
        """Seed a source with rows of these keys."""
        src_id = self.store.source(source).src_id
        self.seed(source, [stored(src_id, key, SEEDED_SCN, name) for key in keys])

    def apply(self, scn: int, *changes: Change) -> None:
        """Apply a window, and serve what is caught up."""
        assert self.store.apply_window(scn, scn * 10, list(changes))
        self.store.activate_caught_up()

    def close(self) -> None:
        self.store.close()


def unpack(database: sqlite3.Connection) -> None:
    """Drop the tables of packs, which older versions do not have, and what is newer."""
    unprove(database)
    database.execute("drop trigger no_packs")
    for table in ("packing", "packs", "pack_columns"):
        database.execute(f"drop table {table}")


def unprove(database: sqlite3.Connection) -> None:
    """Drop the columns of the log window, which older versions do not have."""
    for column in ("log_scn", "log_timestamp_ns", "log_source"):
        database.execute(f"alter table store drop column {column}")


def put(src_id: int, key: int | bytes, scn: int, name: str = "new") -> Change:
    """Return a change that sets a row."""
    return src_id, stored(src_id, key, scn, name)


def gone(src_id: int, key: int | bytes, scn: int) -> Change:
    """Return a change that deletes a row."""
    return src_id, stored(src_id, key, scn, "new", is_deleted=True)


def emptied(src_id: int, scn: int) -> Change:
    """Return a change that deletes all rows."""
    return src_id, truncated(src_id, scn)


def make_filled(path: Path, persons: int = 10, orders: int = 5) -> FilledStore:
    """Return a store whose two sources are served, with nothing changed since the seeding."""
    filled = FilledStore(path)
    filled.seed_rows(PERSON.source, range(1, persons + 1))
    filled.seed_rows(ORDERS.source, range(1, orders + 1))
    filled.apply(SEEDED_SCN + 1)
    return filled
