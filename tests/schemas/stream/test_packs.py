"""Packs on the wire: whole, or refused."""

from __future__ import annotations

import pytest

from databus.schemas.errors import ProtocolError
from databus.schemas.event.crc import event_crc
from databus.schemas.stream.packs import MAGIC, PackHead, beginning, join_columns, packs_in

COLUMNS = [(b"\x05", None, b"12345678"), (None, bytes(12), b""), (None, None, bytes(24))]


def made(left_out: list[int], after_id: int = 0) -> bytes:
    """Return a pack of three rows."""
    data, sizes = join_columns(COLUMNS)
    head = PackHead(
        store="s",
        src_id=1,
        digest="00",
        after_id=after_id,
        until_id=after_id + 3,
        scn=7,
        rows=3,
        sizes=sizes,
        crc=event_crc(data),
    )
    return beginning(head, left_out, len(data)) + data


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


def test_columns_begin_where_arrow_wants_them() -> None:
    assert all((len(made(list(range(n)))) % 64, len(made([])) % 64) == (0, 0) for n in range(40))


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
