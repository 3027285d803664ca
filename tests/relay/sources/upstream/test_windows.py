"""Bodies become windows for the ring, every byte as it came."""

from __future__ import annotations

import pytest

from databus.relay.sources.upstream.windows import WindowCutter
from databus.schemas.errors import ProtocolError
from databus.schemas.event.control import end_of_period
from databus.schemas.event.event import Event, Opcode, Part
from databus.schemas.event.v2 import encode
from databus.schemas.windows import WindowBatch, WindowEnd, WindowPiece

SCHEMA = bytes(range(16))
OTHER = bytes(16)


def event(scn: int, key: int, schema: bytes = SCHEMA) -> bytes:
    return encode(Event(scn, scn * 10, 1, 0, key, Opcode.UPSERT, Part(b"row", schema), None))


def eop(scn: int) -> bytes:
    return encode(end_of_period(scn, scn * 10, 0))


def window(scn: int, rows: int = 2) -> bytes:
    return b"".join(event(scn, key) for key in range(rows)) + eop(scn)


def cutter(scn: int = 5) -> WindowCutter:
    return WindowCutter(scn, {(1, SCHEMA)})


def test_whole_windows_are_one_batch_with_their_bytes() -> None:
    one, body = cutter(), window(7) + window(8, 0) + window(9, 1) + window(10, 0)
    (batch,) = one.take(body, one.read(body))
    assert isinstance(batch, WindowBatch)
    assert batch.data == body
    assert [(w.scn, w.data, w.timestamp_ns) for w in batch.windows()] == [
        (7, window(7), 70),
        (8, window(8, 0), 80),
        (9, window(9, 1), 90),
        (10, window(10, 0), 100),
    ]
    assert batch.row_count == 3
    # The log is known again by a window with rows.
    assert one.mark == (9, 90)
    assert one.scn == 10


def test_a_window_in_parts_is_pieces_and_an_end_and_the_next_ones_are_a_batch() -> None:
    one = cutter()
    parts = [event(7, 0) + event(7, 1), event(7, 2)]
    assert one.take_part(parts[0]) == [WindowPiece(0, parts[0], 5)]
    assert one.take_part(parts[1]) == [WindowPiece(len(parts[0]), parts[1], 5)]
    assert one.is_inside
    rest, size_bytes = event(7, 3) + eop(7), len(parts[0] + parts[1])
    body = rest + window(8)
    piece, end, batch = one.take(body, one.read(body))
    assert piece == WindowPiece(size_bytes, rest, 5)
    assert end == WindowEnd(size_bytes + len(rest), 7, 70, 4)
    assert isinstance(batch, WindowBatch)
    assert (batch.data, batch.first_scn) == (window(8), 8)
    assert not one.is_inside


def test_unknown_schemas_are_told_before_a_window_is_taken() -> None:
    one, body = cutter(), event(7, 0, OTHER) + eop(7)
    windows = one.read(body)
    assert one.unknown_in(windows) == {(1, OTHER)}
    one.schemas |= {(1, OTHER)}
    assert one.unknown_in(windows) == set()
    assert [item.last_scn for item in one.take(body, windows)] == [7]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (window(5), "window 5 comes after window 5"),
        (window(7) + window(7), "window 7 comes after window 7"),
        (window(7) + event(8, 0), "something else"),
        (window(7)[:-1], "into an event"),
        (event(7, 0) + eop(8), "events of other windows"),
    ],
)
def test_what_is_no_next_window_is_refused(body: bytes, problem: str) -> None:
    with pytest.raises(ProtocolError, match=problem):
        cutter().read(body)


def test_every_flipped_byte_is_found() -> None:
    body = window(7, 1)
    for at in range(len(body)):
        flipped = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
        with pytest.raises(ProtocolError):
            cutter().read(flipped)
    part = event(7, 0)
    for at in range(len(part)):
        flipped = part[:at] + bytes([part[at] ^ 1]) + part[at + 1 :]
        with pytest.raises(ProtocolError):
            cutter().take_part(flipped)


def test_a_window_that_goes_on_as_another_one_is_refused() -> None:
    one = cutter()
    one.take_part(event(7, 0))
    with pytest.raises(ProtocolError, match="a part of window 8 comes after"):
        one.take_part(event(8, 0))
    body = eop(8)
    with pytest.raises(ProtocolError, match="window 7 goes on with events of window 8"):
        one.take(body, one.read(body))
