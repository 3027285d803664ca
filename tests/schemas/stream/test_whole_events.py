"""Whole events told from others: the compiled way and the plain one say the same."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from unittest.mock import patch

import pytest
from hypothesis import given, strategies as st

from databus.schemas.errors import ProtocolError
from databus.schemas.event.crc import event_crc
from databus.schemas.event.event import Event, Opcode, Part
from databus.schemas.event.layout import (
    LONG_KEY,
    PART,
    V2_LONG_KEY_HEADER_BYTES,
    V2_MAGIC,
    V2_SMALLEST_BYTES,
)
from databus.schemas.event.v2 import decode, encode
from databus.schemas.stream import _row_cutter as row_cutter, whole_events
from databus.schemas.stream.whole_events import check_events, count_events

PAYLOAD = Part(b"a row" * 9, b"d" * 16)
EVENTS = [
    encode(Event(5, 7, 1, 0, 42, Opcode.UPSERT, PAYLOAD, Part(b"metadata", b"1234"))),
    encode(Event(6, 7, 1, 0, b"a key of bytes", Opcode.DELETE, PAYLOAD, None)),
    encode(Event(6, 7, 1, 0, b"", Opcode.UPSERT, PAYLOAD, None)),
    encode(Event(9, 7, 2, 0, -1, Opcode.UPSERT, PAYLOAD, None)),
]


@pytest.fixture(params=["compiled", "plain"], autouse=True)
def pass_whole(request: pytest.FixtureRequest) -> Iterator[None]:
    """Both ways to pass over whole events."""
    ahead = row_cutter.pass_whole if request.param == "compiled" else None
    with patch.object(whole_events, "pass_whole", ahead):
        yield


def test_whole_events_are_counted() -> None:
    assert count_events(b"") == 0
    assert count_events(b"".join(EVENTS)) == len(EVENTS)


@pytest.mark.parametrize("event", EVENTS)
def test_no_bit_can_be_another_and_no_byte_missing(event: bytes) -> None:
    for bit in range(len(event) * 8):
        flipped = bytearray(event)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ProtocolError):
            count_events(event + bytes(flipped))
    for length in range(1, len(event)):
        with pytest.raises(ProtocolError):
            count_events(event + event[:length])


def test_fewer_events_than_rows_are_damage() -> None:
    check_events(b"".join(EVENTS), 4)
    with pytest.raises(ProtocolError, match="4 events where 5 should be"):
        check_events(b"".join(EVENTS), 5)


def test_what_is_no_bytes_is_no_event() -> None:
    with pytest.raises(ProtocolError, match="NoneType where an event's bytes should be"):
        count_events(None)


@given(
    st.integers(0, 0x1FF), st.integers(-3, 3), st.binary(max_size=8), st.integers(0, 60), st.data()
)
def test_an_event_of_right_crcs_counts_only_if_its_inside_is_one(
    bits: int, src_id: int, key: bytes, body_bytes: int, data: st.DataObject
) -> None:
    body = bytearray(data.draw(st.binary(min_size=body_bytes, max_size=body_bytes)))
    if body_bytes >= PART.md5.offset and data.draw(st.booleans()):  # a part's head, more often
        length = data.draw(st.integers(0, body_bytes))
        struct.pack_into(">IH", body, 0, length, data.draw(st.integers(0, 3)))
    event = _sealed(bits, src_id, key, bytes(body))
    try:
        decode(event)
    except ProtocolError as error:
        with pytest.raises(ProtocolError, match=re.escape(str(error))):
            count_events(event)
        assert row_cutter.pass_whole(event, 0) == (0, 0)
    else:
        assert count_events(event) == 1
        assert row_cutter.pass_whole(event, 0) == (len(event), 1)


def test_an_event_shorter_than_any_with_a_long_key_counts() -> None:
    event = _sealed(0x08, -1, b"", b"")
    assert count_events(event) == 1
    assert row_cutter.pass_whole(event + EVENTS[0], 0) == (len(event) + len(EVENTS[0]), 2)


def _sealed(bits: int, src_id: int, key: bytes, body: bytes) -> bytes:
    """Return an event of these parts, whatever they are, with the CRCs that belong to them."""
    header_bytes = V2_SMALLEST_BYTES + len(key)
    checked = struct.pack(
        ">IIHqihq", event_crc(body), header_bytes + len(body), bits, 7, src_id, 0, 5
    )
    if bits & LONG_KEY:
        header_bytes = V2_LONG_KEY_HEADER_BYTES
        checked = struct.pack(
            ">IIHqihqq", event_crc(body), header_bytes + len(body), bits, 7, src_id, 0, 5, 42
        )
    else:
        checked += struct.pack(">I", len(key)) + key
    return struct.pack(">BIII", 2, V2_MAGIC, header_bytes, event_crc(checked)) + checked + body


def test_compiled_code_passes_over_every_kind_of_event_itself() -> None:
    data = b"".join(EVENTS)
    assert row_cutter.pass_whole(data, 0) == (len(data), len(EVENTS))
    assert row_cutter.pass_whole(data[:-1], 0) == (len(data) - len(EVENTS[-1]), 3)
    assert row_cutter.pass_whole(data, -1) == (-1, 0)
