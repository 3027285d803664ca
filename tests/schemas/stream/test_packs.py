"""Packs on the wire: whole, or refused."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from databus.schemas.errors import ProtocolError
from databus.schemas.event.crc import event_crc
from databus.schemas.stream.packs import (
    MAGIC,
    MOST_COLUMN_BYTES,
    PackHead,
    beginning,
    compress,
    join_columns,
    packs_in,
)

Sizes = tuple[tuple[int, int, int], ...]
COLUMNS = [(b"\x05", None, b"12345678"), (None, bytes(12), b""), (None, None, bytes(24))]


def made(left_out: list[int], after_id: int = 0) -> bytes:
    """Return a pack of three rows."""
    data, sizes = join_columns(COLUMNS)
    return around(compress(data), sizes, left_out, after_id)


def around(frame: bytes, sizes: Sizes, left_out: Sequence[int] = (), after_id: int = 0) -> bytes:
    """Return a pack that has a frame."""
    head = PackHead(
        store="s",
        src_id=1,
        digest="00",
        after_id=after_id,
        until_id=after_id + 3,
        scn=7,
        rows=3,
        sizes=sizes,
        frame_bytes=len(frame),
        crc=event_crc(frame),
    )
    return beginning(head, left_out) + frame


def test_packs_are_read_up_to_what_follows_them() -> None:
    data = made([0, 2]) + made([], 3) + b"events"
    (first, _), (second, end) = packs_in(memoryview(data))
    assert data[end:] == b"events"
    assert (list(first.left_out), list(second.left_out)) == ([0, 2], [])
    assert (first.head.after_id, second.head.until_id) == (0, 6)
    for pack in (first, second):
        found = [tuple(None if b is None else bytes(b) for b in one) for one in pack.columns]
        assert found == COLUMNS
    assert list(packs_in(memoryview(b"events"))) == []


def test_every_buffer_begins_where_arrow_wants_it() -> None:
    parts = b"\x05", b"12345678", b"offsets", b"name"
    data, _ = join_columns([(parts[0], None, parts[1]), (None, parts[2], parts[3])])
    assert [data.index(part) for part in parts] == [0, 64, 128, 192]


@pytest.mark.parametrize(
    ("frame", "problem"),
    [
        (compress(bytes(63)), "another size"),
        (compress(bytes(65)), "another size"),
        (b"no frame", "unpacked"),
        (compress(bytes(64))[:-3], "unpacked"),
    ],
    ids=["fewer bytes", "more bytes", "no frame", "a cut frame"],
)
def test_a_frame_that_has_not_what_its_head_says_is_refused(frame: bytes, problem: str) -> None:
    with pytest.raises(ProtocolError, match=problem):
        list(packs_in(memoryview(around(frame, ((0, 0, 8),)))))


def test_columns_that_would_fill_the_memory_are_not_unpacked() -> None:
    size = MOST_COLUMN_BYTES + 64
    with pytest.raises(ProtocolError, match=f"{MOST_COLUMN_BYTES} are the most"):
        list(packs_in(memoryview(around(compress(bytes(size)), ((0, 0, size),)))))


def test_a_pack_that_is_cut_or_has_a_wrong_byte_is_refused() -> None:
    data = made([1])
    for size in range(len(MAGIC), len(data)):
        with pytest.raises(ProtocolError):
            list(packs_in(memoryview(data[:size])))
    for place in range(len(MAGIC), len(data)):
        wrong = bytearray(data)
        wrong[place] ^= 0x10
        with pytest.raises(ProtocolError):
            list(packs_in(memoryview(wrong)))


def test_a_head_that_is_no_head_is_refused() -> None:
    for text in (b"", b"[]", b"{}", b'{"sizes":[[1,2]]}', b'{"sizes":[],"x":1}'):
        with pytest.raises(ProtocolError, match="header of a pack"):
            PackHead.from_json(text)
