"""Plain windows: compiled code builds the entries that Python builds, byte for byte."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from databus.relay.serving.canal import entries
from databus.relay.serving.canal._plain_windows import WindowWriter
from databus.relay.serving.canal.entries import Entry, EntryWriter, Kind
from databus.relay.serving.canal.messages import table_fields
from databus.relay.serving.columns.column_writer import column_writer
from databus.schemas.avro_rows import row_codec, schema_id
from databus.schemas.errors import ProtocolError
from databus.schemas.event.event import Event, Opcode, Part
from databus.schemas.event.metadata import (
    EventMetadata,
    Notes,
    Op,
    encode_metadata,
    metadata_part,
)
from databus.schemas.event.v2 import encode
from databus.schemas.table import Column, Table
from databus.schemas.table_schema import avro_schema
from tests.relay.serving.canal.test_entries import COMMITTED_NS, ddl, eop, scn, truncate

TEXTS = [
    avro_schema(Table(name, (Column("id", "int", 0, False, 0), Column("note", "text", 1))))
    for name in ("shop.orders", "shop.ördërs")
]
BY_ID = {schema_id(text): text for text in TEXTS}
NUMBERS = st.sampled_from([0, 1, 127, 128, 999_999, 1 << 31, (1 << 47) + 5, 1 << 50])
METADATA = st.builds(
    EventMetadata,
    st.sampled_from([Op.INSERT, Op.INSERT, Op.UPDATE, Op.DELETE, Op.SNAPSHOT]),
    st.sampled_from([None, "", "0-1-7", "3e11fa47-71ca-11e1-9e33-c80aa9429562:5", "é"]),
    NUMBERS,
    st.sampled_from(
        ["", "mysql-bin.000007", "a.b.c.1", "bin", "bin.x1", "7", ".7", "lög.1", "a\n.1"]
    ),
    NUMBERS,
    st.just(0),
    NUMBERS,
    st.sampled_from([None, row_codec(TEXTS[0]).encode({"id": 5, "note": "before"})]),
    st.sampled_from([None, "told"]),
    st.sampled_from([None, None, None, Notes(absent=(1,))]),
)
ROWS = st.tuples(METADATA, st.sampled_from(TEXTS), st.integers(0, 9000), st.integers(0, 20))
WINDOWS = st.lists(st.lists(ROWS, max_size=5), min_size=1, max_size=5)


def event(row: Any, end: int) -> bytes:
    metadata, text, size, times = row
    payload = Part(row_codec(text).encode({"id": size, "note": "x" * size}), schema_id(text))
    part, opcode = metadata_part(encode_metadata(metadata)), Opcode.UPSERT
    key = b"k" if size % 2 else 7
    data = encode(Event(end, COMMITTED_NS + size, 7, 0, key, opcode, payload, part))
    return data * int(times)


def windows_of(windows: Sequence[Sequence[Any]]) -> list[bytes]:
    return [
        b"".join([event(row, scn(1000 * number, 1 << 4 * number)) for row in rows])
        + eop_at(scn(1000 * number, 1 << 4 * number))
        for number, rows in enumerate(windows, 1)
    ]


def eop_at(end: int) -> bytes:
    return eop(end - scn(0))


def entries_of(bodies: Sequence[bytes], *, is_compiled: bool) -> list[Entry] | str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entries, "is_compiled", is_compiled)
        writer = EntryWriter(BY_ID.__getitem__, lambda _: "shop.orders")
        try:
            return [one for body in bodies for one in writer.entries(body)]
        except (ProtocolError, KeyError) as error:
            return repr(error)


def assert_same(bodies: Sequence[bytes]) -> None:
    assert entries_of(bodies, is_compiled=True) == entries_of(bodies, is_compiled=False)


@settings(max_examples=300, deadline=None)
@given(WINDOWS, st.booleans(), st.integers(0, 4))
def test_entries_are_those_that_python_builds(
    windows: list[list[Any]], is_whole: bool, other_at: int
) -> None:
    bodies = windows_of(windows)
    other = [ddl("ALTER TABLE orders ADD x INT") + eop(), truncate() + eop(), eop(), b""]
    bodies.insert(other_at % len(bodies), other[other_at % len(other)])
    assert_same([b"".join(bodies)] if is_whole else bodies)


@settings(max_examples=100, deadline=None)
@given(WINDOWS, st.integers(0, 1 << 20), st.integers(0, 255))
def test_damage_is_told_as_python_tells_it(windows: list[list[Any]], at: int, byte: int) -> None:
    body = bytearray(b"".join(windows_of(windows)))
    body[at % len(body)] = byte
    writer = window_writer()
    assert writer.take(bytes(body), 0, []) <= len(body)
    assert writer.take(bytes(body[: at % len(body)]), 0, []) <= at % len(body)


def window_writer() -> WindowWriter:
    def know(schema: bytes) -> tuple[Any, bytes, tuple[str]]:
        text = BY_ID.get(schema)
        return (text and column_writer(text).compiled), table_fields("a.b"), ("a.b",)

    kinds = (Kind.BEGIN, Kind.ROWS, Kind.END)
    return WindowWriter(know, Entry, kinds, table_fields(""), (8192, 75, 31))


def plain(times: int, end: int = 500) -> bytes:
    metadata = EventMetadata(Op.INSERT, "0-1-7", 9, "binlog.000003", 100)
    return event((metadata, TEXTS[0], 9, times), scn(end)) + eop(end)


def test_plain_windows_are_taken_to_their_end() -> None:
    found: list[Entry] = []
    body = plain(1) + plain(500, 700)
    assert window_writer().take(body, 0, found) == len(body)
    kinds = [one.kind for one in found]
    assert kinds[:4] == [Kind.BEGIN, Kind.ROWS, Kind.END, Kind.BEGIN]
    assert kinds.count(Kind.ROWS) > 5
    assert sum(one.size_bytes for one in found if one.kind is Kind.ROWS) == len(body) - 2 * len(
        eop()
    )


def test_what_is_not_whole_is_left() -> None:
    found: list[Entry] = []
    body = plain(1) + plain(2, 700)
    assert window_writer().take(body[:-1], 0, found) == len(plain(1))
    assert len(found) == 3
    assert window_writer().take(plain(1), 1, []) == 1
    with pytest.raises(ValueError, match="no window begins there"):
        window_writer().take(body, len(body) + 1, [])


def test_a_wrong_crc_is_left_to_python() -> None:
    for at in (30, 60, len(plain(1)) - 40):
        body = bytearray(plain(1))
        body[at] ^= 1
        assert window_writer().take(bytes(body), 0, []) == 0
        assert isinstance(entries_of([bytes(body)], is_compiled=True), str)
