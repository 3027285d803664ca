"""Logs in folders, written window by window, for the tests of `relay/log`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from databus.relay.log.directory import find_segments
from databus.relay.log.layout import FRAME_HEADER_BYTES, FRAME_MAGIC, HEADER_BYTES
from databus.relay.log.reader import LogReader, SegmentTuple
from databus.relay.log.windows import part_of_window, whole_windows
from databus.relay.log.writer import LogWriter
from databus.schemas.windows import EncodedWindow
from tests.relay.ring.model import split_events

RING_ID = 0x5EED
START_NS = 1_767_225_600_000_000_000  # 2026-01-01T00:00:00Z


class Hands:
    """A wall clock that a test moves."""

    def __init__(self) -> None:
        self.now_ns = START_NS

    def __call__(self) -> int:
        return self.now_ns


def open_writer(
    folder: Path,
    *,
    source: str = "shop",
    segment_bytes: int = 1 << 20,
    segment_s: float = 3600,
    is_compressed: bool = True,
    wall_ns: Hands | None = None,
) -> LogWriter:
    """Open the log in a folder."""
    return LogWriter(
        folder,
        source,
        segment_bytes=segment_bytes,
        segment_s=segment_s,
        is_compressed=is_compressed,
        wall_ns=wall_ns or Hands(),
    )


def append(writer: LogWriter, windows: Iterable[EncodedWindow]) -> None:
    """Write windows as one frame."""
    data = b"".join(window.data for window in windows)
    frame = whole_windows(data, writer.written.scn)
    writer.append(frame, RING_ID, None)


def damage_events(path: Path, share: float) -> None:
    """Flip a bit in the events of a frame, the first one behind so much of a file.

    One in a frame's header may harm nobody. The file may still be written.
    """
    data = path.read_bytes()
    frame = data.find(FRAME_MAGIC, max(HEADER_BYTES, int(share * len(data))))
    if frame < 0:  # it has but one yet, or a large one at its end
        frame = data.rindex(FRAME_MAGIC)
    at = frame + FRAME_HEADER_BYTES + 20
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([data[at] ^ 1]))


def append_large(writer: LogWriter, window: EncodedWindow, frame_bytes: int) -> None:
    """Write a window over several frames."""
    at = offset = 0
    while at < len(window.data):
        size = frame_bytes
        while not split_whole(window.data[at : at + size]):
            size += frame_bytes
        part, count = part_of_window(window.data[at : at + size], offset)
        writer.append(part, RING_ID, None)
        at, offset = at + len(part.data), offset + count


def split_whole(data: bytes) -> bool:
    """Return whether bytes begin with a whole event."""
    return len(data) >= 21 and int.from_bytes(data[17:21], "big") <= len(data)


@contextmanager
def reading(folder: Path) -> Iterator[LogReader]:
    """Read the log in a folder that nobody writes to."""
    reader = LogReader(SegmentTuple(find_segments(folder).log))
    try:
        yield reader
    finally:
        reader.close()


def events_in(folder: Path) -> list[bytes]:
    """Return all events of a log."""
    with reading(folder) as reader:
        return split_events(reader.read(reader.head, reader.tail - reader.head))
