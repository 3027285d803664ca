"""The index of a segment's GTIDs: as documented, and no frame is missing in it."""

from __future__ import annotations

import struct
from zlib import crc32

import pytest
from hypothesis import given, strategies as st

from databus.relay.log.gtids.frame_gtids import ANY, GtidKey, GtidRanges
from databus.relay.log.gtids.gtid_index import GtidIndex, GtidList, StoredGtids

PREFIXES = st.sampled_from([b"", b"0-1-", b"0-2-", b"uuid:"])
NUMBERS = st.integers(0, 2**64 - 1) | st.integers(0, 20)
RANGES = st.tuples(NUMBERS, NUMBERS).map(lambda ends: (min(ends), max(ends)))
FRAMES = st.lists(st.dictionaries(PREFIXES, RANGES) | st.just(ANY), max_size=12)


def index_of(frames: list[GtidRanges]) -> GtidIndex:
    index = GtidIndex()
    for frame in frames:
        index.add(frame)
    return index


def listed(stored: StoredGtids) -> GtidList:
    return GtidList(stored.data[len(stored.data) - stored.list_bytes :])


def search(stored: StoredGtids, gtid: GtidKey) -> list[int]:
    return listed(stored).frames_with(gtid, lambda at, size: stored.data[at : at + size])


def test_an_index_has_the_bytes_that_are_documented() -> None:
    stored = index_of([{b"0-1-": (5, 9)}, {}, {b"uuid:": (1, 1), b"0-1-": (3, 12)}]).encode()
    first = struct.pack("<IQQ", 0, 5, 9) + struct.pack("<IQQ", 2, 3, 12)
    second = struct.pack("<IQQ", 2, 1, 1)
    assert second.hex() == "0200000001000000000000000100000000000000"
    last = (
        b"\x03\0\0\0"
        + struct.pack("<QQIIH", 3, 12, 2, crc32(first), 4)
        + b"0-1-"
        + struct.pack("<QQIIH", 1, 1, 1, crc32(second), 5)
        + b"uuid:"
    )
    assert stored == (first + second + last, len(last), crc32(last))
    assert listed(stored).ranges == {b"0-1-": (3, 12), b"uuid:": (1, 1)}


def test_an_index_without_gtids_still_says_of_how_many_frames_it_is() -> None:
    stored = index_of([{}, {}]).encode()
    assert stored.data == b"\x02\0\0\0"
    assert (listed(stored).frames, search(stored, GtidKey(b"0-1-", 1))) == (2, [])


@given(FRAMES, PREFIXES, NUMBERS)
def test_no_frame_with_a_gtid_is_missed(
    frames: list[GtidRanges], prefix: bytes, number: int
) -> None:
    gtid, index = GtidKey(prefix, number), index_of(frames)
    expected = [at for at, frame in enumerate(frames) if gtid.is_in(frame)]
    assert index.frames_with(gtid) == expected
    assert search(index.encode(), gtid) == expected
    assert gtid.is_in(index.ranges) or not expected
    assert listed(index.encode()).ranges == index.ranges


@given(FRAMES, st.integers(0, 12))
def test_an_index_that_is_cut_is_that_of_the_frames_before(
    frames: list[GtidRanges], count: int
) -> None:
    index = index_of(frames)
    count = min(count, len(frames))
    index.cut(count)
    assert index.encode() == index_of(frames[:count]).encode()
    for frame in frames[count:]:
        index.add(frame)
    assert index.encode() == index_of(frames).encode()


def test_ranges_that_are_damaged_are_refused() -> None:
    stored = index_of([{b"0-1-": (5, 9)}, {b"0-1-": (10, 12)}]).encode()
    for at in range(40):
        data = bytearray(stored.data)
        data[at] ^= 1 << at % 8
        with pytest.raises(ValueError, match="CRC"):
            search(stored._replace(data=bytes(data)), GtidKey(b"0-1-", 11))
    with pytest.raises(ValueError, match="CRC"):
        listed(stored).frames_with(GtidKey(b"0-1-", 11), lambda _at, _size: b"")


def test_a_list_that_is_cut_is_refused() -> None:
    stored = index_of([{b"0-1-": (5, 9)}]).encode()
    data = stored.data[len(stored.data) - stored.list_bytes :]
    for size in range(len(data)):
        if size != 4:  # a list without prefixes
            with pytest.raises(ValueError, match="cut"):
                GtidList(data[:size])
