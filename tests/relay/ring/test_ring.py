"""The ring: what is appended is read, evicted or refused; never anything else."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from databus.relay.ring import reader as ring_reader
from databus.relay.ring.events import find_event, last_end
from databus.relay.ring.layout import MASK, NEWEST_SCN, TAIL
from databus.relay.ring.reader import RingReader
from databus.relay.ring.ring import UNKNOWN_SCN, EncodedWindow, Ring
from databus.schemas.errors import (
    RingCorruptError,
    RingError,
    ScnNotFoundError,
    TransactionTooLargeError,
)
from databus.schemas.log_mark import LogMark
from tests.relay.ring.model import (
    RingModel,
    make_event,
    make_window,
    read_on,
    split_events,
    window_of,
)

pytestmark = pytest.mark.usefixtures("way")

CAPACITY = 4000
OpenRing = Callable[..., Ring]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.ring"


@pytest.fixture
def open_ring(path: Path) -> Iterator[OpenRing]:
    opened: list[Ring] = []

    def open_one(
        capacity: int = CAPACITY, start_scn: int = 0, name: str = "shop", block: int = 256
    ) -> Ring:
        opened.append(Ring.open(path, name, capacity, block, start_scn=start_scn))
        return opened[-1]

    yield open_one
    for ring in opened:
        ring.close()


@pytest.fixture
def open_reader(path: Path) -> Iterator[Callable[[], RingReader]]:
    opened: list[RingReader] = []

    def open_one() -> RingReader:
        opened.append(RingReader.open(path))
        return opened[-1]

    yield open_one
    for reader in opened:
        reader.close()


OpenReader = Callable[[], RingReader]


def test_a_point_inside_the_window_after_which_capture_began_is_not_found(
    open_ring: OpenRing, open_reader: OpenReader
) -> None:
    ring, reader = open_ring(start_scn=UNKNOWN_SCN), open_reader()
    for windows in ([make_window(5, [])], [make_window(6)]):
        ring.append(windows)
        with pytest.raises(ScnNotFoundError):
            reader.find(5, 1)
    after = reader.find(5, -1)
    assert after is not None
    assert read_on(reader, after) == make_window(6).data
    assert reader.find(6, 1) is not None


def test_a_point_inside_an_oldest_window_with_rows_is_found(
    open_ring: OpenRing, open_reader: OpenReader
) -> None:
    ring, reader = open_ring(start_scn=UNKNOWN_SCN), open_reader()
    ring.append([make_window(5)])
    found = reader.find(5, 1)
    assert found is not None
    assert read_on(reader, found) == b"".join(split_events(make_window(5).data)[1:])


def test_a_new_ring_is_empty_and_knows_where_capture_started(
    open_ring: OpenRing, open_reader: OpenReader
) -> None:
    ring, reader = open_ring(start_scn=70), open_reader()
    assert (ring.head, ring.tail, ring.min_scn) == (0, 0, -1)
    assert (ring.max_scn, ring.prev_scn) == (70, 70)
    assert (reader.name, reader.capacity_bytes) == ("shop", CAPACITY)
    assert reader.newest() == (70, 0)
    assert (reader.first_timestamp_ns, reader.latest_timestamp_ns) == (0, 0)
    assert reader.find(70, -1) == 0
    assert reader.find(71, -1) is None
    with pytest.raises(ScnNotFoundError):
        reader.find(69, -1)


def test_windows_are_read_as_they_were_appended(
    open_ring: OpenRing, open_reader: OpenReader
) -> None:
    ring, reader = open_ring(), open_reader()
    windows = [window_of(scn) for scn in (3, 5, 9)]
    ring.append(windows)
    assert reader.read(0, CAPACITY) == b"".join(window.data for window in windows)
    assert (reader.min_scn, reader.max_scn, reader.prev_scn) == (3, 9, 0)
    assert (reader.first_timestamp_ns, reader.latest_timestamp_ns) == (3000, 9000)
    assert (ring.head, ring.tail) == (reader.head, reader.tail)


def test_eviction_sets_prev_scn_to_the_newest_evicted_window(
    open_ring: OpenRing, open_reader: OpenReader
) -> None:
    """Databus set it to the oldest, and served slow clients on with windows missing."""
    ring, reader = open_ring(), open_reader()
    scns = range(10, 1000, 10)
    for scn in scns:
        ring.append([make_window(scn)])
    assert ring.min_scn > 20
    assert ring.prev_scn == reader.prev_scn == ring.min_scn - 10
    # A client that has all evicted windows goes on; one that lacks one of them may not.
    assert reader.find(ring.prev_scn, -1) == ring.head
    for scn in range(0, ring.prev_scn, 10):
        with pytest.raises(ScnNotFoundError) as caught:
            reader.find(scn, -1)
        assert caught.value.oldest == ring.min_scn


def test_the_newest_evicted_window_half_read_is_not_found(
    open_ring: OpenRing, open_reader: OpenReader
) -> None:
    ring, reader = open_ring(), open_reader()
    ring.append([make_window(scn) for scn in range(1, 60)])
    for offset in (0, 1, 3):
        with pytest.raises(ScnNotFoundError):
            reader.find(ring.prev_scn, offset)


def test_the_beginning_is_served_until_something_is_evicted(
    open_ring: OpenRing, open_reader: OpenReader
) -> None:
    ring, reader = open_ring(), open_reader()
    ring.append([make_window(5)])
    assert reader.find(0, -1) == reader.find(0, 0) == 0
    ring.append([make_window(scn) for scn in range(6, 60)])
    with pytest.raises(ScnNotFoundError):
        reader.find(0, -1)


def test_a_ring_that_started_later_never_serves_the_beginning(
    open_ring: OpenRing, open_reader: OpenReader
) -> None:
    ring, reader = open_ring(start_scn=4), open_reader()
    ring.append([make_window(5)])
    assert reader.find(4, -1) == 0
    for scn in (0, 3):
        with pytest.raises(ScnNotFoundError):
            reader.find(scn, -1)


def test_a_ring_of_unknown_start_serves_from_its_first_window_only(
    open_ring: OpenRing, open_reader: OpenReader
) -> None:
    ring, reader = open_ring(start_scn=UNKNOWN_SCN), open_reader()
    assert (ring.max_scn, ring.prev_scn, reader.newest()) == (-1, -1, (-1, 0))
    assert reader.find(0, -1) is None
    assert reader.find(500, -1) is None
    ring.append([make_window(500)])
    assert reader.find(500, 0) == 0
    for scn in (0, 499):
        with pytest.raises(ScnNotFoundError):
            reader.find(scn, -1)


def test_window_offset_counts_events_and_an_scn_between_windows_means_the_next(
    open_ring: OpenRing, open_reader: OpenReader
) -> None:
    ring, reader = open_ring(), open_reader()
    ring.append([make_window(10, (5, 6, 7)), make_window(20, ())])
    sizes = [len(make_event(10, key, size)) for key, size in enumerate((5, 6, 7))]
    starts = [0, sizes[0], sum(sizes[:2]), sum(sizes)]
    assert [reader.find(10, offset) for offset in range(4)] == starts
    second = len(make_window(10, (5, 6, 7)).data)
    assert [reader.find(10, offset) for offset in (4, 5, 99, -1)] == [second] * 4
    assert [reader.find(scn, offset) for scn in (11, 19) for offset in (-1, 0, 2)] == [second] * 6
    assert reader.find(20, 0) == second
    assert reader.find(20, 1) == reader.find(20, -1) == ring.tail
    assert reader.find(21, 0) is None


def test_a_window_as_large_as_the_ring_replaces_all_others(
    open_ring: OpenRing, open_reader: OpenReader
) -> None:
    ring, reader = open_ring(), open_reader()
    ring.append([make_window(1), make_window(2)])
    room = CAPACITY - len(make_window(3, (0,)).data)
    ring.append([make_window(3, (room,))])
    assert (ring.min_scn, ring.prev_scn, ring.tail - ring.head) == (3, 2, CAPACITY)
    assert split_events(read_on(reader, ring.head, 999)) == split_events(
        make_window(3, (room,)).data
    )


def test_a_window_larger_than_the_ring_is_refused_whole_and_those_before_it_are_in(
    open_ring: OpenRing, open_reader: OpenReader, path: Path
) -> None:
    ring, reader = open_ring(), open_reader()
    room = CAPACITY - len(make_window(3, (0,)).data)
    before, too_large = make_window(2), make_window(3, (room + 1,))
    with pytest.raises(TransactionTooLargeError) as caught:
        ring.append([before, too_large, make_window(4)])
    assert (caught.value.scn, caught.value.size_bytes) == (3, CAPACITY + 1)
    assert "ring_bytes" in str(caught.value)
    assert reader.read(0, CAPACITY) == before.data
    ring.append([make_window(3)])
    assert reader.max_scn == 3


def test_the_ring_grows_without_losing_its_windows_when_the_setting_does(
    open_ring: OpenRing, open_reader: OpenReader
) -> None:
    ring, reader = open_ring(), open_reader()
    ring.append([make_window(scn) for scn in range(1, 60)])
    held = read_on(reader, ring.head)
    oldest, prev_scn = ring.min_scn, ring.prev_scn
    ring.close()
    grown = open_ring(capacity=3 * CAPACITY)
    assert (grown.min_scn, grown.prev_scn, grown.max_scn) == (oldest, prev_scn, 59)
    grown.append([make_window(60, (2 * CAPACITY,))])
    assert read_on(open_reader(), grown.head).startswith(held)
    with pytest.raises(RingError, match="open it again"):
        reader.find(59, -1)


def test_a_ring_made_smaller_keeps_the_newest_windows_that_fit(
    open_ring: OpenRing, open_reader: OpenReader, path: Path
) -> None:
    ring, model = open_ring(), RingModel()
    windows = [make_window(scn) for scn in range(1, 60)]
    ring.append(windows)
    model.append(windows)
    ring.close()
    smaller = open_ring(capacity=CAPACITY // 2)
    assert smaller.max_scn == 59
    assert smaller.min_scn > 1
    model.check_extent(open_reader())
    assert [file.name for file in path.parent.iterdir()] == ["shop.ring"]


def test_an_empty_ring_of_another_size_keeps_its_position(open_ring: OpenRing) -> None:
    open_ring(start_scn=77).close()
    assert open_ring(capacity=2 * CAPACITY).max_scn == 77


@pytest.mark.parametrize("scn", [4, 5])
def test_an_scn_that_does_not_rise_is_refused(open_ring: OpenRing, scn: int) -> None:
    ring = open_ring()
    ring.append([make_window(5)])
    with pytest.raises(RingError, match="must rise"):
        ring.append([make_window(6), make_window(scn)])
    assert ring.max_scn == 6


def test_a_second_writer_is_refused_and_told_who_the_first_is(open_ring: OpenRing) -> None:
    open_ring()
    with pytest.raises(RingError, match=f"process {os.getpid()} is writing it"):
        open_ring()


def test_a_ring_of_another_physical_source_is_refused(open_ring: OpenRing) -> None:
    open_ring(name="shop").close()
    with pytest.raises(RingError, match="'shop', not 'bank'"):
        open_ring(name="bank")
    assert open_ring(name="shop").name == "shop"


def test_a_full_disk_is_an_error_at_open_and_leaves_no_file(
    open_ring: OpenRing, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, offset: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(RingError, match="No space left"):
        open_ring()
    assert list(path.parent.iterdir()) == []


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RingError, match="missing"):
        Ring.open(tmp_path / "missing" / "ring", "shop", CAPACITY)
    with pytest.raises(RingError, match="missing"):
        RingReader.open(tmp_path / "missing" / "ring")


def test_what_a_killed_creation_left_is_written_over(open_ring: OpenRing, path: Path) -> None:
    (path.parent / "shop.ring.new").write_bytes(b"half a ring")
    assert open_ring().tail == 0
    assert [file.name for file in path.parent.iterdir()] == ["shop.ring"]


def test_a_reader_overtaken_by_the_writer_gets_scn_not_found(
    open_ring: OpenRing, open_reader: OpenReader
) -> None:
    ring, reader = open_ring(), open_reader()
    ring.append([make_window(1)])
    position = reader.find(0, -1)
    assert position == 0
    ring.append([make_window(scn) for scn in range(2, 60)])
    with pytest.raises(ScnNotFoundError):
        reader.read(position, 100)
    assert reader.end_of_windows(position, 100) == position


def test_a_reader_overtaken_while_it_copies_gets_scn_not_found_and_not_the_bytes(
    open_ring: OpenRing, open_reader: OpenReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring, reader = open_ring(), open_reader()
    ring.append([make_window(1)])
    copy_out = reader._file.copy_out

    def copy_slowly(position: int, length: int) -> bytes:
        ring.append([make_window(scn) for scn in range(ring.max_scn + 1, ring.max_scn + 60)])
        return copy_out(position, length)

    monkeypatch.setattr(reader._file, "copy_out", copy_slowly)
    with pytest.raises(ScnNotFoundError):
        reader.read(0, 100)


def test_a_search_overtaken_by_the_writer_starts_again(
    open_ring: OpenRing, open_reader: OpenReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring, reader = open_ring(), open_reader()
    ring.append([make_window(scn) for scn in range(1, 20)])

    def walk_slowly(*asked: Any) -> tuple[int, int]:
        if ring.max_scn < 20:
            ring.append([make_window(scn) for scn in range(20, 60)])
        return find_event(*asked)

    monkeypatch.setattr(ring_reader, "find_event", walk_slowly)
    with pytest.raises(ScnNotFoundError):
        reader.find(5, 1)


def test_end_of_windows_is_that_of_the_last_one_that_fits(
    open_ring: OpenRing, open_reader: OpenReader
) -> None:
    ring, reader = open_ring(), open_reader()
    windows = [window_of(scn) for scn in range(1, 100)]
    ring.append(windows)
    ends = [ring.tail]
    for window in reversed(windows):
        ends.append(ends[-1] - len(window.data))
    held = sorted(end for end in ends if end >= ring.head)
    for position in held:
        for size in range(0, CAPACITY + 100, 37):
            expected = max(end for end in held if end <= max(position, position + size))
            assert reader.end_of_windows(position, size) == expected


def test_a_large_window_is_read_on_from_where_the_last_request_ended(
    open_ring: OpenRing, open_reader: OpenReader
) -> None:
    ring, reader = open_ring(capacity=40_000), open_reader()
    ring.append([make_window(1), make_window(2, [10] * 200), make_window(3)])
    offsets = (*range(0, 200, 7), 50, 3, 199, 200)
    starts = [(offset, reader.find(2, offset)) for offset in offsets]
    first = len(make_window(1).data)
    size = len(make_event(2, 0, 10))
    assert starts == [(offset, first + offset * size) for offset, _ in starts]


def test_restarts_after_each_window_do_not_overflow_the_index(
    open_ring: OpenRing, open_reader: OpenReader
) -> None:
    model = RingModel()
    for scn in range(1, 200):
        ring = open_ring()
        ring.append([make_window(scn, ())])
        model.append([make_window(scn, ())])
        ring.close()
    reader = open_reader()
    model.check_extent(reader)
    assert reader.prev_scn > 0


def test_readers_see_whole_windows_in_the_middle_of_a_batch_larger_than_the_ring(
    open_ring: OpenRing, open_reader: OpenReader
) -> None:
    ring, reader = open_ring(), open_reader()

    def windows() -> Iterator[EncodedWindow]:
        for scn in range(1, 200):
            yield make_window(scn)
            seen = split_events(read_on(reader, reader.head))
            assert len(seen) % 3 == 0  # two rows and an EOP

    ring.append(windows())
    assert reader.max_scn == 199


@pytest.mark.parametrize("newest", [4, 15])
def test_a_reader_in_between_two_stores_of_a_publication_takes_the_older_truth(
    open_ring: OpenRing, open_reader: OpenReader, newest: int
) -> None:
    ring, reader = open_ring(), open_reader()
    ring.append([make_window(scn) for scn in range(1, newest + 1)])
    tail = ring.tail
    # The writer is stopped after storing the next window's SCN, before tail.
    ring._cells[TAIL + 1] = (tail + 200) ^ MASK
    ring._cells[NEWEST_SCN] = newest + 1
    assert reader.newest() == (newest, tail)
    assert reader.find(newest, -1) == tail
    assert reader.find(newest + 1, -1) is None


def test_the_newest_window_is_found_though_an_old_one_came_to_harm(
    open_ring: OpenRing, open_reader: OpenReader
) -> None:
    ring, reader = open_ring(), open_reader()
    ring.append([make_window(scn) for scn in range(1, 16)])
    ring._file.copy_in(10, b"\xff" * 20)
    ring._cells[TAIL + 1] = (ring.tail + 200) ^ MASK
    assert reader.newest() == (15, ring.tail)


def test_a_window_that_is_being_written_does_not_say_when_a_ring_begins(
    open_ring: OpenRing, open_reader: OpenReader
) -> None:
    ring, reader = open_ring(), open_reader()
    ring.extend(0, make_window(1).data)
    assert reader.first_timestamp_ns == 0
    ring.append([make_window(2)])
    assert reader.first_timestamp_ns == 2000


def test_a_place_in_a_window_that_is_not_there_is_followed_by_the_next_one_in_a_file_at_rest(
    open_ring: OpenRing, open_reader: OpenReader
) -> None:
    ring = open_ring()
    ring.append([make_window(scn) for scn in range(2, 40, 2)])
    ring.close()
    open_ring()
    reader = open_reader()
    for scn in range(reader.min_scn + 1, 37, 2):
        assert reader.find(scn, 1) == reader.find(scn, -1) == reader.find(scn - 1, -1) is not None


def test_where_a_window_ended_is_forgotten_when_a_restarted_writer_wrote_it_anew(
    open_ring: OpenRing, open_reader: OpenReader, path: Path
) -> None:
    ring, reader = open_ring(), open_reader()
    ring.append([make_window(scn) for scn in range(1, 11)])
    reader.remember_end(10, ring.tail)
    ring.close()
    with path.open("r+b") as file:
        file.seek(reader._file.data_at + ring.tail - 80)
        file.write(bytes(20))
    ring = open_ring()
    assert ring.max_scn == 9
    ring.append([make_window(10, [100, 200]), make_window(11)])
    assert reader.find(10, -1) == ring.tail - len(make_window(11).data)


def test_the_end_of_windows_is_taken_from_the_index_where_that_is_near_enough(
    open_ring: OpenRing, open_reader: OpenReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring, reader = open_ring(block=700), open_reader()
    ring.append([make_window(scn) for scn in range(1, 15)])
    block = reader._index.get(reader.extent().first + 2)
    assert block is not None
    walks = []

    def walk(*asked: Any) -> int:
        walks.append(asked)
        return last_end(*asked)

    monkeypatch.setattr(ring_reader, "last_end", walk)
    assert reader.end_of_windows(ring.head, block.position + 10 - ring.head, 20) == block.position
    assert walks == []
    # It is none where nothing was read yet.
    one = len(make_window(1).data)
    assert reader.end_of_windows(ring.head, one + 10, 10_000) == ring.head + one
    assert len(walks) == 1


def test_a_search_for_what_follows_a_window_begins_at_its_end_when_that_is_known(
    open_ring: OpenRing, open_reader: OpenReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring, reader = open_ring(block=2000), open_reader()
    ring.append([make_window(scn) for scn in range(1, 8)])
    begins = []

    def walk(file: Any, position: int, *asked: Any) -> tuple[int, int]:
        begins.append(position)
        return find_event(file, position, *asked)

    monkeypatch.setattr(ring_reader, "find_event", walk)
    end = len(make_window(1).data) * 3
    reader.remember_end(3, end)
    assert reader.find(3, -1) == end
    assert begins == [end]


def test_what_the_log_was_is_kept_in_turn_and_survives_a_torn_write(tmp_path: Path) -> None:
    path = tmp_path / "shop.ring"
    marks = [LogMark(scn, f'{{"n":{scn}}}') for scn in (1, 2, 3)]
    ring = Ring.open(path, "shop", 1 << 16)
    assert ring.log_marks() == []
    for mark in marks:
        ring.note_mark(mark)
    ring.close()
    ring = Ring.open(path, "shop", 1 << 17)  # of another size: copied
    assert ring.log_marks() == marks[1:]
    ring.close()
    data = bytearray(path.read_bytes())
    data[data.index(b'3:{"n":3}')] ^= 1
    path.write_bytes(bytes(data))
    ring = Ring.open(path, "shop", 1 << 17)
    assert ring.log_marks() == marks[1:2]
    ring.restart_after(9)
    assert ring.log_marks() == []
    ring.close()


@pytest.mark.parametrize("which", ["oldest", "newest"])
def test_a_reader_of_an_index_that_is_damaged_meanwhile_is_told(
    open_ring: OpenRing, open_reader: Callable[[], RingReader], which: str
) -> None:
    ring = open_ring()
    ring.append([make_window(scn, [60]) for scn in range(1, 60)])
    reader = open_reader()
    extent = reader.extent()
    assert extent.end - extent.first > 3
    number = extent.first if which == "oldest" else extent.end - 1
    ring._index.wipe(number)
    with pytest.raises(RingCorruptError, match="its index is damaged"):
        reader.extent()
