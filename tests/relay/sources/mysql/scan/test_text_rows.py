"""Rows are found in the server's packets, in whatever pieces these come."""

from __future__ import annotations

import pytest

from databus.relay.sources.mysql.scan._text_rows import BROKEN, ERROR, MORE, TextRows
from databus.relay.sources.mysql.scan.columns import RawRow
from tests.relay.sources.mysql.scan.sent import CONTINUED, EOF, packet, read, texts_of


def test_rows_are_the_same_in_whatever_pieces_they_come() -> None:
    rows: list[RawRow] = [[b"1", None], [b"", b"x" * 251], [b"\xfe" * 3, b"y" * 70_000]] * 3
    for piece in (1, 3, 7, 4096):
        assert texts_of(read(rows, 2, piece)) == [tuple(row) for row in rows]


@pytest.mark.parametrize("size", [CONTINUED - 9, CONTINUED, 2 * CONTINUED - 9, 2 * CONTINUED + 5])
def test_a_row_of_several_packets_is_one_row(size: int) -> None:
    # A row is the value, nine bytes of its length, and one of another value.
    rows = [[b"", b"z" * (size - 1)], [b"a", b"b"]]
    found = read(rows, 2, 1 << 22)
    assert [found[at] == tuple(row) for at, row in enumerate(rows)] == [True, True]
    assert len(found) == 2


def test_an_error_between_rows_is_the_server_s() -> None:
    payload = b"\xff\x8d\x0b#70100Query execution was interrupted"
    found = TextRows(1, 1)
    assert found.feed(packet(b"\x011", 1)) == MORE
    assert found.feed(packet(payload, 2)) == ERROR
    assert found.error == payload


def test_a_gap_in_the_packets_and_bytes_after_the_end_are_another_result_s() -> None:
    assert TextRows(1, 1).feed(packet(b"\x011", 2)) == BROKEN
    assert TextRows(1, 1).feed(packet(EOF, 1) + b"\0") == BROKEN


def test_a_row_that_is_cut_short_is_damaged() -> None:
    for row in (b"\x021", b"\x011\x01", b"\xfc\x01", b"\x011\x011\x011", b"\xff"):
        found = TextRows(2, 1)
        assert found.feed(packet(b"\x00\x00", 1) + packet(row, 2)) in (MORE, ERROR)
        if len(found) == 2:
            with pytest.raises(ValueError, match="damaged"):
                found[1]
