"""Reading a log by SCN and by time gives what was written, and says where it cannot."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from databus.relay.log.layout import FRAME_MAGIC
from databus.relay.log.reader import LogReader
from databus.relay.log.segment import segment_paths
from databus.relay.ring.event_selector import WINDOW_DONE, EventSelector
from databus.relay.ring.selection import Selection
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import DamagedWindowsError, ScnNotFoundError
from databus.schemas.event.control import end_of_period
from databus.schemas.event.v2 import encode, peek
from databus.schemas.filters import ModFilter
from databus.schemas.windows import EncodedWindow
from tests.relay.log.logs import Hands, append, append_large, open_writer, reading
from tests.relay.ring.model import RingModel, make_event, make_window, split_events, window_of


def read_on(reader: LogReader, position: int, chunk: int) -> bytes:
    """Read everything from a position to the end in chunks."""
    chunks = []
    while data := reader.read(position, chunk):
        chunks.append(data)
        position += len(data)
    return b"".join(chunks)


def write_log(folder: Path, draw: random.Random, prev_scn: int = 0) -> RingModel:
    """Write a log of several segments, with large windows; return what it holds."""
    writer = open_writer(folder, segment_bytes=4000)
    writer.begin_anew(prev_scn)
    model, scn = RingModel(prev_scn), prev_scn
    for _ in range(60):
        windows = []
        for _ in range(draw.randrange(1, 6)):
            scn += draw.randrange(1, 4)
            windows.append(window_of(scn))
        if draw.random() < 0.3:
            windows = [make_window(windows[0].scn, [draw.randrange(200) for _ in range(20)])]
            scn = windows[0].scn
            append_large(writer, windows[0], draw.randrange(80, 600))
        else:
            append(writer, windows)
        model.append(windows)
    writer.sync()
    assert len(writer.segments) > 3
    writer.close()
    return model


@pytest.mark.parametrize("prev_scn", [0, 500])
def test_every_point_is_found_as_in_a_ring(tmp_path: Path, way: str, prev_scn: int) -> None:
    draw = random.Random(f"{way}{prev_scn}")
    model = write_log(tmp_path, draw, prev_scn)
    with reading(tmp_path) as reader:
        assert (reader.prev_scn, reader.max_scn) == (prev_scn, model.newest_scn)
        for scn in range(max(prev_scn - 3, 0), model.newest_scn + 4):
            for offset in (-1, 0, 1, draw.randrange(25)):
                try:
                    position = reader.find(scn, offset)
                except ScnNotFoundError:
                    assert not model.is_held(reader.prev_scn, scn, offset)
                    continue
                if position is None:
                    assert scn > model.newest_scn
                    continue
                rest = read_on(reader, position, draw.randrange(100, 4000))
                assert split_events(rest) == model.after(scn, offset), (scn, offset)


def test_a_search_decompresses_one_frame_of_a_large_segment(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    for scn in range(1, 1000, 3):
        append(writer, [make_window(one) for one in range(scn, scn + 3)])
    append_large(writer, make_window(2000, [50] * 100), 300)
    writer.sync()
    writer.close()
    for scn, offset in ((1, -1), (500, -1), (999, -1), (2000, 99), (2000, 3)):
        with reading(tmp_path) as reader:
            assert reader.find(scn, offset) is not None
            assert reader.decompressed <= 1


@pytest.mark.parametrize("max_bytes", [1, 150, 700, 3000])
def test_windows_that_fit_end_where_they_do(tmp_path: Path, way: str, max_bytes: int) -> None:
    model = write_log(tmp_path, random.Random(way))
    with reading(tmp_path) as reader:
        position, read = 0, []
        while position < reader.tail:
            end = reader.end_of_windows(position, max_bytes)
            if end == position:  # the next window is larger
                end = reader.find(peek(reader.read(position, 200)).scn, WINDOW_DONE) or 0
                assert end - position > max_bytes
            else:
                assert end - position <= max_bytes
            events = split_events(reader.read(position, end - position))
            assert peek(events[-1]).is_eop
            read += events
            position = end
        assert read == model.after(0, -1)


def test_a_reading_of_several_frames_at_a_time_decompresses_each_once(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    for scn in range(1, 100, 3):
        append(writer, [make_window(one) for one in range(scn, scn + 3)])
    writer.sync()
    frame_bytes, frames = writer.durable.position // 33, 33
    writer.close()
    with reading(tmp_path) as reader:
        position = 0
        while position < reader.tail:
            end = reader.end_of_windows(position, frame_bytes * 7 // 2)
            assert end > position
            reader.read(position, end - position)
            position = end
        assert reader.decompressed == frames


def test_events_are_selected_as_from_a_ring(tmp_path: Path, way: str) -> None:
    model = write_log(tmp_path, random.Random(way))
    wanted = {40: ModFilter(3, 1, 1)}
    selector = EventSelector(Selection("shop", Checkpoint.flexible(), None, wanted), None)
    with reading(tmp_path) as reader:
        position, place, selected = reader.head, (-1, 0), b""
        while found := reader.select(position, 500, selector, place, 1 << 20):
            position, place = found.position, (found.scn, found.offset)
            selected += found.data
        assert place == (model.newest_scn, WINDOW_DONE)
        passing = [event for event in model.after(0, -1) if selector.passes(event, 0, peek(event))]
        assert split_events(selected) == passing


def timed(scn: int, timestamp_ns: int) -> EncodedWindow:
    """Return a window of one row, committed at a time."""
    eop = encode(end_of_period(scn, timestamp_ns))
    row = bytearray(make_event(scn))
    return EncodedWindow(scn, bytes(row) + eop, timestamp_ns)


def test_a_time_finds_the_first_window_in_log_order(tmp_path: Path) -> None:
    """Commit times fall now and then; the first one at or after the time counts."""
    draw = random.Random(15)
    writer = open_writer(tmp_path, segment_bytes=3000)
    writer.begin_anew(0)
    times: list[tuple[int, int]] = []
    for scn in range(1, 200, 2):
        windows = []
        for one in (scn, scn + 1):
            times.append((one, one * 1000 + draw.randrange(-5000, 5000)))
            windows.append(timed(*times[-1]))
        append(writer, windows)
    writer.sync()
    writer.close()
    with reading(tmp_path) as reader:
        for timestamp_ns in range(0, 206_000, 777):
            first = next((scn for scn, ns in times if ns >= timestamp_ns), None)
            position = reader.find_time(timestamp_ns)
            if first is None:
                assert position is None
            else:
                assert position is not None
                assert peek(reader.read(position, 200)).scn == first, timestamp_ns


def test_a_time_before_the_log_is_not_found(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    writer.begin_anew(500)
    append(writer, [timed(501, 10_000), timed(502, 20_000)])
    writer.sync()
    writer.close()
    with reading(tmp_path) as reader:
        with pytest.raises(ScnNotFoundError, match="may be before the log"):
            reader.find_time(10_000)
        assert reader.find_time(10_001) == reader.find(501, WINDOW_DONE)
        assert reader.find_time(20_001) is None


def test_a_damaged_frame_is_refused_and_those_around_it_are_read(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    for scn in (1, 4, 7):
        append(writer, [make_window(one) for one in range(scn, scn + 3)])
    writer.seal()
    (path,) = segment_paths(tmp_path)
    data = bytearray(path.read_bytes())
    second = data.index(FRAME_MAGIC, 2048 + 8)
    data[second + 100] ^= 1
    path.write_bytes(data)
    writer.close()
    with reading(tmp_path) as reader:
        position = reader.find(3, WINDOW_DONE)
        assert position is not None
        with pytest.raises(DamagedWindowsError, match="after scn 3, up to 6"):
            reader.read(position, 10)
        position = reader.find(6, WINDOW_DONE)
        assert position is not None
        assert peek(reader.read(position, 200)).scn == 7


def test_a_point_inside_the_window_after_which_capture_began_is_not_found(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    writer.begin_anew(-1)
    append(writer, [make_window(5, []), make_window(6)])
    writer.sync()
    writer.close()
    with reading(tmp_path) as reader:
        assert (reader.prev_scn, reader.min_scn) == (-1, 5)
        with pytest.raises(ScnNotFoundError):
            reader.find(5, 1)
        after = reader.find(5, WINDOW_DONE)
        assert after is not None
        assert read_on(reader, after, 1000) == make_window(6).data


def test_a_reader_sees_what_a_writer_adds(tmp_path: Path) -> None:
    writer = open_writer(tmp_path, segment_bytes=2500, wall_ns=Hands())
    reader = LogReader(writer)
    assert (reader.newest(), reader.find(0, -1)) == ((-1, 0), None)
    for scn in range(1, 60):
        append(writer, [make_window(scn, [300])])
        assert reader.max_scn == (scn - 1 or -1)
        writer.sync()
        position = reader.find(scn, 0)
        assert position is not None
        assert split_events(reader.read(position, 1 << 20)) == split_events(
            make_window(scn, [300]).data
        )
        assert reader.window_at(scn) == (scn, scn * 1000)
    assert len(writer.segments) > 3
    reader.close()
    writer.close()


def test_a_reader_whose_segment_was_deleted_is_told(tmp_path: Path) -> None:
    writer = open_writer(tmp_path, segment_bytes=2500)
    for scn in range(1, 30):
        append(writer, [make_window(scn, [900])])
    writer.sync()
    reader = LogReader(writer)
    writer.segments[0].path.unlink()
    with pytest.raises(ScnNotFoundError):
        reader.find(1, 1)
    writer.drop(1)
    with pytest.raises(ScnNotFoundError):
        reader.find(1, 0)
    assert reader.find(writer.segments[0].header.prev_scn, WINDOW_DONE) == reader.head
    reader.close()
    writer.close()
