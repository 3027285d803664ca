"""The bytes of a segment: as documented, and each of them checked."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from databus.relay.log.layout import (
    COMPRESSED,
    ENTRY_BYTES,
    FOOTER_BYTES,
    FRAME_HEADER_BYTES,
    GOES_ON,
    HEADER_BYTES,
    Footer,
    FrameHeader,
    IndexEntry,
    SegmentHeader,
    first_scn_of,
)
from databus.schemas.errors import RelayLogDamagedError
from databus.schemas.log_mark import LogMark
from tests.relay.log.logs import START_NS

I64 = st.integers(-(2**63), 2**63 - 1)
U64 = st.integers(0, 2**64 - 1)
U32 = st.integers(0, 2**32 - 1)

HEADER = SegmentHeader(
    "shop", 0x0102030405060708, 4096, 41, 42, START_NS, START_NS - 1, START_NS + 5, None
)


def test_a_header_has_the_bytes_that_are_documented() -> None:
    data = HEADER._replace(mark=LogMark(41, '{"file":"a"}')).encode()
    assert len(data) == HEADER_BYTES == 2048
    assert data[:16] == b"DBUSRLOG\x03\x00\x00\x00\x00\x08\x00\x00"
    assert data[16:48].hex() == ("0807060504030201001000000000000029000000000000002a00000000000000")
    assert data[48:72] == b"".join(
        ns.to_bytes(8, "little") for ns in (START_NS, START_NS - 1, START_NS + 5)
    )
    assert data[72:76] == b"\x04\x00\x0f\x00"
    assert data[512:517] == b"shop\0"
    assert data[1020:1036] == b'41:{"file":"a"}\0'


def test_a_frame_header_an_entry_and_a_footer_have_the_bytes_that_are_documented() -> None:
    frame = FrameHeader(COMPRESSED | GOES_ON, 3, 7, 2, 0xAABBCCDD, 5, 6, 4, 50, 60, 61, 256, 2048)
    assert frame.encode()[:8].hex() == "5d2a4d1858000000"
    assert frame.encode()[8:28].hex() == "03000000030000000700000002000000ddccbbaa"
    assert len(frame.encode()) == FRAME_HEADER_BYTES == 96
    entry = IndexEntry.of(frame, 2048).encode()
    numbers = [int.from_bytes(entry[at : at + 8], "little") for at in range(0, 48, 8)]
    assert (len(entry), numbers) == (ENTRY_BYTES, [5, 4, 50, 61, 256, 2048])
    gtids = 0x11121314, 0x21222324
    footer = Footer(2139, 1, 263, 6, 60, 61, 99, 2195, 0, 0x01020304, *gtids).encode()
    assert (footer[:8], len(footer), FOOTER_BYTES) == (b"DBUSRLND", 96, 96)
    assert footer[80:92].hex() == "040302011413121124232221"


def test_names_sort_by_scn_and_show_the_hour_in_utc() -> None:
    names = [HEADER._replace(first_scn=scn).name for scn in (9, 10, 8589936646)]
    assert names == sorted(names)
    assert names[2] == "0000000008589936646-2026-01-01T00Z.segment"
    assert first_scn_of(names[2]) == 8589936646
    assert first_scn_of("notes.txt") is None


@given(ns=I64)
def test_every_commit_time_makes_a_name(ns: int) -> None:
    assert first_scn_of(HEADER._replace(first_timestamp_ns=ns).name) == 42


@given(
    st.text(max_size=60),
    st.tuples(U64, U64, I64, I64, I64, I64, I64),
    st.none() | st.builds(LogMark, st.integers(0, 2**63 - 1), st.just('{"gtid":"0-1-17"}')),
)
def test_a_header_comes_back(source: str, facts: tuple[int, ...], mark: LogMark | None) -> None:
    header = SegmentHeader._make((source, *facts, mark))
    assert SegmentHeader.decode("here", header.encode()) == header


@given(
    st.integers(0, 3),
    st.tuples(U32, U32, U32, U32),
    st.tuples(I64, I64, I64, I64, I64, I64),
    st.tuples(U64, U64),
)
def test_a_frame_header_and_its_entry_come_back(
    flags: int, sizes: tuple[int, ...], facts: tuple[int, ...], places: tuple[int, int]
) -> None:
    frame = FrameHeader._make((flags, *sizes, *facts, *places))
    assert FrameHeader.decode(b"..." + frame.encode(), 3) == frame
    entry = IndexEntry.of(frame, 77)
    assert IndexEntry.decode(bytes(ENTRY_BYTES) + entry.encode(), 1) == entry


@given(st.tuples(U64, U64, U64, I64, I64, I64, I64, U64, U64, U32, U32, U32))
def test_a_footer_comes_back(facts: tuple[int, ...]) -> None:
    footer = Footer._make(facts)
    assert Footer.decode(footer.encode()) == footer


def test_every_flipped_bit_of_a_header_is_noticed(tmp_path: Path) -> None:
    data = HEADER.encode()
    for at in range(len(data)):
        flipped = data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :]
        with pytest.raises(RelayLogDamagedError):
            SegmentHeader.decode(str(tmp_path), flipped)
    with pytest.raises(RelayLogDamagedError, match="cut at byte 2047"):
        SegmentHeader.decode(str(tmp_path), data[:-1])


@given(st.integers(0, 95), st.integers(0, 7))
def test_every_flipped_bit_of_a_frame_header_is_noticed(at: int, bit: int) -> None:
    data = bytearray(FrameHeader(1, 3, 7, 2, 9, 5, 6, 4, 50, 60, 61, 256, 2048).encode())
    data[at] ^= 1 << bit
    assert FrameHeader.decode(bytes(data)) is None


@given(st.integers(0, 95), st.integers(0, 7))
def test_every_flipped_bit_of_a_footer_is_noticed(at: int, bit: int) -> None:
    data = bytearray(Footer(2139, 1, 263, 6, 60, 61, 99, 2195, 0, 7, 8, 9).encode())
    data[at] ^= 1 << bit
    assert Footer.decode(bytes(data)) is None
