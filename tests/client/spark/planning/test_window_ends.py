"""Windows in the bytes of a stream, and how far a batch of them reaches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from databus.client.spark.planning.window_ends import Limits, Reach, WindowEnd, window_ends
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import ProtocolError
from databus.schemas.event import v1, v2
from databus.schemas.event.control import checkpoint_event, error_event, scn_regress
from databus.schemas.event.event import Event
from tests.promises.stock_databus.recordings import expected_rows, recorded
from tests.promises.stock_databus.stock_events import cut_events

STREAMS = pytest.mark.parametrize("stream", ["v1.stream.bin", "v2.stream.bin"])


@STREAMS
def test_each_window_is_found_with_its_rows(stream: str) -> None:
    data = recorded(stream)
    found = window_ends(data, -1)
    rows = Counter(row["scn"] for row in expected_rows())
    assert {one.scn: one.rows for one in found.whole if one.rows} == rows
    assert sum(one.size_bytes for one in found.whole) == found.whole[-1].end == len(data)
    assert found.pending_scn is None
    times = [event.timestamp_ns for event, _ in cut_events(data) if event.is_end_of_period]
    assert [one.time_ns for one in found.whole] == times


@STREAMS
def test_an_answer_that_ends_anywhere_has_the_windows_before_its_end(stream: str) -> None:
    data = recorded(stream)
    whole, at, scn = 0, 0, None
    for event, raw in cut_events(data):
        at += len(raw)
        whole += event.is_end_of_period
        scn = None if event.is_end_of_period else event.scn
        found = window_ends(data[:at], -1)
        assert (len(found.whole), found.pending_scn) == (whole, scn)
        with pytest.raises(ProtocolError, match=r"into an event|is impossible"):
            window_ends(data[: at - 1], -1)


@STREAMS
def test_an_end_of_a_window_that_was_damaged_is_refused(stream: str) -> None:
    data, at = recorded(stream), 0
    for event, raw in cut_events(data):
        if event.is_end_of_period:
            break
        at += len(raw)
    good = window_ends(data, -1).whole
    for offset in range(at, at + len(raw)):
        damaged = bytearray(data)
        damaged[offset] ^= 0x40
        try:
            found = window_ends(damaged, -1).whole
        except ProtocolError:
            continue
        # The bytes say that it is a row: then they are no end of a window.
        assert set(found) - set(good) <= {found[0]}
        assert found[0].scn == good[1].scn


def test_windows_must_be_in_order() -> None:
    data = recorded("v2.stream.bin")
    scn = window_ends(data, -1).whole[3].scn
    assert window_ends(data, 1002).whole
    with pytest.raises(ProtocolError, match=r"window 1003 after window .*several databases"):
        window_ends(data, scn)
    with pytest.raises(ProtocolError, match=r"after window"):
        window_ends(data + data, -1)


OTHERS = [
    checkpoint_event(Checkpoint.at(5)),
    scn_regress(Checkpoint.at(5)),
    error_event(-4, "no windowScn"),
]


@pytest.mark.parametrize("encode", [v1.encode, v2.encode])
@pytest.mark.parametrize("event", OTHERS, ids=lambda event: str(event.src_id))
def test_other_control_events_are_refused_with_their_text(
    encode: Callable[[Event], bytes], event: Event
) -> None:
    with pytest.raises(ProtocolError, match=rf"control event {event.src_id}: .*windowScn"):
        window_ends(encode(event), -1)


def test_an_unknown_version_is_refused() -> None:
    with pytest.raises(ProtocolError, match="version byte is 9"):
        window_ends(b"\x09" * 100, -1)


SIZES = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 100)), max_size=30)


@given(SIZES, st.integers(1, 40), st.integers(1, 200), st.integers(0, 40))
def test_batches_join_without_a_gap_and_have_no_more_than_their_limits(
    sizes: list[tuple[int, int]], rows: int, size_bytes: int, until: int
) -> None:
    windows = [WindowEnd(2 * at + 2, at, count, size, 0) for at, (count, size) in enumerate(sizes)]
    limits, at, ends = Limits(rows, size_bytes, until), 0, [0]
    while True:
        reach = Reach(ends[-1], limits)
        begin = at
        while at < len(windows) and not reach.is_over:
            reach.add(windows[at])
            at += reach.scn == windows[at].scn
        taken = windows[begin:at]
        assert reach.rows == sum(one.rows for one in taken)
        assert reach.size_bytes == sum(one.size_bytes for one in taken)
        assert reach.rows <= rows or sum(one.rows > 0 for one in taken) == 1
        assert reach.size_bytes <= size_bytes or len(taken) == 1
        if reach.scn == ends[-1]:
            break
        ends.append(reach.scn)
    assert all(earlier < later for earlier, later in pairwise(ends))
    wanted = [window.scn for window in windows if window.scn <= until]
    assert ends[-1] == (wanted[-1] if wanted else 0)
