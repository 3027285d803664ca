"""Cutting a byte stream into windows, wherever the chunks end."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, strategies as st

from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import ProtocolError, WindowTooLargeError
from databus.schemas.event import v1 as event_v1, v2 as event_v2
from databus.schemas.event.control import checkpoint_event, end_of_period, scn_regress
from databus.schemas.event.event import Event, Opcode, Part
from databus.schemas.stream.row_reader import RowReader
from databus.schemas.stream.stream_reader import ControlEvent, StreamReader, Window

LIMIT = 1 << 20


def row(scn: int, key: int | bytes, data: bytes = b"row") -> Event:
    return Event(scn, 9, 40, 0, key, Opcode.UPSERT, Part(data, b"m" * 16, 1), None)


def window_events(scn: int, size: int) -> list[Event]:
    return [*(row(scn, key) for key in range(size)), end_of_period(scn, scn * 10)]


def encode_all(events: list[Event], module: object = event_v2) -> bytes:
    return b"".join(module.encode(event) for event in events)  # type: ignore[attr-defined]


def chunks_of(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[begin:end] for begin, end in pairwise(places)]


def read_all(reader: StreamReader, chunks: list[bytes], got: list[Window | ControlEvent]) -> None:
    """Feed a whole response; `got` has what came before an error, too."""
    for chunk in chunks:
        got += reader.receive(chunk)
    reader.close()


@given(
    sizes=st.lists(st.integers(0, 4), min_size=1, max_size=6),
    cuts=st.lists(st.integers(0, 10_000), max_size=30),
    module=st.sampled_from([event_v1, event_v2]),
)
def test_windows_come_out_whole_at_any_chunking(
    sizes: list[int], cuts: list[int], module: object
) -> None:
    scns = range(1, len(sizes) + 1)
    per_window = [window_events(scn, size) for scn, size in zip(scns, sizes, strict=True)]
    data = b"".join(encode_all(events, module) for events in per_window)
    reader = StreamReader(LIMIT)
    got = [window for chunk in chunks_of(data, cuts) for window in reader.receive(chunk)]
    reader.close()
    assert [window[0] for window in got] == list(scns)
    for window, events in zip(got, per_window, strict=True):
        assert isinstance(window, Window)
        assert [event.key for event in window.events] == [event.key for event in events[:-1]]
        assert window.timestamp_ns == events[-1].timestamp_ns
        assert window.size_bytes == len(encode_all(events, module))


def test_a_byte_at_a_time_gives_the_same_windows() -> None:
    data = encode_all(window_events(1, 2) + window_events(2, 0))
    reader = StreamReader(LIMIT)
    got = [
        window for place in range(len(data)) for window in reader.receive(data[place : place + 1])
    ]
    assert got == StreamReader(LIMIT).receive(data)
    assert [len(window.events) for window in got] == [2, 0]


def test_a_window_is_kept_back_until_its_end_arrives() -> None:
    events = window_events(1, 3)
    reader = StreamReader(LIMIT)
    assert reader.receive(encode_all(events[:-1])) == []
    assert (reader.pending_events, reader.pending_scn) == (3, 1)
    reader.close()  # between two events: the next response goes on with the window
    (window,) = reader.receive(encode_all(events[-1:]))
    assert window.events == tuple(events[:-1])
    assert (reader.pending_events, reader.pending_scn) == (0, None)


def test_a_response_that_ends_inside_an_event_is_a_protocol_error() -> None:
    reader = StreamReader(LIMIT)
    reader.receive(encode_all(window_events(1, 1))[:-1])
    with pytest.raises(ProtocolError, match="into an event"):
        reader.close()


def test_reset_forgets_the_half_event_and_the_half_window() -> None:
    reader = StreamReader(LIMIT)
    reader.receive(encode_all(window_events(1, 3))[:-1])
    reader.reset()
    reader.close()
    (window,) = reader.receive(encode_all(window_events(7, 1)))
    assert isinstance(window, Window)
    assert (window.scn, len(window.events)) == (7, 1)


def test_half_of_one_window_is_never_glued_to_half_of_another() -> None:
    for sizes in ((2, 0), (2, 1)):
        reader = StreamReader(LIMIT)
        reader.receive(encode_all(window_events(1, sizes[0])[:-1]))
        with pytest.raises(ProtocolError, match="other windows"):
            reader.receive(encode_all(window_events(2, sizes[1])))


def test_a_checkpoint_event_comes_out_with_the_page_it_ends() -> None:
    page = [row(3, 1), row(9, 2), row(4, 3)]  # rows of a snapshot, each with its own SCN
    event = checkpoint_event(Checkpoint.at(5))
    (got,) = StreamReader(LIMIT).receive(encode_all([*page, event]))
    assert isinstance(got, ControlEvent)
    assert got.event == event
    assert got.events == tuple(page)
    assert got.size_bytes == len(encode_all([*page, event]))


def test_an_scn_regress_between_windows_comes_out_in_its_place() -> None:
    events = [*window_events(5, 1), scn_regress(Checkpoint.at(2)), *window_events(3, 1)]
    got = StreamReader(LIMIT).receive(encode_all(events))
    assert [type(item).__name__ for item in got] == ["Window", "ControlEvent", "Window"]


def test_a_window_beyond_the_limit_is_refused_before_it_is_read() -> None:
    reader = StreamReader(200)
    header = event_v2.encode(row(1, 1, b"x" * 1000))[:60]
    with pytest.raises(WindowTooLargeError, match="at most 200"):
        reader.receive(header)


@pytest.mark.parametrize("key", [7, b"a key"])
@pytest.mark.parametrize("module", [event_v1, event_v2])
@pytest.mark.parametrize("make_reader", [StreamReader, RowReader])
def test_no_flipped_bit_of_a_header_is_taken_for_a_large_window(
    make_reader: type[StreamReader], module: Any, key: int | bytes
) -> None:
    # The header and a few bytes: what comes next would be waited for, were the length believed.
    begin = module.encode(row(1, key, b"x" * 1000))[:70]
    for bit in range(8 * 49):
        damaged = bytearray(begin)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ProtocolError) as refused:
            read_all(make_reader(4096), [bytes(damaged)], [])
        assert not isinstance(refused.value, WindowTooLargeError), f"bit {bit}"


@pytest.mark.parametrize("chunk_bytes", [50, 100_000])
def test_a_window_that_adds_up_beyond_the_limit_is_refused(chunk_bytes: int) -> None:
    reader = StreamReader(1000)
    data = encode_all(window_events(1, 20))
    chunks = [data[at : at + chunk_bytes] for at in range(0, len(data), chunk_bytes)]
    with pytest.raises(ProtocolError, match="at most 1000"):
        read_all(reader, chunks, [])


def test_the_limit_counts_one_window_and_not_the_stream() -> None:
    events = [event for scn in range(1, 50) for event in window_events(scn, 1)]
    assert len(StreamReader(200).receive(encode_all(events))) == 49


def test_garbage_is_refused_at_its_first_bytes() -> None:
    for garbage in (b"HTTP/1.1 200 OK", b"\x02\xca\xfe\xde\x00", b"\x02\x00", b"\x01", b"\xff"):
        with pytest.raises(ProtocolError):
            StreamReader(LIMIT).receive(garbage)


@given(
    data=st.binary(max_size=300),
    beginning=st.sampled_from([b"", b"\x00", b"\x02", b"\x02\xca\xfe\xde\xed"]),
    cuts=st.lists(st.integers(0, 300), max_size=8),
)
def test_random_bytes_raise_only_protocol_errors(
    data: bytes, beginning: bytes, cuts: list[int]
) -> None:
    got: list[Window | ControlEvent] = []
    with suppress(ProtocolError):
        read_all(StreamReader(1000), chunks_of(beginning + data, cuts), got)
    assert got == []


@given(
    place=st.integers(0, 10_000),
    flip=st.integers(1, 255),
    cuts=st.lists(st.integers(0, 10_000), max_size=8),
    module=st.sampled_from([event_v1, event_v2]),
)
def test_a_flipped_byte_never_gives_a_wrong_window(
    place: int, flip: int, cuts: list[int], module: object
) -> None:
    good = encode_all(window_events(1, 2) + window_events(2, 1), module)
    expected = StreamReader(LIMIT).receive(good)
    damaged = bytearray(good)
    damaged[place % len(good)] ^= flip
    got: list[Window | ControlEvent] = []
    with pytest.raises(ProtocolError):
        read_all(StreamReader(LIMIT), chunks_of(bytes(damaged), cuts), got)
    assert got == expected[: len(got)]


def test_an_event_of_many_chunks_is_not_looked_at_again_with_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = []
    decode = event_v2.decode
    monkeypatch.setattr(
        "databus.schemas.stream.stream_reader.decode_v2",
        lambda data, offset: looks.append(len(data)) or decode(data, offset),  # type: ignore[func-returns-value]
    )
    data = encode_all([row(1, 1, b"x" * 500_000), end_of_period(1, 1)])
    reader = StreamReader(LIMIT)
    got = [
        window for at in range(0, len(data), 100) for window in reader.receive(data[at : at + 100])
    ]
    assert len(got) == 1
    # Once when its length is read, once when it is whole; the same for the end of period.
    assert len(looks) <= 4
    assert sum(looks) < 2 * len(data) + 1000


def test_the_events_of_a_long_window_are_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    decode = event_v2.decode
    monkeypatch.setattr(
        "databus.schemas.stream.stream_reader.decode_v2",
        lambda data, offset: looks.append(offset) or decode(data, offset),  # type: ignore[func-returns-value]
    )
    data = encode_all(window_events(1, 1000))
    reader = StreamReader(LIMIT)
    chunks = [data[at : at + 1024] for at in range(0, len(data), 1024)]
    got = [window for chunk in chunks for window in reader.receive(chunk)]
    assert len(got) == 1
    assert len(looks) <= 1001 + 2 * len(chunks)
