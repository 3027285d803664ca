"""The compiled decoder and the assembler in Python make the same windows of the same bytes.

What real servers write is compared by `test_mysql_every_type` and, damaged too,
by `benchmarks.capture_fuzz`; here is what is easier made than found.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from pymysqlreplication.constants import BINLOG

from databus.registry.registry import SchemaRegistry
from databus.registry.store import MemoryStore
from databus.registry.version import SchemaVersion
from databus.relay.capture.window_encoder import WindowEncoder
from databus.relay.sources.mysql.binlog._decoder import PIECE_BYTES
from databus.relay.sources.mysql.binlog.packets import (
    PacketReader,
    StreamBrokenError,
    StreamEnded,
)
from databus.relay.sources.mysql.binlog.stopped import AssemblyStopped
from databus.relay.sources.mysql.replication.assembler import Assembler
from databus.relay.sources.mysql.replication.compiled_assembler import CompiledAssembler
from databus.relay.sources.mysql.rows.layout import DefinedColumn, Definition, Dialect
from databus.relay.sources.mysql.tables.alter import TableVersion
from databus.relay.sources.mysql.tables.captured_tables import WatchedTables
from databus.relay.sources.mysql.tables.column_spec import Rules
from databus.relay.sources.mysql.tables.history import History, Record
from databus.relay.sources.mysql.tables.names import Names
from databus.relay.sources.source import ReadItem, UnfitRowError
from databus.schemas.event.event import Event
from databus.schemas.event.v2 import stamp
from databus.schemas.scn import BinlogPosition
from databus.schemas.stream.stream_reader import walk
from databus.schemas.table_change import change_of
from databus.schemas.windows import EncodedWindow, WindowBatch, WindowEnd, WindowPiece
from tests.relay.sources.mysql.binlog import events_made as made
from tests.relay.sources.mysql.room import Room

INT, VARCHAR, LONG_BLOB = 3, 15, 252
DIALECT = Dialect(False, {45: "utf8mb4", 63: "binary"}, {"utf8mb4": 4, "binary": 1})
COLUMNS = (
    DefinedColumn("id", "int", False),
    DefinedColumn("name", "varchar(100)", True, "utf8mb4"),
    DefinedColumn("body", "longblob", True),
)
TYPES = made.table_map(
    bytes([INT, VARCHAR, LONG_BLOB]), struct.pack("<H", 400) + b"\x04", nullable=0b110
)
UNWATCHED = made.table_map(bytes([INT]), table="other", number=6)
WRITE, UPDATE, DELETE = (
    BINLOG.WRITE_ROWS_EVENT_V2,
    BINLOG.UPDATE_ROWS_EVENT_V2,
    BINLOG.DELETE_ROWS_EVENT_V2,
)


def tables(dialect: Dialect = DIALECT) -> WatchedTables:
    history = History()
    versions = {("d", "t"): TableVersion(Definition(COLUMNS, ("id",)), "utf8mb4")}
    history.begin(Record(0, versions, {"d": "utf8mb4"}, is_beginning=True))
    return WatchedTables(Names(["d.t"]), Rules(dialect), history, lambda _begin, _end: {})


def encoder(*, before_images: bool = True) -> WindowEncoder:
    registry = SchemaRegistry(MemoryStore())
    registry.add_source("d.t", 1)
    return WindowEncoder(registry, {"d.t": 1}, before_images)


def image(number: int, name: str | None = None, body: bytes | None = None) -> bytes:
    nulls = (name is None) << 1 | (body is None) << 2
    data = bytes([nulls]) + struct.pack("<i", number)
    if name is not None:
        data += struct.pack("<H", len(name.encode())) + name.encode()
    if body is not None:
        data += struct.pack("<I", len(body)) + body
    return data


def rows(type_code: int, *images: bytes, number: int = 5) -> bytes:
    columns = 3 if number == 5 else 1
    return made.rows_v2(
        type_code, columns, b"".join(images), present=(1 << columns) - 1, number=number
    )


def transaction(*inside: bytes) -> list[bytes]:
    return [made.mysql_gtid(), made.query("BEGIN"), *inside, made.xid()]


def stream(*events: bytes, start: int = 500) -> list[bytes]:
    """Return a whole stream, its events at the offsets they have there."""
    return [
        made.rotate(offset=start),
        made.format_description(),
        *made.placed(*events, start=start),
    ]


def packets(events: Iterable[bytes], number: int = 1) -> bytes:
    """Return events as the server sends them, the first packet being of this number."""
    data = b""
    for event in events:
        payload = b"\0" + event
        while len(payload) >= 0xFFFFFF:
            data += b"\xff\xff\xff" + bytes([number & 0xFF]) + payload[:0xFFFFFF]
            payload = payload[0xFFFFFF:]
            number += 1
        data += len(payload).to_bytes(3, "little") + bytes([number & 0xFF]) + payload
        number += 1
    return data


def in_python(
    events: Sequence[bytes], *, before_images: bool = True, writer: WindowEncoder | None = None
) -> list[EncodedWindow]:
    """Return the windows that the assembler and the encoder make."""
    assembler, writer = Assembler(tables(), DIALECT), writer or encoder(before_images=before_images)
    found = [assembler.receive(event) for event in events]
    return [writer.encode(t) for t in (*found, assembler.take_held()) if t is not None]


def compiled_assembler(
    *, before_images: bool = True, writer: WindowEncoder | None = None
) -> CompiledAssembler:
    writer = writer or encoder(before_images=before_images)
    return CompiledAssembler(tables(), DIALECT, encoder=writer, epoch=0)


def windows_of(items: Iterable[ReadItem]) -> Iterator[EncodedWindow]:
    """Yield the windows that items stand for, those in pieces put together."""
    unfinished = b""
    writer = encoder()
    for item in items:
        if isinstance(item, WindowBatch):
            assert item.window_count > 0
            yield from item.windows()
        elif isinstance(item, WindowPiece):
            unfinished = unfinished[: item.at] + item.data
        elif isinstance(item, WindowEnd):
            assert len(unfinished) == item.length
            data = stamp(unfinished, item.scn, item.timestamp_ns)
            yield EncodedWindow(item.scn, data, item.timestamp_ns)
            unfinished = b""
        else:
            yield writer.encode(item)


def in_cython(
    events: Sequence[bytes],
    *,
    chunk_bytes: int = 1 << 20,
    before_images: bool = True,
    writer: WindowEncoder | None = None,
    room_bytes: int | None = 1 << 17,
) -> list[EncodedWindow]:
    compiled, data = compiled_assembler(before_images=before_images, writer=writer), packets(events)
    room = None if room_bytes is None else Room(room_bytes)
    if room is not None:
        compiled.write_into(room)
    items: list[ReadItem] = []
    for at in range(0, len(data), chunk_bytes):
        chunk = data[at : at + chunk_bytes]
        for item in compiled.receive_bytes(chunk, len(chunk)):
            is_batch = room is not None and isinstance(item, WindowBatch)
            items.append(room.lift(item) if is_batch else item)  # type: ignore
    held = compiled.take_held()
    return list(windows_of([*items, *([held] if held is not None else [])]))


MIXED = stream(
    *transaction(TYPES, rows(WRITE, image(1, "one"), image(2, None, b"\0\xff"))),
    *transaction(UNWATCHED, rows(WRITE, b"\0\1\0\0\0", number=6)),
    *transaction(
        TYPES,
        rows(UPDATE, image(1, "one"), image(1, "ÄÖ,\\"), image(2, "x"), image(3, "x")),
        UNWATCHED,
        rows(DELETE, b"\0\1\0\0\0", number=6),
        rows(DELETE, image(3, "x")),
    ),
    *transaction(
        TYPES,
        rows(WRITE, image(7)),
        made.query("SAVEPOINT a"),
        TYPES,
        rows(WRITE, image(8)),
        made.query("ROLLBACK TO a"),
        TYPES,
        rows(WRITE, image(9)),
    ),
    made.mysql_gtid(24),
    made.query("ALTER TABLE t COMMENT 'x'"),
    *transaction(TYPES, rows(WRITE, image(10))),
)


@pytest.mark.parametrize("before_images", [True, False])
@pytest.mark.parametrize("room_bytes", [None, 1 << 17])
def test_both_make_the_same_windows(before_images: bool, room_bytes: int | None) -> None:
    expected = in_python(MIXED, before_images=before_images)
    assert sum(len(window.data) > 53 for window in expected) == 5
    assert in_cython(MIXED, before_images=before_images, room_bytes=room_bytes) == expected


@settings(max_examples=30)
@given(
    sizes=st.lists(st.lists(st.sampled_from([0, 9, 3000, 70_000]), max_size=4), max_size=8),
    room_bytes=st.sampled_from([1, 1 << 16, 70_000, 150_000, 1 << 20]),
    chunk_bytes=st.sampled_from([1000, 50_000, 1 << 20]),
)
def test_windows_that_have_no_room_in_the_ring_come_after_those_that_have(
    sizes: list[list[int]], room_bytes: int, chunk_bytes: int
) -> None:
    # The first rows, of a version that is not known yet, are Python's.
    events = stream(
        *transaction(TYPES, rows(WRITE, image(1))),
        *chain.from_iterable(
            transaction(TYPES, *(rows(WRITE, image(2, "x", bytes(size))) for size in window))
            for window in sizes
        ),
    )
    found = in_cython(events, room_bytes=room_bytes, chunk_bytes=chunk_bytes)
    assert found == in_cython(events, room_bytes=None)
    assert found == in_python(events)


def test_only_windows_before_all_others_of_their_bytes_are_placed() -> None:
    events = stream(
        *transaction(TYPES, rows(WRITE, image(1))),
        *transaction(TYPES, rows(WRITE, image(2))),
        *transaction(TYPES, rows(WRITE, image(3)), rows(WRITE, image(4, None, bytes(70_000)))),
        *transaction(TYPES, rows(WRITE, image(5))),
    )
    compiled, first = compiled_assembler(), packets(events[:7])
    compiled.write_into(Room(1 << 16))
    assert [item.is_placed for item in batches(compiled, first)] == [True]
    found = batches(compiled, packets(events[7:], number=8))
    assert [(item.is_placed, item.window_count) for item in found] == [(True, 1), (False, 2)]


def batches(compiled: CompiledAssembler, data: bytes) -> list[WindowBatch]:
    items = compiled.receive_bytes(data, len(data))
    return [item for item in items if isinstance(item, WindowBatch)]


@pytest.mark.parametrize("chunk_bytes", [1, 3, 17, 1000])
def test_bytes_may_come_in_any_pieces(chunk_bytes: int) -> None:
    assert in_cython(MIXED, chunk_bytes=chunk_bytes) == in_python(MIXED)


FULL = b"".join(
    (
        b"\x01\x01\0",  # signed
        b"\x02\x03\x2d\x01\x3f",  # utf8mb4, and the second of them binary
        b"\x04\x0d\x02id\x04name\x04note",
        b"\x08\x01\0",  # the key
    )
)
# The same table after an ALTER that the log does not have: another name of the last column.
ALTERED = made.table_map(
    bytes([INT, VARCHAR, LONG_BLOB]),
    struct.pack("<H", 400) + b"\x04",
    nullable=0b110,
    optional=FULL,
    number=5,
)
AS_BEFORE = transaction(TYPES, rows(WRITE, image(1)))
UNSEEN_ALTERS = {
    "by the first rows of a window": transaction(ALTERED, rows(WRITE, image(2), image(3))),
    "behind rows of before": transaction(
        TYPES, rows(WRITE, image(2)), ALTERED, rows(WRITE, image(3)), rows(WRITE, image(4))
    ),
    "and is altered back in the same window": transaction(
        *(TYPES, rows(WRITE, image(2)), ALTERED, rows(WRITE, image(3))),
        *(TYPES, rows(WRITE, image(4)), ALTERED, rows(WRITE, image(5))),
    ),
    "in rows that are rolled back": transaction(
        *(TYPES, rows(WRITE, image(2)), made.query("SAVEPOINT a")),
        *(ALTERED, rows(WRITE, image(3)), made.query("ROLLBACK TO a")),
        *(TYPES, rows(WRITE, image(4))),
    ),
    "by a TABLE_MAP without rows": transaction(TYPES, ALTERED, TYPES, rows(WRITE, image(2))),
    "in a compressed transaction": [
        made.mysql_gtid(),
        made.payload(
            made.query("BEGIN"),
            TYPES,
            rows(WRITE, image(2)),
            ALTERED,
            rows(WRITE, image(3)),
            made.xid(),
        ),
    ],
    "in a transaction that has no end": [
        *transaction(ALTERED, rows(WRITE, image(2)))[:-1],
        made.format_description(end_offset=1),
    ],
    "and a statement that rows follow": [
        *(made.mysql_gtid(), made.query("DROP TABLE t")),
        *transaction(
            made.query(
                "CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(100), note LONGBLOB) "
                "CHARSET utf8mb4 START TRANSACTION"
            ),
            *(ALTERED, rows(WRITE, image(2)), ALTERED, rows(WRITE, image(3))),
        ),
    ],
}


@pytest.mark.parametrize("alter", UNSEEN_ALTERS.values(), ids=UNSEEN_ALTERS)
def test_an_alter_that_only_rows_show_begins_with_their_window_whoever_reads_it(
    alter: list[bytes],
) -> None:
    events = stream(*AS_BEFORE, *alter, *AS_BEFORE, *transaction(ALTERED, rows(WRITE, image(9))))
    writers = encoder(), encoder()
    expected = in_python(events, writer=writers[0])
    assert in_cython(events, writer=writers[1]) == expected
    versions, others = (versions_of(writer) for writer in writers)
    assert versions == others
    # Of a window, and of none before: each begins behind the end of the one before its own.
    ends = [window.scn for window in expected]
    for version in versions[1:]:
        change = change_of(version.text)
        assert change is not None
        assert change.scn == version.start_scn
        window = next(w for w in expected if w.scn >= version.start_scn)
        assert version.schema_id in digests_of(window)
        assert version.start_scn not in ends[: expected.index(window)]
    # Read again, with all that is registered, rows are what they were.
    assert in_python(events, writer=writers[1]) == expected
    assert in_cython(events, writer=writers[0]) == expected
    assert versions_of(writers[0]) == versions


def versions_of(writer: WindowEncoder) -> Sequence[SchemaVersion]:
    return writer._registry.versions("d.t")


def digests_of(window: EncodedWindow) -> set[bytes]:
    found = (event.payload for event in walk(window.data) if isinstance(event, Event))
    return {part.digest for part in found if part is not None}


def test_an_event_of_several_packets_is_one_event() -> None:
    big = stream(
        *transaction(TYPES, rows(WRITE, image(1, "a", bytes(0xFFFFFF * 2 + 12345)))),
        *transaction(TYPES, rows(WRITE, image(2, "b"))),
    )
    rest = 0xFFFFFF - 1 - len(rows(WRITE, image(1, None, b"")))
    exact = stream(*transaction(TYPES, rows(WRITE, image(1, None, bytes(rest)))))
    assert any(len(event) + 1 == 0xFFFFFF for event in exact)
    assert in_cython(big) == in_python(big)
    assert in_cython(exact) == in_python(exact)


def test_a_large_window_comes_in_pieces_and_its_memory_is_given_back() -> None:
    some = [rows(WRITE, *(image(n, "x" * 90, bytes(400)) for n in range(200)))] * 150
    events = stream(*transaction(TYPES, *some), *transaction(TYPES, rows(WRITE, image(1))))
    compiled, data = compiled_assembler(), packets(events)
    items = list(compiled.receive_bytes(data, len(data)))
    pieces = [item for item in items if isinstance(item, WindowPiece)]
    assert len(pieces) > 3
    assert all(len(piece.data) < 2 * PIECE_BYTES for piece in pieces)
    assert list(windows_of(items)) == in_python(events)


def test_pieces_say_where_their_transaction_begins() -> None:
    some = [rows(WRITE, *(image(n, "x" * 90, bytes(400)) for n in range(200)))] * 60
    compiled, data = compiled_assembler(), packets(stream(*transaction(TYPES, *some), start=500))
    items = list(compiled.receive_bytes(data, len(data)))
    begins = {item.begin_scn for item in items if isinstance(item, WindowPiece)}
    assert begins == {BinlogPosition(0, 7, 500).to_scn()}


def test_what_is_held_back_is_not_given_out_while_another_is_under_way() -> None:
    empty = transaction(UNWATCHED, rows(WRITE, b"\0\1\0\0\0", number=6))
    begun = [made.mysql_gtid(), made.query("BEGIN"), TYPES, rows(WRITE, image(1))]
    for assembler in (compiled_assembler(), Assembler(tables(), DIALECT)):
        events = stream(*empty, *empty, *begun, made.xid())
        if isinstance(assembler, CompiledAssembler):
            data = packets(events[:-1])
            assert len(list(assembler.receive_bytes(data, len(data)))) == 1
        else:
            assert sum(assembler.receive(event) is not None for event in events[:-1]) == 1
        assert assembler.take_held() is None


def test_the_rows_of_a_compressed_transaction_are_handed_over_while_it_is_read() -> None:
    some = [rows(WRITE, *(image(n, "x" * 90, bytes(400)) for n in range(200)))] * 150
    inside = made.payload(made.query("BEGIN"), TYPES, *some, made.xid())
    events = stream(made.mysql_gtid(), inside)
    compiled, data = compiled_assembler(), packets(events)
    reading = compiled.receive_bytes(data, len(data))
    first = next(reading)
    assert isinstance(first, WindowPiece)
    assert len(first.data) < 2 * PIECE_BYTES
    assert list(windows_of([first, *reading])) == in_python(events)


def test_an_image_without_any_column_is_not_taken_for_no_row() -> None:
    dialect = replace(DIALECT, delivers_partial_rows=True)
    empty = made.rows_v2(WRITE, 3, b"", present=0)
    for assembler in (
        CompiledAssembler(tables(dialect), dialect, encoder=encoder(), epoch=0),
        Assembler(tables(dialect), dialect),
    ):
        events = stream(*transaction(TYPES, empty))

        def read(assembler: Assembler = assembler, events: Sequence[bytes] = events) -> None:
            if isinstance(assembler, CompiledAssembler):
                list(assembler.receive_bytes(packets(events), len(packets(events))))
            for event in events:
                assembler.receive(event)

        with pytest.raises(AssemblyStopped, match="lacks id, of the key"):
            read()


def test_what_was_handed_over_can_be_taken_back() -> None:
    some = [rows(WRITE, *(image(n, "x" * 90, bytes(400)) for n in range(200)))] * 60
    events = stream(
        *transaction(
            TYPES,
            *some,
            made.query("SAVEPOINT a"),
            TYPES,
            *some,
            made.query("ROLLBACK TO a"),
            TYPES,
            rows(WRITE, image(1)),
        ),
        made.mysql_gtid(25),
        made.query("BEGIN"),
        TYPES,
        *some,
        made.query("ROLLBACK"),
        *transaction(TYPES, rows(WRITE, image(2))),
    )
    assert in_cython(events) == in_python(events)


def test_a_transaction_that_a_crash_cut_off_leaves_nothing_behind() -> None:
    begun = [made.mysql_gtid(), made.query("BEGIN"), TYPES, rows(WRITE, image(1))]
    events = [
        *stream(*begun),
        made.rotate("binlog.000008"),
        *made.placed(
            made.format_description(), *transaction(TYPES, rows(WRITE, image(2))), start=4
        ),
    ]
    assert in_cython(events) == in_python(events)


def test_transactions_that_end_beyond_4_gib_become_one() -> None:
    start = (1 << 32) - 400
    events = [
        *stream(
            *transaction(TYPES, rows(WRITE, image(1))),
            *transaction(TYPES, rows(WRITE, image(2, "x" * 90))),
            *transaction(TYPES, rows(WRITE, image(3, "x" * 90))),
            *transaction(TYPES, rows(WRITE, image(4, "x" * 90))),
            start=start,
        ),
        made.rotate("binlog.000008"),
        *made.placed(
            made.format_description(), *transaction(TYPES, rows(WRITE, image(5))), start=4
        ),
    ]
    expected = in_python(events)
    assert [window.scn >> 32 for window in expected if len(window.data) > 53] == [7, 8, 8]
    assert in_cython(events) == expected


def test_an_xa_transaction_comes_with_its_commit() -> None:
    prepared = struct.pack("<BIII", 0, 1, 1, 0) + b"a"
    events = stream(
        made.mysql_gtid(),
        made.query("XA START X'61',X'',1"),
        TYPES,
        rows(WRITE, image(1)),
        made.query("XA END X'61',X'',1"),
        made.event(38, prepared),
        *transaction(TYPES, rows(WRITE, image(2))),
        made.mysql_gtid(26),
        made.query("XA COMMIT X'61',X'',1"),
        *transaction(TYPES, rows(WRITE, image(3))),
    )
    expected = in_python(events)
    assert sum(len(window.data) > 53 for window in expected) == 3
    assert in_cython(events) == expected


@pytest.mark.parametrize("compression", [0, 255])
def test_a_compressed_transaction_is_read_by_both(compression: int) -> None:
    inside = (made.query("BEGIN"), TYPES, rows(WRITE, image(1), image(2, "x")), made.xid())
    events = stream(made.mysql_gtid(), made.payload(*inside, compression=compression))
    assert in_cython(events) == in_python(events)


def test_more_tables_than_are_remembered_are_read_all_the_same() -> None:
    events = []
    for number in range(10, 6000):
        other = made.table_map(bytes([INT]), table=f"t{number}", number=number)
        events += transaction(other, rows(WRITE, b"\0\1\0\0\0", number=number))
    events += transaction(TYPES, rows(WRITE, image(1)))
    placed = stream(*events)
    assert in_cython(placed) == in_python(placed)


@pytest.mark.parametrize("text", ["/* by hand */ INSERT", "INSERT /*", "INSERT", "/**/ INSERT x"])
def test_the_comment_of_a_statement_goes_with_its_rows_alone(text: str) -> None:
    told = made.event(BINLOG.ROWS_QUERY_LOG_EVENT, bytes([len(text)]) + text.encode())
    first = bytearray(rows(WRITE, image(1)))
    first[19 + 6] = 1  # the end of the statement
    events = stream(*transaction(told, TYPES, bytes(first), TYPES, rows(WRITE, image(2))))
    assert in_cython(events) == in_python(events)


def test_what_the_server_says_at_the_end_comes_after_what_it_sent() -> None:
    data = packets(MIXED) + bytes([5, 0, 0, len(MIXED) + 1 & 0xFF]) + b"\xfe\0\0\2\0"
    compiled, found = compiled_assembler(), []

    def read() -> None:
        for item in compiled.receive_bytes(data, len(data)):
            found.append(item)  # noqa: PERF402 - kept when the next one raises

    with pytest.raises(StreamEnded):
        read()
    held = compiled.take_held()
    assert list(windows_of([*found, *([held] if held else [])])) == in_python(MIXED)


def _outcome(read: Any) -> tuple[list[EncodedWindow], str]:
    try:
        return read(), ""
    except (AssemblyStopped, StreamEnded, StreamBrokenError, UnfitRowError) as error:
        return [], str(error)


@given(st.data())
def test_damage_is_said_in_the_same_words(data: st.DataObject) -> None:
    events = list(MIXED)
    number = data.draw(st.integers(2, len(events) - 1))
    event = bytearray(events[number])
    at = data.draw(st.integers(13, len(event) - 1))
    event[at] ^= data.draw(st.integers(1, 255))
    events[number] = bytes(event)

    def plain() -> list[EncodedWindow]:
        reader = PacketReader()
        return in_python(list(reader.receive(packets(events))))

    assert _outcome(lambda: in_cython(events)) == _outcome(plain)


@pytest.mark.parametrize("piece_bytes", [1, 7, 1 << 20])
def test_a_packet_that_is_not_the_next_or_not_as_long_as_its_event_breaks_the_stream_at_once(
    piece_bytes: int,
) -> None:
    whole = packets(MIXED[:2])
    last = len(packets(MIXED[:1]))
    too_long, another = bytearray(whole), bytearray(whole)
    too_long[last + 2] ^= 1
    another[last + 3] ^= 1
    for data in (too_long, another):
        # What follows it is never asked for: it would be waited for in vain.
        chunks = [bytes(data[at : at + piece_bytes]) for at in range(0, last + 40, piece_bytes)]
        compiled, reader = compiled_assembler(), PacketReader()
        with pytest.raises(StreamBrokenError):
            list(chain.from_iterable(compiled.receive_bytes(c, len(c)) for c in chunks))
        with pytest.raises(StreamBrokenError):
            list(chain.from_iterable(map(reader.receive, chunks)))
