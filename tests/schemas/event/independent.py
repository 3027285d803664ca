"""What the tests compare with: an event's CRC bit by bit, and values for Hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from databus.schemas.event.event import NO_SCHEMA_ID, Event, Opcode, Part

LONGS = st.integers(-(1 << 63), (1 << 63) - 1)
SCNS = st.integers(0, (1 << 63) - 1)
SHORTS = st.integers(-(1 << 15), (1 << 15) - 1)
DIGESTS = st.one_of(st.binary(min_size=16, max_size=16), st.binary(min_size=4, max_size=4))


def bitwise_event_crc(data: bytes) -> int:
    """Return an event's CRC: reflected polynomial 0x04C11DB7, from 0, a bit at a time."""
    register = 0
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0xEDB88320 if register & 1 else 0)
    return register


def parts(digests: st.SearchStrategy[bytes] = DIGESTS) -> st.SearchStrategy[Part]:
    return st.builds(Part, st.binary(max_size=60), digests, st.integers(0, (1 << 14) - 1))


@st.composite
def events(draw: st.DrawFn) -> Event:
    """Any event of version 2, control events included."""
    is_control = draw(st.booleans())
    return Event(
        scn=draw(SCNS),
        timestamp_ns=draw(LONGS),
        src_id=draw(st.integers(-(1 << 31), -1) if is_control else st.integers(0, (1 << 31) - 1)),
        partition_id=draw(SHORTS),
        key=draw(st.one_of(LONGS, st.binary(max_size=30))),
        opcode=Opcode.CONTROL if is_control else draw(st.sampled_from(list(Opcode)[1:])),
        payload=draw(st.none() | parts()),
        metadata=draw(st.none() | parts()),
        is_replicated=draw(st.booleans()),
        is_traced=draw(st.booleans()),
    )


@st.composite
def v1_events(draw: st.DrawFn) -> Event:
    """An event that version 1 can carry whole."""
    event = draw(events())
    src_id = draw(
        st.integers(-(1 << 15), -1) if event.is_control else st.integers(0, (1 << 15) - 1)
    )
    payload = draw(st.none() | parts(st.binary(min_size=16, max_size=16)))
    if payload is not None:
        payload = payload._replace(schema_version=0)
        if not payload.data and payload.digest == NO_SCHEMA_ID:
            payload = None
    return event._replace(src_id=src_id, payload=payload, metadata=None)
