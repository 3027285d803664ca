"""A table that is left out, by the compiled decoder and by the assembler in Python."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import pytest

from databus.registry.registry import SchemaRegistry
from databus.registry.store import MemoryStore
from databus.relay.capture.window_encoder import WindowEncoder
from databus.relay.sources.mysql.binlog.stopped import AssemblyStopped
from databus.relay.sources.mysql.replication.assembler import Assembler
from databus.relay.sources.mysql.replication.compiled_assembler import CompiledAssembler
from databus.relay.sources.mysql.rows.layout import Definition
from databus.relay.sources.mysql.tables.alter import TableVersion
from databus.relay.sources.mysql.tables.captured_tables import WatchedTables
from databus.relay.sources.mysql.tables.column_spec import Rules
from databus.relay.sources.mysql.tables.history import History, Record
from databus.relay.sources.mysql.tables.names import Names
from databus.schemas.event.event import DDL_SRC_ID
from databus.schemas.stream.stream_reader import walk
from databus.schemas.windows import EncodedWindow
from tests.relay.sources.mysql.binlog import events_made as made
from tests.relay.sources.mysql.replication.test_decoder import (
    COLUMNS,
    DIALECT,
    INT,
    LONG_BLOB,
    TYPES,
    VARCHAR,
    WRITE,
    image,
    packets,
    rows,
    stream,
    transaction,
    windows_of,
)

OTHER = made.table_map(
    bytes([INT, VARCHAR, LONG_BLOB]),
    struct.pack("<H", 400) + b"\x04",
    nullable=0b110,
    table="other",
    number=6,
)
# It has one column more than its definition.
UNREADABLE = made.table_map(bytes([INT, INT]), table="other", number=6)
UNKNOWN_TYPE = made.table_map(bytes([199]), table="other", number=6)


def other(*images: bytes) -> bytes:
    return made.rows_v2(WRITE, 3, b"".join(images), present=0b111, number=6)


MANY_WAYS = {
    "layout": transaction(UNREADABLE, rows(WRITE, b"\0\1\0\0\0\1\0\0\0", number=6)),
    "type": transaction(UNKNOWN_TYPE, rows(WRITE, b"\0\1", number=6)),
    "row": transaction(OTHER, other(b"\0\1\0\0\0\xff\xff")),
    "statement": [made.mysql_gtid(9), made.query("ALTER TABLE other FROBNICATE x")],
    "unlogged": [made.mysql_gtid(9), made.query("DELETE FROM other")],
}
BEFORE = transaction(TYPES, rows(WRITE, image(1, "one")), OTHER, other(image(1)))
AFTER = [
    *transaction(TYPES, rows(WRITE, image(2, "two")), OTHER, other(image(2))),
    made.mysql_gtid(12),
    made.query("TRUNCATE TABLE other"),
    made.mysql_gtid(13),
    made.query("ALTER TABLE other COMMENT 'x'"),
    *transaction(TYPES, rows(WRITE, image(3))),
]

Read = Callable[[Sequence[bytes], Sequence[str]], list[EncodedWindow]]


def tables(left_out: Sequence[str]) -> WatchedTables:
    history = History()
    version = TableVersion(Definition(COLUMNS, ("id",)), "utf8mb4")
    versions = {("d", "t"): version, ("d", "other"): version}
    history.begin(Record(0, versions, {"d": "utf8mb4"}, is_beginning=True))
    names = Names(["d.t", "d.other"])
    return WatchedTables(names, Rules(DIALECT), history, lambda *_: {}, left_out=left_out)


def writer(left_out: Sequence[str]) -> WindowEncoder:
    registry = SchemaRegistry(MemoryStore())
    for src_id, source in enumerate(("d.t", "d.other"), 1):
        registry.add_source(source, src_id)
    found = WindowEncoder(registry, {"d.t": 1, "d.other": 2})
    found.leave_out(left_out)
    return found


def in_python(events: Sequence[bytes], left_out: Sequence[str]) -> list[EncodedWindow]:
    assembler, encoder = Assembler(tables(left_out), DIALECT), writer(left_out)
    found = [assembler.receive(event) for event in events]
    return [encoder.encode(t) for t in (*found, assembler.take_held()) if t is not None]


def in_cython(events: Sequence[bytes], left_out: Sequence[str]) -> list[EncodedWindow]:
    data = packets(events)
    encoder = writer(left_out)
    compiled = CompiledAssembler(tables(left_out), DIALECT, encoder=encoder, epoch=0)
    items = list(compiled.receive_bytes(data, len(data)))
    held = compiled.take_held()
    return list(windows_of([*items, *([held] if held is not None else [])]))


@pytest.mark.parametrize("way", MANY_WAYS)
@pytest.mark.parametrize("read", [in_python, in_cython])
def test_what_cannot_be_understood_names_its_table(read: Read, way: str) -> None:
    with pytest.raises(AssemblyStopped) as stopped:
        read(stream(*BEFORE, *MANY_WAYS[way]), [])
    assert stopped.value.tables == ("d.other",)


@pytest.mark.parametrize("way", MANY_WAYS)
def test_both_go_on_with_the_same_windows_without_it(way: str) -> None:
    events = stream(*BEFORE, *MANY_WAYS[way], *AFTER)
    python, cython = in_python(events, ["d.other"]), in_cython(events, ["d.other"])
    assert python == cython
    found = [event for window in python for event in walk(window.data)]
    assert [event.src_id for event in found if event.src_id >= 0] == [1, 1, 1]
    assert not [event for event in found if event.src_id == DDL_SRC_ID]
    without = stream(*BEFORE, *AFTER)
    assert [e.src_id for w in in_python(without, ["d.t"]) for e in walk(w.data)].count(2) == 3


@pytest.mark.parametrize("read", [in_python, in_cython])
def test_a_broken_log_names_no_table(read: Read) -> None:
    with pytest.raises(AssemblyStopped) as stopped:
        read(stream(*BEFORE, made.event(250, b"unknown")), [])
    assert stopped.value.tables == ()
