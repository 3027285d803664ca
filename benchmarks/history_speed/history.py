"""Histories to read: a ring with a log behind it, and a log of many segments with large holes."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from zstandard import ZstdCompressor

from databus.relay.log.follower import FRAME_BYTES, LogFollower
from databus.relay.log.layout import (
    COMPRESSED,
    FRAME_HEADER_BYTES,
    HEADER_BYTES,
    Footer,
    FrameHeader,
    IndexEntry,
    SegmentHeader,
)
from databus.relay.log.segment import FrameIndex
from databus.relay.log.windows import Windows, whole_windows
from databus.relay.log.writer import LogWriter
from databus.relay.ring.reader import RingReader
from databus.relay.ring.ring import EncodedWindow, Ring
from databus.schemas.event.control import end_of_period
from databus.schemas.event.event import Event, Opcode, Part
from databus.schemas.event.metadata import EventMetadata, Op, encode_metadata, metadata_part
from databus.schemas.event.v2 import encode

PHYSICAL, SOURCE, SRC_ID = "bench", "a.b", 1
RING_BYTES = 32 << 20
EVENTS_PER_WINDOW = 10
SEGMENT_BYTES = 256 << 20
_WORDS = ["red", "green", "blue", "small", "large", "sold", "kept", "paper", "glass", "wood"]
_BATCH_WINDOWS = 500
_SPARSE_FRAMES = 1000  # of a sparse segment
_RING_ID = 7


def payloads_of(seed: int) -> Iterator[bytes]:
    """Yield payloads that compress about as rows of a shop do."""
    draw = random.Random(seed)
    while True:
        words = " ".join(draw.choices(_WORDS, k=10))
        yield draw.randbytes(12) + words.encode()


def gtid_of(scn: int) -> str:
    """Return the GTID of a window's transaction."""
    return f"0-1-{scn}"


def windows_from(scn: int, rows: int = EVENTS_PER_WINDOW) -> Iterator[EncodedWindow]:
    """Yield windows of some rows each, as of MariaDB."""
    payloads = payloads_of(scn)
    while True:
        gtid = gtid_of(scn)
        data = b"".join(
            encode(
                Event(
                    scn,
                    scn,
                    SRC_ID,
                    0,
                    scn * 10 + number,
                    Opcode.UPSERT,
                    Part(next(payloads), bytes(16), 1),
                    metadata_part(
                        encode_metadata(
                            EventMetadata(Op.INSERT, gtid, 1, "bin.000001", scn, 0, number)
                        )
                    ),
                )
            )
            for number in range(rows)
        )
        yield EncodedWindow(scn, data + encode(end_of_period(scn, scn)), scn)
        scn += 1


def write_history(data_dir: Path, history_bytes: int) -> Path:
    """Write a relay's ring and a log behind it; return the log's folder."""
    ring_path, folder = data_dir / f"{PHYSICAL}.ring", data_dir / f"{PHYSICAL}.relay-log"
    with (
        closing(Ring.open(ring_path, PHYSICAL, RING_BYTES)) as ring,
        closing(RingReader.open(ring_path, follows=True)) as reader,
        closing(open_log(folder)) as writer,
    ):
        follower, windows = LogFollower(reader, writer), windows_from(1)
        while ring.tail < history_bytes:
            ring.append([next(windows) for _ in range(_BATCH_WINDOWS)])
            while follower.copy(is_all=False):
                pass
        follower.copy(is_all=True)
        follower.sync()
        writer.seal()
    return folder


def open_log(folder: Path) -> LogWriter:
    """Open a log to write."""
    return LogWriter(
        folder,
        PHYSICAL,
        segment_bytes=SEGMENT_BYTES,
        segment_s=1e9,
        is_compressed=True,
        wall_ns=time.time_ns,
    )


class Place(NamedTuple):
    """A window of a sparse log that is really there."""

    scn: int
    path: Path


def write_sparse(folder: Path, size_bytes: int, held: int, seed: int) -> list[Place]:
    """Write a log of whole segments, each of which has one frame only; the rest is a hole.

    Header, index and footer are those of a full segment. Returns a window of `held` frames that
    are there, in segments of any age.
    """
    folder.mkdir(parents=True)
    draw = random.Random(seed)
    count = size_bytes // SEGMENT_BYTES
    numbers = set(draw.sample(range(count), min(held, count)))
    scn, position, windows, found = 0, 0, 200, []
    for number in range(count):
        frame = draw.randrange(1, _SPARSE_FRAMES - 1) if number in numbers else None
        segment = _Sparse(folder, scn, position, windows)
        found += segment.write(frame)
        scn, position = segment.end_scn, segment.end
    return found


class _Sparse:
    """One sparse segment: every frame has the same number of windows, and of bytes."""

    def __init__(self, folder: Path, prev_scn: int, position: int, windows: int) -> None:
        self._folder, self._prev_scn, self._position = folder, prev_scn, position
        self._windows = windows
        self._stored_bytes = (SEGMENT_BYTES - HEADER_BYTES) // _SPARSE_FRAMES - FRAME_HEADER_BYTES
        self.end_scn = prev_scn + _SPARSE_FRAMES * windows
        self.end = position + _SPARSE_FRAMES * FRAME_BYTES

    def write(self, held: int | None) -> list[Place]:
        """Write it; return a window of the frame that is there, if one is."""
        first = self._prev_scn + 1
        header = SegmentHeader(
            PHYSICAL, _RING_ID, self._position, self._prev_scn, first, first, first - 1, 1, None
        )
        path, index, places = self._folder / header.name, FrameIndex(), []
        with path.open("wb") as file:
            file.write(header.encode())
            for number in range(_SPARSE_FRAMES):
                frame, offset = self._frame(number), self._offset(number)
                gtids = {b"0-1-": (frame.first_scn, frame.last_scn)}
                index.add(IndexEntry.of(frame, offset), gtids)
                if number == held:
                    file.seek(offset)
                    file.write(self._data(frame))
                    places.append(Place(frame.first_scn + self._windows // 2, path))
            at, entries = self._offset(_SPARSE_FRAMES), index.encode()
            stored = index.gtids.encode()
            file.seek(at)
            footer = Footer(
                at,
                _SPARSE_FRAMES,
                self.end,
                self.end_scn,
                self.end_scn,
                self.end_scn,
                1,
                at + len(entries),
                len(stored.data),
                crc32(entries),
                stored.list_bytes,
                stored.list_crc,
            )
            file.write(entries + stored.data + footer.encode())
        return places

    def _offset(self, number: int) -> int:
        return HEADER_BYTES + number * (FRAME_HEADER_BYTES + self._stored_bytes)

    def _frame(self, number: int) -> FrameHeader:
        prev = self._prev_scn + number * self._windows
        first, last = prev + 1, prev + self._windows
        position = self._position + number * FRAME_BYTES
        return FrameHeader(
            COMPRESSED,
            self._stored_bytes,
            FRAME_BYTES,
            0,
            0,
            first,
            last,
            prev,
            first,
            last,
            last,
            position,
            0,
        )

    def _data(self, frame: FrameHeader) -> bytes:
        """Return a real frame in the place of one, with windows of the same SCNs."""
        windows = self._real_windows(frame)
        stored = ZstdCompressor(level=1).compress(windows.data)
        real = frame._replace(
            stored_bytes=len(stored), plain_bytes=len(windows.data), data_crc=crc32(stored)
        )
        return real.encode() + stored

    def _real_windows(self, frame: FrameHeader) -> Windows:
        made = windows_from(frame.first_scn)
        data = b"".join(next(made).data for _ in range(self._windows))
        return whole_windows(data, frame.prev_scn)


def drop_from_memory(path: Path) -> None:
    """Let the system forget a file's pages, so that the next read comes from the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
