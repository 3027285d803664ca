"""Each byte of the last two frames cut or flipped: the log is repaired, or says what is damaged."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from databus.relay.log.directory import folders_aside
from databus.relay.log.reader import LogReader
from databus.relay.log.segment import frames_of, read_segment, segment_paths
from databus.schemas.errors import DamagedWindowsError
from databus.schemas.windows import EncodedWindow
from tests.relay.log.test_follower import Pair
from tests.relay.ring.model import make_window

LAST = 8
WINDOWS = [make_window(scn, [30]) for scn in range(1, LAST + 1)]
FOLLOWING = make_window(LAST + 1, [30])


def filled(folder: Path, *, is_sealed: bool, large_at: int = 0) -> list[EncodedWindow]:
    """Write a log of one segment with a frame for each window, and its ring; return the windows."""
    pair = Pair(folder, frame_bytes=len(WINDOWS[0].data) + 10)
    windows = [
        make_window(window.scn, [30, 30]) if window.scn == large_at else window
        for window in WINDOWS
    ]
    for window in windows:
        pair.ring.append([window])
        pair.catch_up()
    if is_sealed:
        pair.writer.seal()
    pair.close()
    return windows


def harmed(folder: Path, way: str) -> Iterator[tuple[str, int]]:
    """Harm each byte from the last two frames on, the files put back before; yield name, byte."""
    (path,) = segment_paths(folder / "log")
    ring, data = (folder / "shop.ring").read_bytes(), path.read_bytes()
    with path.open("rb") as file:
        offsets = [at for at, _ in frames_of(file.fileno(), path, read_segment(path).header)]
    for at in range(offsets[-2], len(data)):
        shutil.rmtree(folder / "log")
        (folder / "log").mkdir()
        changed = data[:at]
        if way == "flipped":
            changed += bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :]
        path.write_bytes(changed)
        (folder / "shop.ring").write_bytes(ring)
        yield path.name, at


def check(folder: Path, windows: list[EncodedWindow], name: str) -> str:
    """Open ring and log, go on, and read everything; return what was damaged, "" for nothing."""
    pair = Pair(folder, frame_bytes=len(WINDOWS[0].data) + 10)
    reader = LogReader(pair.writer)
    try:
        pair.catch_up()
        pair.ring.append([FOLLOWING])
        pair.catch_up()
        assert pair.follower.gap == ""
        assert (reader.min_scn, reader.max_scn, reader.prev_scn) == (1, LAST + 1, 0)
        return read_each(reader, [*windows, FOLLOWING], name) or pair.writer.lost
    finally:
        reader.close()
        pair.close()


def read_each(reader: LogReader, windows: list[EncodedWindow], name: str) -> str:
    """Read each window of a log; return how those that cannot be read were refused."""
    position, said = reader.head, ""
    for window in windows:
        try:
            data = reader.read(position, len(window.data))
        except DamagedWindowsError as error:
            said, is_among = str(error), error.scn < window.scn <= error.until
        else:
            is_among = data == window.data
        assert is_among, window.scn
        position += len(window.data)
    assert position == reader.tail
    assert name in said or not said
    return said


@pytest.mark.parametrize("large_at", [0, LAST - 1, LAST])
@pytest.mark.parametrize("is_sealed", [False, True])
@pytest.mark.parametrize("way", ["cut", "flipped"])
def test_each_byte_of_the_last_two_frames(
    tmp_path: Path, way: str, is_sealed: bool, large_at: int
) -> None:
    windows = filled(tmp_path, is_sealed=is_sealed, large_at=large_at)
    repaired = refused = 0
    for name, at in harmed(tmp_path, way):
        said = check(tmp_path, windows, name)
        # What has whole frames behind it is no torn end: a copy is kept.
        assert name in said or said == "", (way, at, said)
        assert bool(folders_aside(tmp_path / "log")) == ("a copy of the file" in said)
        repaired, refused = repaired + (said == ""), refused + (said != "")
    assert repaired
    # The frames of the newest window were synced together: nothing proves that they were.
    is_proved = is_sealed or large_at != LAST
    assert (refused > 0) == (way == "flipped" and is_proved)
