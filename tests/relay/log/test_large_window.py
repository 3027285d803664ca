"""A window larger than the ring is in the log, whole and once, whatever happens on the way."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import NoReturn

import pytest

from databus.relay.log.directory import folders_aside
from databus.relay.log.history import HistoryReader, Join
from databus.relay.log.large_window import LargeWindow
from databus.relay.log.segment import Segment, segment_paths
from databus.relay.log.windows import stamped_events
from databus.relay.ring.room import WaitEndedError
from databus.schemas.errors import (
    DamagedWindowsError,
    ProtocolError,
    RelayLogDamagedError,
    ScnNotFoundError,
)
from databus.schemas.event.v2 import Buffer
from databus.schemas.windows import EncodedWindow
from tests.relay.log.logs import events_in
from tests.relay.log.test_follower import FRAME_BYTES, RING_BYTES, Pair
from tests.relay.ring.model import (
    append_in_pieces,
    batch_of,
    make_window,
    split_events,
    unstamped,
    window_of,
)

SEED = 20261125


class Gate:
    """Lets a ring evict what the log has, after it was copied."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair

    def is_open(self, position: int) -> bool:
        """Return whether everything before a position may be evicted."""
        return position <= self._pair.follower.durable_position

    def wait_for(self, position: int) -> None:
        """Copy the ring into the log."""
        if not self.is_open(position):
            self._pair.catch_up()


class Written:
    """Writes large windows at once, on the thread of the ring's writer."""

    def __init__(self, pair: Pair, folder: Path) -> None:
        self.pair, self.folder = pair, folder
        pair.ring.gate, pair.ring.large = Gate(pair), self
        self.window: LargeWindow | None = None
        self.stops_after: int | None = None  # frames

    def write(self, at: int, data: Buffer) -> None:
        """Write bytes of a window."""
        if at == 0:
            self.discard()
        if self.window is None:
            self.window = LargeWindow(self.folder)
        self.window.write(at, data)

    def finish(self, length: int, scn: int, timestamp_ns: int) -> None:
        """Write the window into the log."""
        window, self.window = self.window, None
        assert window is not None
        window.length, window.scn, window.timestamp_ns = length, scn, timestamp_ns
        try:
            if self.stops_after is not None:
                for part in islice(window.parts(FRAME_BYTES), self.stops_after):
                    self.pair.writer.append(part, self.pair.reader.ring_id, None)
                raise WaitEndedError
            while True:
                self.pair.catch_up()
                if self.pair.follower.add_large(window):
                    break
            self.pair.follower.sync()
        finally:
            window.close()

    def discard(self) -> None:
        """Forget the window."""
        if self.window is not None:
            self.window.close()
            self.window = None


@contextmanager
def opened(folder: Path) -> Iterator[tuple[Pair, Written]]:
    """Open a ring and its log, and close them without a sync, as a kill does."""
    pair = Pair(folder)
    large = Written(pair, folder / "log")
    try:
        yield pair, large
    finally:
        large.discard()
        pair.close()


def large_window(scn: int) -> EncodedWindow:
    """Return a window larger than the ring, the same for an SCN."""
    rand = random.Random(scn)
    size = 0
    sizes = []
    while size < RING_BYTES * rand.choice((1, 2)) + 1000:
        sizes.append(rand.randrange(5, 900))
        size += sizes[-1]
    return make_window(scn, sizes)


def append(pair: Pair, window: EncodedWindow, how: int) -> None:
    """Append a window to the ring in one of the ways."""
    if how == 0:
        pair.ring.append([window])
    elif how == 1:
        pair.ring.append_batch(batch_of([window]))
    else:
        append_in_pieces(pair.ring, window, 700)


def events_of(windows: Sequence[EncodedWindow]) -> list[bytes]:
    """Return the events of windows."""
    return [event for window in windows for event in split_events(window.data)]


class Joined:
    """The log of a pair, for a reader of both."""

    problem = ""
    is_complete = True

    def __init__(self, pair: Pair) -> None:
        self._pair = pair

    def note_damage(self, error: DamagedWindowsError | RelayLogDamagedError) -> NoReturn:
        """Fail: nothing is damaged here."""
        raise error

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments."""
        return self._pair.writer.segments

    @property
    def openings(self) -> int:
        """Number of logs begun anew."""
        return self._pair.writer.openings

    @property
    def join(self) -> Join | None:
        """How the log continues the ring."""
        shift = self._pair.follower.shift
        return None if shift is None else Join(self._pair.reader.ring_id, self.openings, shift)


def read_from(pair: Pair, scn: int, offset: int = -1) -> list[bytes]:
    """Return all events after a point, from log and ring."""
    history = HistoryReader(pair.reader, Joined(pair))
    try:
        position = history.find(scn, offset)
        assert position is not None
        pieces = []
        while data := history.read(position, 5000):
            pieces.append(data)
            position += len(data)
        assert position == history.tail
        return split_events(b"".join(pieces))
    finally:
        history.close()


@pytest.mark.usefixtures("way")
def test_windows_of_any_size_are_in_log_and_ring_once_whatever_ends_the_writer(
    tmp_path: Path,
) -> None:
    print("seed", SEED)
    rand = random.Random(SEED)
    windows: list[EncodedWindow] = []
    scn, kinds = 1, 0
    for _ in range(40):
        with opened(tmp_path) as (pair, large):
            assert pair.ring.max_scn == scn - 1
            for _ in range(rand.randrange(1, 12)):
                is_large = random.Random(SEED + scn).random() < 0.15
                window = large_window(scn) if is_large else window_of(scn)
                large.stops_after = rand.randrange(1, 9) if rand.random() < 0.3 else None
                try:
                    append(pair, window, rand.randrange(3))
                except WaitEndedError:
                    break  # killed in the middle of it
                kinds += is_large
                windows.append(window)
                scn += 1
                if rand.random() < 0.3:
                    pair.catch_up()
            else:
                pair.catch_up()
                assert pair.follower.gap == ""
                begin = rand.randrange(scn)
                assert read_from(pair, begin) == events_of(windows[begin:])
    assert kinds > 15
    with opened(tmp_path) as (pair, _):
        pair.catch_up()
    assert events_in(tmp_path / "log") == events_of(windows)
    assert folders_aside(tmp_path / "log") == []


@pytest.mark.usefixtures("way")
def test_a_reader_goes_to_the_log_for_a_large_window_and_back_to_the_ring(tmp_path: Path) -> None:
    with opened(tmp_path) as (pair, _):
        windows = [window_of(1), window_of(2), large_window(3), window_of(4), window_of(5)]
        for window in windows[:2]:
            pair.ring.append([window])
        pair.catch_up()
        history = HistoryReader(pair.reader, Joined(pair))
        position = history.find(2, -1)
        assert position == history.tail
        append(pair, windows[2], 2)
        for window in windows[3:]:
            pair.ring.append([window])
        data = b""
        while part := history.read(position + len(data), 777):
            data += part
        history.close()
        assert data == b"".join(window.data for window in windows[2:])
        count = len(split_events(windows[2].data))
        for offset in (0, 1, count // 2, count - 1):
            rest = events_of(windows[2:])[offset:]
            assert read_from(pair, 3, offset) == rest
        with pytest.raises(ScnNotFoundError):
            pair.reader.find(3, 1)
        assert read_from(pair, 0) == events_of(windows)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("is_other", [False, True])
def test_a_large_window_that_the_log_has_before_the_ring_passed_over_it_comes_once(
    tmp_path: Path, is_other: bool
) -> None:
    window = large_window(3)
    with opened(tmp_path) as (pair, large):
        pair.append([1, 2])
        large.write(0, unstamped(window))
        large.finish(len(window.data), 3, window.timestamp_ns)  # and the relay is killed
        assert (pair.writer.durable.scn, pair.ring.max_scn) == (3, 2)
        history = HistoryReader(pair.reader, Joined(pair))
        assert history.find(3, -1) is None
        assert history.read(history.tail, 100) == b""
        history.close()
    with opened(tmp_path) as (pair, _):
        pair.catch_up()
        assert (pair.ring.max_scn, pair.follower.shift) == (2, None)
        if is_other:
            window = make_window(3, [500] * 40)
        append(pair, window, 2)
        pair.append([4])
        pair.catch_up()
        expected = events_of([window_of(1), window_of(2), window, window_of(4)])
        assert ("another window 3" in pair.follower.gap) == is_other
        assert read_from(pair, 0) == expected
    assert events_in(tmp_path / "log") == expected


def test_a_large_window_that_nobody_waits_for_any_more_is_not_written(tmp_path: Path) -> None:
    with opened(tmp_path) as (pair, large):
        pair.append([1, 2])
        pair.catch_up()
        window = large_window(3)
        large.write(0, unstamped(window))
        assert large.window is not None
        large.window.length, large.window.scn = len(window.data), 3
        large.window.is_cancelled = True
        assert pair.follower.add_large(large.window)
        pair.follower.sync()
        assert pair.writer.written.scn == pair.writer.durable.scn == 2
        append(pair, window, 2)
        assert read_from(pair, 2) == events_of([window])


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("harm", ["body", "header", "no end", "two ends"])
def test_a_large_window_that_is_not_sound_is_refused(tmp_path: Path, harm: str) -> None:
    with opened(tmp_path) as (pair, large):
        pair.append([1, 2])
        pair.catch_up()
        data = bytearray(unstamped(large_window(3)))
        length = len(data)
        if harm == "body":
            data[2900] ^= 1
        elif harm == "header":
            data[0] ^= 0xFF
        elif harm == "no end":
            length -= 20
        else:
            data += unstamped(window_of(4))
            length = len(data)
        large.write(0, bytes(data))
        with pytest.raises(ProtocolError):
            large.finish(length, 3, 3000)
        pair.follower.roll_back()
        append(pair, large_window(3), 2)
        assert read_from(pair, 0) == events_of([window_of(1), window_of(2), large_window(3)])


@pytest.mark.usefixtures("way")
def test_events_are_stamped_up_to_the_last_that_is_whole() -> None:
    window = make_window(7, [20, 300, 5])
    bare, events = unstamped(window), split_events(window.data)
    ends = [sum(map(len, events[: n + 1])) for n in range(len(events))]
    for size in range(len(bare) + 1):
        count = sum(end <= size for end in ends)
        if not count:
            with pytest.raises(ProtocolError):
                stamped_events(bare[:size], 7, 7000)
            continue
        found = stamped_events(bare[:size], 7, 7000)
        assert found == (window.data[: ends[count - 1]], count, count == len(ends))
    assert stamped_events(bare + b"not an event", 7, 7000) == (window.data, len(ends), True)
    with pytest.raises(ProtocolError):
        stamped_events(bare[: ends[0]] + b"not an event" * 20, 7, 7000)


def test_nothing_of_an_unfinished_large_window_has_a_name(tmp_path: Path) -> None:
    window = LargeWindow(tmp_path)
    window.write(0, b"rows")
    assert list(tmp_path.iterdir()) == []
    assert segment_paths(tmp_path) == []
    window.close()
    window.close()
