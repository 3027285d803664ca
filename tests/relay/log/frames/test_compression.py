"""Frames are compressed well, or fast while time is short and the disk is fast enough."""

from __future__ import annotations

from pathlib import Path

import pytest
from zstandard import ZstdDecompressor, get_frame_parameters

from databus.relay.log.frames.compression import FrameCompressor
from tests.relay.log.logs import append, events_in, open_writer
from tests.relay.ring.model import make_window, split_events

DATA = b"".join(make_window(scn).data for scn in range(1, 300))
WELL_S, FAST_S = 2e-9, 0.2e-9  # for each byte


class Clock:
    """A clock on which compressing well takes longer than storing."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.is_behind = False
        self._is_end = False

    def __call__(self) -> float:
        if self._is_end:
            self.now_s += len(DATA) * (FAST_S if self.is_behind else WELL_S)
        self._is_end = not self._is_end
        return self.now_s


class Compressing:
    """A compressor on that clock."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.compressor = FrameCompressor(self.clock)

    def is_stored(self, *, is_behind: bool) -> bool:
        """Compress; return whether nothing was saved."""
        self.clock.is_behind = is_behind
        frame = self.compressor.compress(DATA, is_behind=is_behind)
        assert ZstdDecompressor().decompress(frame) == DATA
        assert get_frame_parameters(frame).has_checksum
        return len(frame) > len(DATA) * 0.9


def test_a_log_that_is_not_behind_compresses_well() -> None:
    compressing = Compressing()
    assert not any(compressing.is_stored(is_behind=False) for _ in range(50))


def test_a_log_that_is_behind_stores_frames() -> None:
    compressing = Compressing()
    for _ in range(50):
        assert compressing.is_stored(is_behind=True)
        compressing.compressor.note_written(8 << 20, (8 << 20) * 1e-9)
    assert not compressing.is_stored(is_behind=False)


def test_on_a_slow_disk_frames_are_compressed_though_the_log_is_behind() -> None:
    compressing = Compressing()
    compressing.is_stored(is_behind=False)
    for _ in range(20):
        compressing.compressor.note_written(8 << 20, (8 << 20) * 10e-9)
    assert not compressing.is_stored(is_behind=True)
    # Small syncs say nothing of a disk: in a while it is tried again.
    for _ in range(20):
        compressing.compressor.note_written(1000, 0.01)
    assert compressing.is_stored(is_behind=True)


@pytest.mark.parametrize("is_behind", [False, True])
def test_the_events_of_every_frame_come_back(tmp_path: Path, is_behind: bool) -> None:
    writer = open_writer(tmp_path)
    windows = [make_window(scn) for scn in range(1, 9)]
    for window in windows:
        append(writer, [window], is_behind=is_behind)
    writer.sync()
    writer.close()
    assert events_in(tmp_path) == [event for one in windows for event in split_events(one.data)]
