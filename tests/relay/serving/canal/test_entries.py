"""Entries of windows: what is begun and ended, where they are, and what follows them."""

from __future__ import annotations

from typing import Any

from databus.relay.ring.event_selector import WINDOW_DONE
from databus.relay.serving.canal.entries import Entry, EntryWriter, Kind
from databus.relay.serving.protobuf import read_fields
from databus.schemas.avro_rows import row_codec, schema_id
from databus.schemas.event.control import ddl_event, dml_event, end_of_period
from databus.schemas.event.event import WHOLE_TABLE_KEY, Event, Opcode, Part
from databus.schemas.event.metadata import EventMetadata, Op, encode_metadata, metadata_part
from databus.schemas.event.v2 import encode
from databus.schemas.table import Column, Table
from databus.schemas.table_schema import avro_schema

TABLE = Table(
    "shop.orders",
    (Column("id", "int unsigned", 0, False, 0), Column("note", "varchar(10)", 1)),
)
TEXT = avro_schema(TABLE)
ID = schema_id(TEXT)
CODEC = row_codec(TEXT)
COMMITTED_NS = 1_700_000_000_000_000_000


def scn(end: int, file: int = 3) -> int:
    return file << 32 | end


def row(
    op: Op,
    row: dict[str, Any],
    index: int = 0,
    before: dict[str, Any] | None = None,
    end: int = 500,
) -> bytes:
    former = None if before is None else CODEC.encode(before)
    metadata = EventMetadata(op, "0-1-7", 9, "binlog.000003", 100, 0, index, former)
    opcode = Opcode.DELETE if op is Op.DELETE else Opcode.UPSERT
    payload = Part(CODEC.encode(row), ID)
    part = metadata_part(encode_metadata(metadata))
    return encode(Event(scn(end), COMMITTED_NS, 7, 0, row["id"], opcode, payload, part))


def eop(end: int = 500) -> bytes:
    return encode(end_of_period(scn(end), COMMITTED_NS))


def truncate(end: int = 500) -> bytes:
    part = metadata_part(encode_metadata(EventMetadata(Op.TRUNCATE)))
    return encode(Event(scn(end), COMMITTED_NS, 7, 0, WHOLE_TABLE_KEY, Opcode.DELETE, None, part))


def ddl(statement: str, end: int = 500, sources: tuple[str, ...] = ("shop.orders",)) -> bytes:
    return encode(ddl_event(scn(end), COMMITTED_NS, 0, sources, "shop", statement))


def writer() -> EntryWriter:
    return EntryWriter(lambda _: TEXT, lambda _: "shop.orders")


def kinds(entries: list[Entry]) -> list[Kind]:
    return [entry.kind for entry in entries]


def header(entry: Entry) -> dict[int, Any]:
    fields = dict(read_fields(entry.data))
    assert isinstance(fields[1], bytes)
    return dict(read_fields(fields[1]))


A, B = {"id": 1, "note": "a"}, {"id": 2, "note": None}


def test_a_window_is_a_begin_its_rows_and_an_end() -> None:
    found = writer().entries(row(Op.INSERT, A) + row(Op.INSERT, B, 1) + eop())
    assert kinds(found) == [Kind.BEGIN, Kind.ROWS, Kind.END]
    assert [(one.scn, one.offset) for one in found] == [
        (scn(500), 0),
        (scn(500), 2),
        (scn(500), WINDOW_DONE),
    ]
    assert [header(one)[3] for one in found] == [100, 101, 500 - 31]
    assert header(found[1])[2] == b"binlog.000003"


def test_another_kind_of_change_is_another_entry() -> None:
    body = row(Op.INSERT, A) + row(Op.UPDATE, B, 1, A) + row(Op.DELETE, B, 2) + eop()
    assert kinds(writer().entries(body)) == [Kind.BEGIN, *[Kind.ROWS] * 3, Kind.END]


def test_a_window_that_comes_in_parts_is_begun_once() -> None:
    whole, parts = writer(), writer()
    events = [row(Op.INSERT, A), row(Op.DELETE, A, 1), eop()]
    found = [entry for event in events for entry in parts.entries(event)]
    assert found == whole.entries(b"".join(events))


def test_an_empty_window_moves_a_cursor() -> None:
    found = writer().entries(eop())
    assert kinds(found) == [Kind.BEGIN, Kind.END]
    assert found[-1].offset == WINDOW_DONE


def test_a_statement_alone_has_no_begin_and_no_end() -> None:
    found = writer().entries(ddl("ALTER TABLE orders ADD x INT") + eop())
    assert [(one.kind, one.tables, one.offset) for one in found] == [
        (Kind.DDL, ("shop.orders",), WINDOW_DONE)
    ]


def test_a_table_that_a_statement_emptied_is_told_once() -> None:
    found = writer().entries(truncate() + ddl("TRUNCATE orders") + eop())
    assert kinds(found) == [Kind.DDL]


def test_a_table_that_no_statement_emptied_is_told_as_truncated() -> None:
    (found,) = writer().entries(truncate() + eop())
    assert b"TRUNCATE TABLE `orders`" in found.data
    assert header(found)[11] == 8


def test_positions_grow_over_windows() -> None:
    entries = EntryWriter(lambda _: TEXT, lambda _: "shop.orders")
    body = row(Op.INSERT, A) + eop() + ddl("DROP TABLE orders", 700) + eop(700) + eop(900)
    found = [header(entry)[3] for entry in entries.entries(body)]
    assert found == sorted(found)


def test_a_statement_without_rows_is_a_query_within_its_transaction() -> None:
    told = dml_event(scn(500), COMMITTED_NS, 0, ("shop.orders",), "shop", "DELETE FROM orders")
    found = writer().entries(encode(told) + eop())
    assert kinds(found) == [Kind.BEGIN, Kind.STATEMENT, Kind.END]
    assert found[1].tables == ("shop.orders",)
    assert header(found[1])[11] == 7
    assert b"DELETE FROM orders" in found[1].data
