"""Events of both versions: round trips, and bytes that are no events."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hypothesis import example, given, strategies as st

from databus.schemas.errors import ProtocolError
from databus.schemas.event import v1 as event_v1, v2 as event_v2
from databus.schemas.event.crc import event_crc
from databus.schemas.event.event import Event, Opcode, Part
from databus.schemas.event.layout import HAS_PAYLOAD, LONG_KEY, V2_MAGIC
from databus.schemas.stream.stream_reader import decode_event, walk
from tests.schemas.event.independent import events, v1_events

ROW = Event(5, 6, 40, 1, 77, Opcode.UPSERT, Part(b"row", b"m" * 16, 3), Part(b"meta", b"crc3", 1))
Decode = Callable[[bytes], object]


@given(events())
def test_version_2_gives_back_what_it_was_given(event: Event) -> None:
    data = event_v2.encode(event)
    assert event_v2.decode(data) == (event, len(data))
    assert event_v2.decode(memoryview(b"-" + data), 1) == (event, len(data) + 1)
    assert decode_event(bytearray(data)) == (event, len(data))


@given(v1_events())
def test_version_1_gives_back_what_it_was_given(event: Event) -> None:
    data = event_v1.encode(event)
    assert event_v1.decode(data) == (event, len(data))
    assert decode_event(b"+" + data, 1) == (event, len(data) + 1)


@given(events().filter(lambda event: -(1 << 15) <= event.src_id < 1 << 15))
def test_version_2_as_version_1_keeps_all_that_there_is_room_for(event: Event) -> None:
    back, _ = event_v1.decode(event_v2.to_v1(event_v2.encode(event)))
    assert back[:6] == event[:6]
    assert (back.value, back.schema_id) == (event.value, event.schema_id)
    assert (back.is_replicated, back.is_traced) == (event.is_replicated, event.is_traced)
    assert back.metadata is None


@given(events(), events())
def test_peeking_tells_the_same_as_decoding(first: Event, second: Event) -> None:
    data = event_v2.encode(first) + event_v2.encode(second)
    offset = event_v2.peek(data, 0).length
    peeked = event_v2.peek(data, offset)
    assert (peeked.scn, peeked.src_id) == (second.scn, second.src_id)
    assert (peeked.timestamp_ns, peeked.partition_id) == (second.timestamp_ns, second.partition_id)
    assert (peeked.is_eop, peeked.is_control) == (second.is_eop, second.is_control)
    assert event_v2.peek_key(data, offset, peeked) == second.key
    assert peeked.has_long_key is isinstance(second.key, int)
    assert offset + peeked.length == len(data)


def test_peeking_at_too_few_bytes_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="cut short"):
        event_v2.peek(event_v2.encode(ROW)[:44])


@given(st.lists(st.one_of(events().map(event_v2.encode), v1_events().map(event_v1.encode))))
def test_walking_a_buffer_yields_each_event(encoded: list[bytes]) -> None:
    walked = list(walk(b"".join(encoded)))
    assert walked == [decode_event(data)[0] for data in encoded]


@pytest.mark.parametrize("decode", [event_v1.decode, event_v2.decode, decode_event])
def test_random_bytes_raise_only_protocol_errors(decode: Decode) -> None:
    @given(st.binary(max_size=200), st.sampled_from([b"", b"\x00", b"\x02\xca\xfe\xde\xed"]))
    def check(data: bytes, beginning: bytes) -> None:
        with pytest.raises(ProtocolError):
            decode(beginning + data)

    check()


@given(events(), st.data())
@example(ROW, None)
def test_version_2_cut_anywhere_is_a_protocol_error(
    event: Event, data: st.DataObject | None
) -> None:
    encoded = event_v2.encode(event)
    cuts = range(len(encoded)) if data is None else [data.draw(st.integers(0, len(encoded) - 1))]
    for cut in cuts:
        with pytest.raises(ProtocolError):
            event_v2.decode(encoded[:cut])


@given(v1_events(), st.data())
def test_version_1_cut_anywhere_is_a_protocol_error(event: Event, data: st.DataObject) -> None:
    encoded = event_v1.encode(event)
    with pytest.raises(ProtocolError):
        event_v1.decode(encoded[: data.draw(st.integers(0, len(encoded) - 1))])


@pytest.mark.parametrize("key", [77, b"key"])
@pytest.mark.parametrize("module", [event_v1, event_v2])
def test_each_flipped_bit_is_noticed(module: object, key: int | bytes) -> None:
    encoded = module.encode(ROW._replace(key=key))  # type: ignore[attr-defined]
    for place in range(len(encoded) * 8):
        damaged = bytearray(encoded)
        damaged[place // 8] ^= 1 << place % 8
        with pytest.raises(ProtocolError):
            decode_event(bytes(damaged))


@given(events(), st.data())
def test_walking_damaged_bytes_raises_only_protocol_errors(
    event: Event, data: st.DataObject
) -> None:
    encoded = bytearray(event_v2.encode(ROW) + event_v2.encode(event) + event_v2.encode(ROW))
    place = data.draw(st.integers(0, len(encoded) - 1))
    encoded[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ProtocolError):
        list(walk(bytes(encoded)))


def test_a_negative_offset_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError):
        event_v2.decode(event_v2.encode(ROW) * 2, -len(event_v2.encode(ROW)))
    with pytest.raises(ProtocolError):
        event_v1.decode(event_v1.encode(ROW) * 2, -len(event_v1.encode(ROW)))


def test_an_error_names_the_place_in_the_buffer() -> None:
    good = event_v2.encode(ROW)
    with pytest.raises(ProtocolError) as caught:
        event_v2.decode(good + good[:-1] + b"\xff", len(good))
    assert caught.value.offset == len(good) + 13
    assert "body CRC" in caught.value.problem


def test_a_row_event_with_the_src_id_of_a_control_event_is_refused() -> None:
    with pytest.raises(ProtocolError, match="opcode"):
        event_v2.decode(event_v2.encode(ROW._replace(src_id=-2)))
    with pytest.raises(ProtocolError, match="opcode"):
        event_v2.decode(event_v2.encode(ROW._replace(opcode=Opcode.CONTROL)))


def test_a_version_1_row_without_opcode_is_refused() -> None:
    with pytest.raises(ProtocolError, match="neither an upsert nor a delete"):
        event_v1.decode(event_v1.encode(ROW._replace(opcode=Opcode.CONTROL)))


def test_parts_of_either_digest_may_stand_in_either_place() -> None:
    for payload_digest in (b"4byt", b"m" * 16):
        for metadata_digest in (b"4byt", b"m" * 16):
            event = ROW._replace(
                payload=Part(b"p", payload_digest, 9), metadata=Part(b"", metadata_digest, 0)
            )
            assert event_v2.decode(event_v2.encode(event))[0] == event


def test_a_part_that_claims_more_than_the_body_is_refused() -> None:
    whole = event_v2.encode_part(Part(b"row", b"m" * 16))
    for claimed in (4, 2, 1 << 31):
        body = claimed.to_bytes(4, "big") + whole[4:]
        with pytest.raises(ProtocolError):
            event_v2.decode(_with_body(body))


def test_an_unknown_digest_type_is_refused() -> None:
    whole = bytearray(event_v2.encode_part(Part(b"row", b"m" * 16)))
    whole[5] |= 2
    with pytest.raises(ProtocolError, match="digest type 2"):
        event_v2.decode(_with_body(bytes(whole)))


def _with_body(body: bytes) -> bytes:
    """Return an event with a payload whose CRCs are right and whose body may be wrong."""
    bits = Opcode.UPSERT | LONG_KEY | HAS_PAYLOAD
    checked = struct.pack(">IIHqihqq", event_crc(body), 53 + len(body), bits, 6, 40, 1, 5, 77)
    return struct.pack(">BIII", 2, V2_MAGIC, 53, event_crc(checked)) + checked + body


@given(st.lists(events(), max_size=6), st.integers(0, (1 << 63) - 1), st.integers(0, 1 << 62))
def test_stamping_gives_a_run_of_events_its_scn_and_time(
    given_events: list[Event], scn: int, timestamp_ns: int
) -> None:
    unstamped = b"".join(event_v2.unstamped(event_v2.encode(event)) for event in given_events)
    expected = [event._replace(scn=scn, timestamp_ns=timestamp_ns) for event in given_events]
    stamped = event_v2.stamp(unstamped, scn, timestamp_ns)
    assert stamped == b"".join(map(event_v2.encode, expected))
    assert list(walk(stamped)) == expected


@given(events(), st.data())
def test_what_is_no_whole_event_is_not_stamped(event: Event, data: st.DataObject) -> None:
    encoded = event_v2.unstamped(event_v2.encode(event))
    cut = encoded[: data.draw(st.integers(1, len(encoded) - 1))]
    for wrong in (cut, encoded + b"\2", b"\0" + encoded):
        with pytest.raises(ProtocolError):
            event_v2.stamp(wrong, 1, 1)
