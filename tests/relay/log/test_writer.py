"""Writing a log: rolling, sealing, and what a kill leaves."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path
from typing import NoReturn

import pytest

from databus.relay.log.directory import ASIDE, find_segments, folders_aside
from databus.relay.log.layout import HEADER_BYTES
from databus.relay.log.segment import read_segment, segment_paths
from databus.relay.log.verify import verify_segment
from databus.schemas.errors import RelayLogDamagedError, RelayLogError
from tests import PATIENCE_S
from tests.relay.log.logs import (
    RING_ID,
    START_NS,
    Hands,
    append,
    append_large,
    events_in,
    open_writer,
)
from tests.relay.ring.model import make_window, split_events, window_of


def fill(folder: Path, scns: range, *, is_sealed: bool = False) -> list[bytes]:
    """Write a log with a frame for each three windows; return its events."""
    writer = open_writer(folder)
    for scn in scns[::3]:
        append(writer, [window_of(one) for one in range(scn, min(scn + 3, scns.stop))])
    writer.sync()
    if is_sealed:
        writer.seal()
    writer.close()
    return [event for scn in scns for event in split_events(window_of(scn).data)]


def test_a_log_goes_on_where_it_was_closed(tmp_path: Path) -> None:
    events = fill(tmp_path, range(1, 10)) + fill(tmp_path, range(10, 16))
    assert events_in(tmp_path) == events
    assert len(segment_paths(tmp_path)) == 1


def test_a_sealed_log_goes_on_in_a_new_segment(tmp_path: Path) -> None:
    events = fill(tmp_path, range(1, 10), is_sealed=True) + fill(tmp_path, range(10, 16))
    assert events_in(tmp_path) == events
    assert [path.name[:19] for path in segment_paths(tmp_path)] == [f"{1:019}", f"{10:019}"]


def test_segments_are_bounded_by_size_and_by_time(tmp_path: Path) -> None:
    hands = Hands()
    writer = open_writer(tmp_path, segment_bytes=4000, wall_ns=hands, is_compressed=False)
    for scn in range(1, 40):
        append(writer, [make_window(scn, [300])])
    hands.now_ns += 3600 * 10**9
    append(writer, [make_window(40)])
    writer.sync()
    sizes = [segment.size_bytes for segment in writer.segments]
    assert len(sizes) > 5
    assert max(sizes) < 6000
    assert writer.segments[-1].header.first_scn == 40
    assert all(segment.is_sealed for segment in writer.segments[:-1])
    writer.close()


def test_only_synced_windows_are_published(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    append(writer, [make_window(1)])
    assert (writer.durable.scn, writer.written.scn) == (-1, 1)
    writer.sync()
    assert writer.durable == writer.written
    writer.close()


def test_a_sync_goes_on_while_the_next_windows_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, answers, sync = open_writer(tmp_path), threading.Event(), os.fdatasync
    append(writer, [make_window(1)])
    writer.sync()

    def waits(descriptor: int) -> None:
        assert answers.wait(PATIENCE_S)
        sync(descriptor)

    monkeypatch.setattr(os, "fdatasync", waits)
    append(writer, [make_window(2)])
    writer.begin_sync()
    append(writer, [make_window(3)])
    assert writer.durable.scn == 1
    answers.set()
    writer.begin_sync()
    assert writer.durable.scn == 2
    writer.roll_back()  # 3 may be on disk by now, but nobody has heard of that
    assert writer.written.scn == 2
    append(writer, [make_window(3)])
    writer.sync()
    assert writer.durable.scn == 3
    writer.close()
    assert events_in(tmp_path) == [e for n in (1, 2, 3) for e in split_events(make_window(n).data)]


def test_a_sync_that_failed_is_noticed_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_fd: int) -> NoReturn:
        raise OSError(5, "Input/output error")

    writer = open_writer(tmp_path)
    append(writer, [make_window(1)])
    writer.sync()
    append(writer, [make_window(2)])
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        writer.begin_sync()
        append(writer, [make_window(3)])
        with pytest.raises(OSError, match="Input/output"):
            writer.begin_sync()
    assert writer.durable.scn == 1
    writer.roll_back()
    assert writer.written.scn == 1
    writer.close()
    assert events_in(tmp_path) == split_events(make_window(1).data)


def test_what_was_not_synced_is_written_again_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = open_writer(tmp_path)
    append(writer, [make_window(1)])
    writer.sync()

    def fail(_fd: int) -> NoReturn:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        append(writer, [make_window(2)])
        with pytest.raises(OSError, match="No space"):
            writer.sync()
        writer.roll_back()
        assert writer.written.scn == writer.durable.scn == 1
    append(writer, [make_window(2)])
    writer.seal()
    append(writer, [make_window(3)])
    writer.roll_back()  # of a segment without a synced window
    append(writer, [make_window(3)])
    writer.sync()
    writer.close()
    assert events_in(tmp_path) == [e for n in (1, 2, 3) for e in split_events(make_window(n).data)]


def test_a_torn_end_is_cut_at_the_last_whole_window(tmp_path: Path) -> None:
    """At each byte of the last frames: what is left is whole windows, and the log goes on."""
    made = tmp_path / "made"
    fill(made, range(1, 7))
    writer = open_writer(made)
    append_large(writer, make_window(7, [200] * 6), 500)
    writer.sync()
    writer.close()
    (path,) = segment_paths(made)
    data = path.read_bytes()
    ends = set()
    for size in (*range(0, HEADER_BYTES, 100), *range(HEADER_BYTES, len(data))):
        folder = tmp_path / "torn"
        folder.mkdir()
        (folder / path.name).write_bytes(data[:size])
        writer = open_writer(folder)
        reached = max(writer.durable.scn, 0)
        ends.add(reached)
        for scn in range(reached + 1, 7):
            append(writer, [window_of(scn)])
        append(writer, [make_window(7, [200] * 6)])
        writer.sync()
        writer.close()
        windows = [*(window_of(scn) for scn in range(1, 7)), make_window(7, [200] * 6)]
        assert events_in(folder) == [e for one in windows for e in split_events(one.data)], size
        for found in folder.rglob("*"):
            if found.is_file():
                found.unlink()
        for found in sorted(folder.rglob("*"), reverse=True):
            found.rmdir()
        folder.rmdir()
    assert ends == {0, 3, 6}


def test_a_torn_index_or_footer_leaves_all_windows(tmp_path: Path) -> None:
    events = fill(tmp_path, range(1, 10), is_sealed=True)
    (path,) = segment_paths(tmp_path)
    data, end = path.read_bytes(), read_segment(path).end.offset
    for size in range(end, len(data)):
        path.write_bytes(data[:size])
        assert events_in(tmp_path) == events, size
        writer = open_writer(tmp_path)
        assert (writer.durable.scn, writer.durable.offset) == (9, end)
        writer.close()


def test_every_flipped_byte_is_noticed(tmp_path: Path) -> None:
    fill(tmp_path, range(1, 8), is_sealed=True)
    (path,) = segment_paths(tmp_path)
    data = path.read_bytes()
    verify_segment(path)
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
        with pytest.raises(RelayLogDamagedError):
            verify_segment(path)


def test_a_hole_between_segments_ends_the_log_before_it(tmp_path: Path) -> None:
    fill(tmp_path, range(1, 4), is_sealed=True)
    fill(tmp_path, range(4, 7), is_sealed=True)
    events = fill(tmp_path, range(7, 10), is_sealed=True)
    segment_paths(tmp_path)[1].unlink()
    found = find_segments(tmp_path)
    assert [[s.header.first_scn for s in part] for part in found[:2]] == [[7], [1]]
    writer = open_writer(tmp_path)
    assert [segment.header.first_scn for segment in writer.segments] == [7]
    writer.close()
    assert events_in(tmp_path) == events
    assert [len(segment_paths(folder)) for folder in folders_aside(tmp_path)] == [1]


def test_an_unreadable_segment_is_moved_aside(tmp_path: Path) -> None:
    fill(tmp_path, range(1, 4), is_sealed=True)
    fill(tmp_path, range(4, 7))
    first, _ = segment_paths(tmp_path)
    first.write_bytes(b"not a segment")
    writer = open_writer(tmp_path)
    assert [error.path for error in writer.unreadable] == [str(first)]
    assert writer.durable.scn == 6
    writer.close()
    assert len(segment_paths(tmp_path)) == 1


def test_a_log_that_begins_anew_keeps_the_old_one_aside(tmp_path: Path) -> None:
    fill(tmp_path, range(1, 7))
    writer = open_writer(tmp_path)
    assert writer.ring_id == RING_ID
    writer.begin_anew(99)
    assert (writer.durable.scn, writer.openings) == (99, 1)
    assert not writer.segments
    append(writer, [make_window(100)])
    writer.sync()
    assert [segment.header.prev_scn for segment in writer.segments] == [99]
    writer.close()
    (aside,) = folders_aside(tmp_path)
    assert aside.parent.name == ASIDE
    assert len(events_in(aside)) == sum(
        len(split_events(window_of(scn).data)) for scn in range(1, 7)
    )


def test_the_log_of_another_source_is_refused(tmp_path: Path) -> None:
    fill(tmp_path, range(1, 4))
    with pytest.raises(RelayLogError, match="of physical source 'shop', not 'crm'"):
        open_writer(tmp_path, source="crm")


def test_a_log_has_one_writer(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    with pytest.raises(RelayLogError, match="another relay is writing it"):
        open_writer(tmp_path)
    writer.close()


def test_only_the_owner_may_read_a_segment(tmp_path: Path) -> None:
    fill(tmp_path, range(1, 4))
    assert [path.stat().st_mode & 0o777 for path in segment_paths(tmp_path)] == [0o600]


def test_rows_take_less_room_than_in_the_ring(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    windows = [make_window(scn, [20] * 5) for scn in range(1, 200)]
    append(writer, windows)
    writer.sync()
    assert writer.durable.offset < 0.6 * sum(len(window.data) for window in windows)
    writer.close()


def test_logs_of_any_shape_come_back(tmp_path: Path) -> None:
    draw = random.Random(START_NS)
    writer, scn, expected = open_writer(tmp_path, segment_bytes=3000), 0, []
    for _ in range(120):
        windows = []
        for _ in range(draw.randrange(1, 6)):
            scn += draw.randrange(1, 4)
            windows.append(window_of(scn))
        if draw.random() < 0.3:
            append_large(writer, windows[0], draw.randrange(80, 400))
            windows = windows[:1]
            scn = windows[0].scn
        else:
            append(writer, windows)
        expected += [event for one in windows for event in split_events(one.data)]
        if draw.random() < 0.2:
            writer.sync()
        if draw.random() < 0.1:
            writer.sync()
            writer.close()
            writer = open_writer(tmp_path, segment_bytes=3000)
    writer.sync()
    writer.close()
    assert events_in(tmp_path) == expected
