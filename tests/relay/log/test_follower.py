"""A log has every window of its ring once and in order, whatever ends its writer."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

import pytest

from databus.relay.log.directory import folders_aside
from databus.relay.log.follower import LogFollower
from databus.relay.log.reader import LogReader
from databus.relay.log.segment import segment_paths
from databus.relay.ring.reader import RingReader
from databus.relay.ring.ring import Ring
from databus.schemas.event.control import end_of_period
from databus.schemas.event.v2 import decode, encode
from databus.schemas.windows import EncodedWindow
from tests.relay.log.logs import events_in, open_writer, reading
from tests.relay.ring.model import (
    append_in_pieces,
    make_event,
    make_window,
    split_events,
    window_of,
)
from tools.repository import ROOT

FRAME_BYTES = 600
RING_BYTES = 8 << 10


class Pair:
    """A ring and the log that follows it."""

    def __init__(self, folder: Path, start_scn: int = 0, frame_bytes: int = FRAME_BYTES) -> None:
        path = folder / "shop.ring"
        with ExitStack() as opened:
            self.ring = Ring.open(path, "shop", RING_BYTES, start_scn=start_scn)
            opened.callback(self.ring.close)
            self.reader = RingReader.open(path, follows=True)
            opened.callback(self.reader.close)
            self.writer = open_writer(folder / "log", segment_bytes=4000)
            opened.callback(self.writer.close)
            self.follower = LogFollower(self.reader, self.writer, frame_bytes=frame_bytes)
            self._opened = opened.pop_all()

    def append(self, scns: Iterable[int]) -> None:
        """Append windows to the ring."""
        self.ring.append(window_of(scn) for scn in scns)

    def catch_up(self) -> None:
        """Copy everything to the log, and sync it."""
        while self.follower.copy(is_all=True):
            pass
        self.follower.sync()

    def close(self) -> None:
        """Close all, without a sync of the log."""
        self._opened.close()


def events_of(scns: Iterable[int]) -> list[bytes]:
    """Return the events of windows."""
    return [event for scn in scns for event in split_events(window_of(scn).data)]


def test_a_log_has_more_than_its_ring(tmp_path: Path, way: str) -> None:
    pair = Pair(tmp_path)
    for scn in range(1, 400, 5):
        pair.append(range(scn, scn + 5))
        pair.catch_up()
        assert pair.follower.durable_position == pair.ring.tail
    assert pair.ring.min_scn > 100
    pair.close()
    assert events_in(tmp_path / "log") == events_of(range(1, 401))
    assert pair.follower.gap == ""


def test_only_full_frames_are_written_before_a_sync_is_due(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.ring.append([make_window(1, [50])])
    assert not pair.follower.copy(is_all=False)
    pair.ring.append([make_window(2, [150, 150])])
    assert pair.follower.copy(is_all=False)
    assert pair.writer.written.scn == 1
    pair.catch_up()
    assert pair.writer.durable.scn == 2
    pair.close()


def test_a_window_larger_than_a_frame_has_several(tmp_path: Path, way: str) -> None:
    pair = Pair(tmp_path)
    large = make_window(2, [20, 3 * FRAME_BYTES, 40, *[100] * 30])
    pair.append([1])
    append_in_pieces(pair.ring, large, 700)
    pair.append([3])
    pair.catch_up()
    pair.close()
    expected = events_of([1]) + split_events(large.data) + events_of([3])
    assert events_in(tmp_path / "log") == expected
    with reading(tmp_path / "log") as reader:
        position = reader.find(2, 20)
        assert position is not None
        assert split_events(reader.read(position, 10_000)) == expected[len(events_of([1])) + 20 :]


def test_what_was_not_synced_is_copied_again(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.append(range(1, 6))
    pair.catch_up()
    pair.append(range(6, 9))
    pair.follower.copy(is_all=True)
    pair.follower.roll_back()
    assert pair.follower.copy(is_all=True)
    pair.follower.sync()
    pair.close()
    assert events_in(tmp_path / "log") == events_of(range(1, 9))


def test_a_log_that_is_behind_is_made_durable_step_by_step(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.append(range(1, 16))
    follower, steps = pair.follower, 0
    follower.place()
    durable = follower.durable_position
    while follower.behind_bytes:
        assert follower.copy(is_all=True, most_bytes=1000)
        follower.begin_sync()
        # What the call before has begun; the newest step is not certain yet.
        assert durable <= follower.durable_position < pair.ring.tail
        durable, steps = follower.durable_position, steps + 1
    assert steps > 3
    assert not follower.copy(is_all=True, most_bytes=1000)
    follower.sync()
    assert follower.durable_position == pair.ring.tail
    pair.close()
    windows = [window_of(scn) for scn in range(1, 16)]
    assert events_in(tmp_path / "log") == [e for one in windows for e in split_events(one.data)]


def test_a_log_that_has_more_than_the_ring_waits_for_it(tmp_path: Path) -> None:
    """A power cut may take the ring's newest windows, which the log has."""
    pair = Pair(tmp_path)
    pair.append(range(1, 6))
    before = (tmp_path / "shop.ring").read_bytes()
    pair.append(range(6, 10))
    pair.catch_up()
    pair.close()
    (tmp_path / "shop.ring").write_bytes(before)
    pair = Pair(tmp_path)
    assert not pair.follower.copy(is_all=True)
    assert pair.follower.durable_position == pair.ring.tail
    pair.append(range(6, 13))
    pair.catch_up()
    pair.close()
    assert (pair.follower.gap, folders_aside(tmp_path / "log")) == ("", [])
    assert events_in(tmp_path / "log") == events_of(range(1, 13))


def test_a_log_goes_on_with_a_ring_of_another_size(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.append(range(1, 6))
    pair.catch_up()
    pair.append(range(6, 10))
    pair.close()
    Ring.open(tmp_path / "shop.ring", "shop", 2 * RING_BYTES).close()
    pair = Pair(tmp_path)
    pair.catch_up()
    pair.close()
    assert pair.follower.gap == ""
    assert events_in(tmp_path / "log") == events_of(range(1, 10))


def test_a_log_begins_anew_with_an_emptied_ring(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.append(range(1, 6))
    pair.catch_up()
    pair.ring.restart_after(3)
    pair.append(range(4, 9))
    pair.catch_up()
    pair.close()
    assert "after scn 3: it is the log of another ring" in pair.follower.gap
    assert events_in(tmp_path / "log") == events_of(range(4, 9))
    assert len(folders_aside(tmp_path / "log")) == 1


def test_a_log_begins_anew_behind_a_hole(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.append(range(1, 6))
    pair.catch_up()
    pair.append(range(6, 300))
    pair.catch_up()
    oldest = pair.ring.min_scn
    pair.close()
    assert "the ring no longer has what comes after scn 5" in pair.follower.gap
    assert events_in(tmp_path / "log") == events_of(range(oldest, 300))
    (aside,) = folders_aside(tmp_path / "log")
    assert events_in(aside) == events_of(range(1, 6))


def test_a_log_with_another_newest_window_is_not_gone_on_with(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.append(range(1, 5))
    before = (tmp_path / "shop.ring").read_bytes()
    pair.append([5])
    pair.catch_up()
    pair.close()
    (tmp_path / "shop.ring").write_bytes(before)
    pair = Pair(tmp_path)
    other = EncodedWindow(5, encode(end_of_period(5, 77)), 77)
    pair.ring.append([other])
    pair.append([6])
    pair.catch_up()
    pair.close()
    assert "the ring has another window at scn 5" in pair.follower.gap
    expected = events_of(range(1, 5)) + split_events(other.data) + events_of([6])
    assert events_in(tmp_path / "log") == expected
    assert len(folders_aside(tmp_path / "log")) == 1


def other_window(scn: int) -> EncodedWindow:
    """Return a window as long as that of an SCN, of other rows."""
    made = window_of(scn)
    sizes = [len(payload_of(event)) for event in split_events(made.data)[:-1]]
    assert sizes
    events = [make_event(scn, 100 + key, size) for key, size in enumerate(sizes)]
    eop = split_events(made.data)[-1]
    return made._replace(data=b"".join([*events, eop]))


def payload_of(event: bytes) -> bytes:
    payload = decode(event)[0].payload
    assert payload is not None
    return payload.data


@pytest.mark.parametrize("is_larger", [False, True])
def test_a_log_is_not_gone_on_with_by_a_ring_that_captured_other_windows_at_its_scns(
    tmp_path: Path, is_larger: bool
) -> None:
    """A ring that was put back from a copy, with other tables in the settings."""
    pair = Pair(tmp_path)
    pair.append(range(1, 5))
    before = (tmp_path / "shop.ring").read_bytes()
    pair.append(range(5, 9))
    pair.catch_up()
    pair.close()
    (tmp_path / "shop.ring").write_bytes(before)
    pair = Pair(tmp_path)
    # All but one are the same, and the newest one has the same time.
    changed = make_window(5, [200]) if is_larger else other_window(5)
    pair.ring.append([changed])
    pair.append(range(6, 12))
    pair.catch_up()
    pair.close()
    assert "the ring has other windows up to scn 8" in pair.follower.gap
    expected = events_of(range(1, 5)) + split_events(changed.data) + events_of(range(6, 12))
    assert events_in(tmp_path / "log") == expected


def test_a_damaged_frame_is_no_reason_to_begin_a_log_anew(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    for scn in range(1, 60, 5):
        pair.append(range(scn, scn + 5))
        pair.catch_up()
    sealed = pair.writer.segments[-2].path  # the ring has its windows, too
    assert pair.writer.segments[-2].end.scn > pair.ring.min_scn
    pair.close()
    data = bytearray(sealed.read_bytes())
    data[len(data) // 2] ^= 1
    sealed.write_bytes(data)
    pair = Pair(tmp_path)
    pair.append([61])
    pair.catch_up()
    assert (pair.follower.gap, pair.writer.durable.scn) == ("", 61)
    pair.close()


def test_a_restarted_log_of_any_end_has_every_window_once(tmp_path: Path) -> None:
    draw = random.Random(22)
    scn = 0
    for _ in range(40):
        pair = Pair(tmp_path)
        for _ in range(draw.randrange(1, 6)):
            new = range(scn + 1, scn + draw.randrange(2, 9))
            pair.append(new)
            scn = new[-1]
            pair.follower.copy(is_all=draw.random() < 0.7)
            if draw.random() < 0.5:
                pair.follower.sync()
        durable, newest = pair.writer.durable, segment_paths(tmp_path / "log")[-1:]
        pair.close()
        # A kill or a power cut: of what was not synced, any part may be there.
        for path in newest:
            size = path.stat().st_size
            if durable.offset and durable.scn >= int(path.name[:19]):
                with path.open("r+b") as file:
                    file.truncate(draw.randrange(durable.offset, size + 1))
    pair = Pair(tmp_path)
    pair.catch_up()
    pair.close()
    assert events_in(tmp_path / "log") == events_of(range(1, scn + 1))
    assert folders_aside(tmp_path / "log") == []


def test_a_log_whose_writer_is_killed_has_every_window_once(tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    draw = random.Random(seed)
    for _ in range(6):
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.relay.log.child", str(tmp_path)],
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        with child:
            assert child.stdout is not None
            for _ in range(draw.randrange(1, 60)):  # it says each window that is durable
                line = child.stdout.readline()
            child.send_signal(signal.SIGKILL)
        durable = int(line)
        pair = Pair(tmp_path)
        reader = LogReader(pair.writer)
        assert reader.max_scn >= durable
        pair.catch_up()
        newest = pair.ring.max_scn
        assert reader.max_scn == newest
        reader.close()
        pair.close()
        assert events_in(tmp_path / "log") == events_of(range(1, newest + 1))
        assert pair.follower.gap == ""
