"""Rows that no answer has room for are said when they are captured."""

from __future__ import annotations

from databus.relay.monitoring.large_rows import LargeRows
from databus.schemas.event.control import end_of_period
from databus.schemas.event.event import Event, Opcode, Part
from databus.schemas.event.v2 import encode

MOST_BYTES = 4096


def row_of(src_id: int, size_bytes: int) -> bytes:
    payload = Part(b"x" * size_bytes, b"\x00" * 16, 1)
    return encode(Event(7, 1, src_id, 0, 1, Opcode.UPSERT, payload, None))


def test_a_row_larger_than_an_answer_is_said_once_for_its_table() -> None:
    rows = LargeRows(MOST_BYTES, {1: "shop.orders", 2: "shop.notes"}.__getitem__)
    large = row_of(1, MOST_BYTES)
    window = row_of(2, 100) + large + encode(end_of_period(7, 1))
    (warning,) = rows.check(window)
    assert warning.startswith(f"shop.orders: a row of {len(large)} bytes")
    assert "http.max_response_bytes is 4096" in warning
    assert rows.check(window) == []
    assert len(rows.check(row_of(2, MOST_BYTES))) == 1
    assert len(rows.warnings) == 2


def test_a_large_window_of_rows_that_fit_is_no_matter() -> None:
    rows = LargeRows(MOST_BYTES, str)
    assert rows.check(row_of(1, 1000) * 20 + encode(end_of_period(7, 1))) == []
