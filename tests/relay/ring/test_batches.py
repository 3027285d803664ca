"""Windows given to the ring in one piece, and windows that are written as they come."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from databus.relay.ring.reader import RingReader
from databus.relay.ring.ring import Ring, WindowBatch
from databus.schemas.errors import ProtocolError, RingError, TransactionTooLargeError
from tests.relay.ring.model import (
    append_in_pieces,
    append_placed,
    batch_of,
    extend,
    make_event,
    make_window,
    unstamped,
    window_of,
)

pytestmark = pytest.mark.usefixtures("way")

CAPACITY = 4000


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[Ring]:
    opened = Ring.open(tmp_path / "shop.ring", "shop", CAPACITY, 256, start_scn=0)
    yield opened
    opened.close()


@pytest.fixture
def reader(ring: Ring, tmp_path: Path) -> Iterator[RingReader]:
    opened = RingReader.open(tmp_path / f"{ring.name}.ring")
    yield opened
    opened.close()


def test_a_batch_knows_its_windows() -> None:
    windows = [window_of(scn) for scn in (3, 5, 9)]
    batch = batch_of(windows)
    assert (batch.first_scn, batch.last_scn, batch.window_count) == (3, 9, 3)
    assert list(batch.windows()) == windows


def test_an_empty_batch_has_no_scn() -> None:
    batch = WindowBatch(b"", b"")
    assert (batch.first_scn, batch.last_scn, list(batch.windows())) == (-1, -1, [])
    assert batch.after(3) == batch


@pytest.mark.parametrize("scn", range(11))
def test_a_batch_drops_the_windows_that_are_there_already(scn: int) -> None:
    windows = [window_of(scn) for scn in (3, 5, 9)]
    left = [window for window in windows if window.scn > scn]
    assert batch_of(windows).after(scn) == batch_of(left)


@pytest.mark.parametrize("scn", range(11))
def test_a_batch_gives_the_windows_up_to_an_scn(scn: int) -> None:
    windows = [window_of(scn) for scn in (3, 5, 9)]
    first = [window for window in windows if window.scn <= scn]
    assert batch_of(windows).until(scn) == batch_of(first)


def test_a_batch_lands_as_its_windows_do(ring: Ring, reader: RingReader) -> None:
    windows = [make_window(scn) for scn in range(1, 60)]
    ring.append_batch(batch_of(windows))
    assert reader.newest() == (59, sum(len(window.data) for window in windows))
    assert ring.newest_timestamp_ns == 59_000
    for window in windows[ring.prev_scn :]:
        position = reader.find(window.scn - 1, -1)
        assert position is not None
        assert reader.read(position, len(window.data)) == window.data


def test_placed_windows_are_read_like_any_others(tmp_path: Path) -> None:
    ring = Ring.open(tmp_path / "large.ring", "shop", 100_000, start_scn=0)
    reader, scn, placed = RingReader.open(tmp_path / "large.ring"), 0, 0
    while ring.head < 200_000:
        windows = [make_window(scn + step, [300, 10 * step]) for step in (1, 2, 3)]
        tail, scn = ring.tail, scn + 3
        is_placed = append_placed(ring, windows)
        if not is_placed:  # at the end of the file
            ring.append_batch(batch_of(windows))
        placed += is_placed
        assert reader.read(tail, 1 << 16) == b"".join(window.data for window in windows)
        assert reader.max_scn == scn
        assert ring.tail - ring.head >= min(ring.tail, 90_000)
    assert placed * 3 > scn * 0.9
    reader.close()
    ring.close()


def test_room_that_was_given_twice_or_taken_by_another_window_is_as_it_was_written_last(
    ring: Ring, reader: RingReader
) -> None:
    assert append_placed(ring, [window_of(1)])
    first, second = batch_of([window_of(2)]), batch_of([window_of(3), window_of(4)])
    position, room = ring.reserve(1000) or (0, memoryview(b""))
    with room:
        whole = first.data + second.data
        room[: len(whole)] = whole
    # Of the first one nothing is taken: the second one is moved to the tail.
    second = second._replace(data=b"", place=position + len(first.data))
    assert ring.lift(second) == batch_of([window_of(3), window_of(4)])
    ring.append_batch(second)
    tail = ring.tail
    assert reader.read(position, 1000) == b"".join(window_of(scn).data for scn in (3, 4))
    with pytest.raises(RingError, match="no windows were written at"):
        ring.append_batch(second)
    extend(ring, unstamped(make_window(9, [100])), 50)
    with pytest.raises(RingError, match="no windows were written at"):
        ring.append_batch(second._replace(place=tail))
    assert (ring.max_scn, ring.tail) == (4, tail)


def test_room_is_not_where_an_unfinished_window_lies(ring: Ring, reader: RingReader) -> None:
    whole = unstamped(make_window(1, [100, 200]))
    ring.extend(0, whole[:150])
    assert ring.reserve(1000) is None
    ring.extend(150, whole[150:])
    ring.finish(len(whole), 1, 7)
    assert ring.max_scn == 1
    assert ring.reserve(1000) is not None


def test_room_is_not_made_by_evicting_a_window_much_larger_than_it(tmp_path: Path) -> None:
    ring = Ring.open(tmp_path / "large.ring", "shop", 100_000, start_scn=0)
    try:
        ring.append([make_window(1, [30_000]), make_window(2, [60_000]), make_window(3, [20_000])])
        assert ring.min_scn == 2
        assert ring.reserve(30_000) is None
        assert (ring.prev_scn, ring.min_scn) == (1, 2)
    finally:
        ring.close()


def test_an_scn_of_a_batch_that_does_not_rise_is_refused_after_the_windows_before_it(
    ring: Ring,
) -> None:
    with pytest.raises(RingError, match="window 2 comes after 2"):
        ring.append_batch(batch_of([window_of(1), window_of(2), window_of(2), window_of(3)]))
    assert ring.max_scn == 2


def test_a_window_of_a_batch_that_is_too_large_is_refused_after_the_windows_before_it(
    ring: Ring,
) -> None:
    with pytest.raises(TransactionTooLargeError) as caught:
        ring.append_batch(batch_of([window_of(1), make_window(2, [CAPACITY]), window_of(3)]))
    assert (caught.value.scn, ring.max_scn) == (2, 1)


def test_an_unfinished_window_is_seen_by_nobody_and_then_as_if_it_had_been_appended(
    ring: Ring, reader: RingReader
) -> None:
    ring.append([make_window(1)])
    tail = ring.tail
    window = make_window(2, [100, 0, 900])
    extend(ring, unstamped(window), 333)
    assert reader.newest() == (1, tail)
    assert reader.read(tail, CAPACITY) == b""
    assert reader.find(1, -1) == tail
    ring.finish(len(window.data), 2, 2000)
    assert reader.newest() == (2, tail + len(window.data))
    assert reader.read(tail, CAPACITY) == window.data
    assert ring.newest_timestamp_ns == 2000


def test_byte_keys_of_any_length_are_stamped_too(ring: Ring, reader: RingReader) -> None:
    events = b"".join(make_event(1, key * size) for size, key in enumerate((b"", b"a", b"b" * 300)))
    eop = make_window(1, []).data
    window = make_window(1)._replace(data=events + eop)
    append_in_pieces(ring, window, 100)
    assert reader.read(0, CAPACITY) == window.data


def test_bytes_written_again_take_the_place_of_what_was_beyond(
    ring: Ring, reader: RingReader
) -> None:
    window = make_window(1, [10])
    data = unstamped(window)
    ring.extend(0, bytes(1000))
    ring.extend(0, data[:40])
    with pytest.raises(RingError, match="bytes at 41 of a window of which 40 are written"):
        ring.extend(41, b"x")
    ring.extend(40, data[40:])
    ring.finish(len(data), 1, 1000)
    assert reader.read(0, CAPACITY) == window.data


def test_a_window_appended_meanwhile_takes_the_unfinished_ones_place(
    ring: Ring, reader: RingReader
) -> None:
    ring.extend(0, unstamped(make_window(1, [500])))
    ring.append([make_window(2)])
    with pytest.raises(RingError, match="window 3 has 0 bytes, not 5"):
        ring.finish(5, 3, 1)
    assert reader.read(0, CAPACITY) == make_window(2).data


def test_after_an_unfinished_window_has_evicted_all_others_the_next_ones_are_found(
    ring: Ring, reader: RingReader
) -> None:
    ring.append([make_window(scn, []) for scn in (1, 2, 3)])
    ring.extend(0, bytes(CAPACITY))
    assert (reader.min_scn, reader.prev_scn, reader.head) == (-1, 3, ring.tail)
    ring.append([make_window(4, [])])
    assert (reader.min_scn, reader.prev_scn) == (4, 3)
    assert reader.find(3, -1) == reader.head


def test_a_window_that_grows_larger_than_the_ring_changes_nothing(ring: Ring) -> None:
    ring.append([make_window(7)])
    ring.extend(0, bytes(CAPACITY - 1))
    with pytest.raises(TransactionTooLargeError) as caught:
        ring.extend(CAPACITY - 1, b"xy")
    assert caught.value.scn == 7
    ring.extend(CAPACITY - 1, b"x")
    append_in_pieces(ring, make_window(8), 50)
    assert (ring.max_scn, ring.prev_scn) == (8, 7)


def test_a_window_is_not_finished_with_an_scn_that_does_not_rise(ring: Ring) -> None:
    ring.append([make_window(2)])
    data = unstamped(make_window(2))
    extend(ring, data, 1000)
    with pytest.raises(RingError, match="window 2 comes after 2"):
        ring.finish(len(data), 2, 0)


@pytest.mark.parametrize(
    ("at", "masked", "why"),
    [
        (0, 0x01, "no event begins here"),
        (4, 0x80, "no event begins here"),
        (5, 0x01, "an event is cut"),
        (8, 0xFF, "an event is cut"),
        (17, 0x01, "an event is cut"),
        (20, 0xFF, "an event is cut"),
    ],
)
def test_what_is_no_window_is_not_published(ring: Ring, at: int, masked: int, why: str) -> None:
    data = bytearray(unstamped(make_window(1)))
    second = int.from_bytes(data[17:21], "big")
    data[second + at] ^= masked
    ring.extend(0, data)
    with pytest.raises(ProtocolError, match=why):
        ring.finish(len(data), 1, 0)
    assert (ring.max_scn, ring.tail) == (0, 0)


def test_a_window_without_its_end_is_not_published(ring: Ring) -> None:
    data = unstamped(make_window(1))
    eop_bytes = len(make_window(1, []).data)
    ring.extend(0, data)
    with pytest.raises(ProtocolError, match="does not end with an EOP"):
        ring.finish(len(data) - eop_bytes, 1, 0)
    with pytest.raises(ProtocolError, match="an event is cut"):
        ring.finish(len(data) - 3, 1, 0)
    assert ring.tail == 0


def test_a_large_window_that_came_in_pieces_is_finished_in_little_memory(ring: Ring) -> None:
    huge = Ring.open(Path(ring._file.path).with_name("huge.ring"), "huge", 4 << 20, start_scn=0)
    rows = b"".join(make_event(0, key, 100) for key in range(1000))
    eop = unstamped(make_window(1, []))
    tracemalloc.start()
    for lap in range(1, 4):
        for piece in range(10):
            huge.extend(piece * len(rows), rows)
        huge.extend(10 * len(rows), eop)
        huge.finish(10 * len(rows) + len(eop), lap, 0)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (huge.max_scn, huge.tail) == (3, 3 * (10 * len(rows) + len(eop)))
    huge.close()
    assert peak_bytes < len(rows) + 100_000
