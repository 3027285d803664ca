"""Whole events told from others: the compiled way and the plain one say the same."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest

from databus.schemas.errors import ProtocolError
from databus.schemas.event.event import Event, Opcode, Part
from databus.schemas.event.v2 import encode
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


def test_compiled_code_passes_over_every_kind_of_event_itself() -> None:
    data = b"".join(EVENTS)
    assert row_cutter.pass_whole(data, 0) == (len(data), len(EVENTS))
    assert row_cutter.pass_whole(data[:-1], 0) == (len(data) - len(EVENTS[-1]), 3)
    assert row_cutter.pass_whole(data, -1) == (-1, 0)
