"""The compiled modules' own CRC: zlib's numbers for every length, alignment and way of summing."""

from __future__ import annotations

import random
from zlib import crc32

import pytest
from hypothesis import given, strategies as st

from databus.relay.ring._core import checksum

BYTES = random.Random(1).randbytes(4096)
FIRST_SUMS = (0, 1, 0xFFFFFFFF, 0x12345678)


@pytest.mark.parametrize("by_table", [False, True])
@pytest.mark.parametrize("length", [*range(301), 1000, 1023, 1024, 4000])
def test_a_sum_is_that_of_zlib_wherever_the_bytes_lie(length: int, by_table: bool) -> None:
    chosen = random.Random(length)
    for at in (0, 1, 7, 15, chosen.randrange(64)):
        piece = memoryview(BYTES)[at : at + length]
        for begin in (*FIRST_SUMS, chosen.getrandbits(32)):
            assert checksum(piece, begin, by_table) == crc32(piece, begin)


@given(st.binary(max_size=400), st.integers(0, 400))
def test_two_pieces_have_the_sum_of_the_whole(data: bytes, cut: int) -> None:
    assert checksum(data[cut:], checksum(data[:cut])) == crc32(data)
