"""Streams that LinkedIn's relay sent, read and written by this project: the same rows and bytes."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest

from databus.schemas.avro_rows import row_codec, schema_id
from databus.schemas.event import v1 as event_v1, v2 as event_v2
from databus.schemas.event.control import end_of_period
from databus.schemas.event.event import Event, Opcode, Part
from databus.schemas.event.layout import V1, V1_COVERED_AT
from databus.schemas.stream import row_reader
from databus.schemas.stream.row_event import wire_bytes
from databus.schemas.stream.row_reader import RowReader, RowWindow
from databus.schemas.stream.stream_reader import StreamReader, Window
from tests.promises.stock_databus.recordings import CODE, PERSON, recorded
from tests.schemas.event.independent import bitwise_event_crc

VERSIONS = {"v1": event_v1, "v2": event_v2}
SOURCES = {101: PERSON, 102: CODE}
SRC_IDS = {name: src_id for src_id, name in SOURCES.items()}
BY_VERSION = pytest.mark.parametrize("version", VERSIONS)
CHUNKS = pytest.mark.parametrize("chunk_bytes", [1 << 20, 1000, 7])

# In version 1 the recorded relay has its rows in logical partition 1 of physical partition 0,
# in version 2, which has room for one id, in 0. An event of this project has one id.
LOGICAL_PARTITION = {"v1": 1, "v2": 0}


def expected(version: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in recorded(f"{version}.expected.jsonl").splitlines()]


def texts(version: str) -> dict[int, str]:
    return {one["id"]: one["schema"] for one in json.loads(recorded(f"{version}.register.json"))}


def columns(row: dict[str, Any]) -> dict[str, Any]:
    """Return an expected row with the names and types of its schema."""
    return {
        "key" if row["src"] == PERSON else "code": row["key"],
        "firstName": row["first"],
        "amount": row["amount"],
        "blob": None if row["blob"] is None else bytes.fromhex(row["blob"]),
    }


def found(event: Event, version: str) -> dict[str, Any]:
    """Return an event as the expected rows are."""
    values = row_codec(texts(version)[event.src_id]).decode(event.value)
    key, first, amount, blob = values.values()
    assert (event.key if isinstance(event.key, int) else event.key.decode()) == key
    assert event.schema_id == schema_id(texts(version)[event.src_id])
    return {
        "scn": event.scn,
        "src": SOURCES[event.src_id],
        "op": event.opcode.name,
        "key": key,
        "first": first,
        "amount": amount,
        "blob": None if blob is None else blob.hex(),
    }


def chunks(data: bytes, chunk_bytes: int) -> Iterator[bytes]:
    for at in range(0, len(data), chunk_bytes):
        yield data[at : at + chunk_bytes]


def recorded_events(version: str) -> list[tuple[Event, bytes]]:
    """Return each recorded event with its bytes."""
    data, at, events = recorded(f"{version}.stream.bin"), 0, []
    while at < len(data):
        event, end = VERSIONS[version].decode(data, at)
        events.append((event, data[at:end]))
        at = end
    return events


@CHUNKS
@BY_VERSION
def test_the_stream_reader_gives_the_rows_that_were_put_in(version: str, chunk_bytes: int) -> None:
    reader = StreamReader(1 << 20)
    rows = []
    for chunk in chunks(recorded(f"{version}.stream.bin"), chunk_bytes):
        for window in reader.receive(chunk):
            assert isinstance(window, Window)
            rows += [found(event, version) for event in window.events]
    reader.close()
    assert rows == expected(version)


@pytest.mark.parametrize("way", ["compiled", "python"])
@CHUNKS
@BY_VERSION
def test_the_row_reader_gives_the_rows_that_were_put_in(
    version: str, chunk_bytes: int, way: str
) -> None:
    ahead = row_reader.take_rows if way == "compiled" else None
    reader = RowReader(1 << 20)
    reader.known = frozenset((src_id, schema_id(text)) for src_id, text in texts(version).items())
    rows, windows = [], 0
    with patch.object(row_reader, "take_rows", ahead):
        for chunk in chunks(recorded(f"{version}.stream.bin"), chunk_bytes):
            for window in reader.receive(chunk):
                assert isinstance(window, RowWindow)
                windows += 1
                rows += [
                    found(event_v2.decode(wire_bytes(row))[0], version) for row in window.events
                ]
        reader.close()
    assert (windows, rows) == (60, expected(version))


@BY_VERSION
def test_the_writer_gives_the_bytes_that_the_relay_sent(version: str) -> None:
    rows = iter(expected(version))
    for event, wire in recorded_events(version):
        if event.is_eop:
            written = VERSIONS[version].encode(end_of_period(event.scn, event.timestamp_ns))
        else:
            written = written_row(next(rows), event.timestamp_ns, version)
        assert written.hex() == wire.hex()
    assert next(rows, None) is None


def written_row(row: dict[str, Any], timestamp_ns: int, version: str) -> bytes:
    """Return the bytes of an expected row, of which only the time was recorded."""
    src_id = SRC_IDS[row["src"]]
    text = texts(version)[src_id]
    event = Event(
        row["scn"],
        timestamp_ns,
        src_id,
        LOGICAL_PARTITION[version],
        row["key"] if isinstance(row["key"], int) else row["key"].encode(),
        Opcode[row["op"]],
        Part(row_codec(text).encode(columns(row)), schema_id(text)),
        None,
    )
    wire = VERSIONS[version].encode(event)
    return in_physical_partition_0(wire) if version == "v1" else wire


def in_physical_partition_0(wire: bytes) -> bytes:
    """Return a version 1 event in another physical partition."""
    data = bytearray(wire)
    field = V1.physical_partition_id
    data[field.offset : field.end] = bytes(field.end - field.offset)
    checked = data[V1_COVERED_AT : event_v1.header_length(data, 0)]
    struct.pack_into(">I", data, V1.header_crc.offset, bitwise_event_crc(bytes(checked)))
    return bytes(data)
