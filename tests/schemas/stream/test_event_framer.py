"""The framer: where whole events end, and how large a window may be."""

from __future__ import annotations

import pytest

from databus.schemas.errors import ProtocolError, WindowTooLargeError
from databus.schemas.event import v1 as event_v1, v2 as event_v2
from databus.schemas.event.event import Event, Opcode, Part
from databus.schemas.event.layout import V2
from databus.schemas.stream.event_framer import EventFramer

EVENT = Event(7, 1, 40, 0, 5, Opcode.UPSERT, Part(b"row", b"a" * 16), None)


def test_a_chunk_behind_nothing_is_handed_on_as_it_is() -> None:
    chunk = b"whole"
    assert EventFramer(100).join(chunk) is chunk


@pytest.mark.parametrize("encode", [event_v1.encode, event_v2.encode])
def test_pieces_wait_until_the_event_is_whole(encode: object) -> None:
    assert callable(encode)
    data: bytes = encode(EVENT)
    framer = EventFramer(1000)
    framer.keep(data[:62], 0)
    assert framer.is_cut(data[:62], 0)
    assert framer.join(data[62:-1]) is None
    assert framer.join(data[-1:]) == data


def test_a_response_must_not_end_inside_an_event() -> None:
    framer = EventFramer(1000)
    framer.keep(b"-" * 12, 0)
    with pytest.raises(ProtocolError, match="response ends 12 bytes into an event"):
        framer.close()
    framer.reset()
    framer.close()


def test_a_length_is_believed_only_once_the_header_crc_confirms_it() -> None:
    data = bytearray(event_v2.encode(EVENT))
    data[V2.length.offset] ^= 0x40  # a gigabyte
    with pytest.raises(ProtocolError, match="header CRC does not match"):
        EventFramer(1 << 40).is_cut(bytes(data), 0)


def test_what_begins_no_event_is_not_cut() -> None:
    assert not EventFramer(1000).is_cut(b"\x02\xca\xfe\xde\xee", 0)
    assert not EventFramer(1000).is_cut(b"\x07", 0)


def test_a_window_is_refused_as_soon_as_its_size_is_known() -> None:
    data = event_v2.encode(EVENT)
    framer = EventFramer(len(data) - 1)
    with pytest.raises(WindowTooLargeError):
        framer.is_cut(data[:-1], 0)


def test_the_size_of_a_window_is_counted_anew_after_its_end() -> None:
    framer = EventFramer(100)
    framer.count(60, 60)
    assert framer.window_bytes == 60
    framer.window_bytes = 0
    framer.count(60, 120)
    with pytest.raises(WindowTooLargeError):
        framer.count(41, 161)
