"""Check every byte of a segment, as `databus log verify` does."""

from __future__ import annotations

import os
from pathlib import Path
from zlib import crc32

from zstandard import ZstdDecompressor

from databus.relay.log.frames.frame_events import FrameEvents
from databus.relay.log.gtids.frame_gtids import gtids_of
from databus.relay.log.gtids.gtid_index import StoredGtids
from databus.relay.log.layout import HEADER_BYTES, IndexEntry, SegmentHeader
from databus.relay.log.segment import (
    FrameIndex,
    SegmentEnd,
    end_of,
    frames_of,
    read_footer,
    read_frame,
)
from databus.relay.ring.events import sound_windows
from databus.schemas.errors import RelayLogDamagedError


def verify_segment(path: Path) -> int:
    """Check all frames, events, the index and the footer; return the number of frames.

    A segment without a footer is the one being written: it is sound up to the end of its last
    whole frame. Raises RelayLogDamagedError for the first byte that is wrong, or OSError.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        header = SegmentHeader.decode(str(path), os.pread(fd, HEADER_BYTES, 0))
        index, end = FrameIndex(), None
        large: list[bytes] = []  # parts of a window that goes on
        scn, decompressor = header.prev_scn, ZstdDecompressor()
        for offset, _ in frames_of(fd, path, header):
            frame, data = read_frame(fd, path, offset, decompressor)
            large.append(data)
            if not frame.goes_on:
                scn = _verify_events(path, offset, b"".join(large), scn)
                large.clear()
            index.add(IndexEntry.of(frame, offset), gtids_of(data))
            end = end_of(frame, offset)
        if large or end is None or scn != end.scn:
            raise RelayLogDamagedError(str(path), "its last window is not whole")
        _verify_footer(fd, path, index, end)
        return len(index)
    finally:
        os.close(fd)


def _verify_events(path: Path, offset: int, data: bytes, after_scn: int) -> int:
    """Check that bytes are whole windows after an SCN; return the SCN of the last."""
    events, end = FrameEvents(data), 0
    try:
        for window in sound_windows(events, 0, len(data), after_scn):
            after_scn, end = window.scn, window.end
    finally:
        events.release()
    if end != len(data):
        text = f"a window after scn {after_scn}, in the frame at byte {offset}, is not sound"
        raise RelayLogDamagedError(str(path), text)
    return after_scn


def _verify_footer(fd: int, path: Path, index: FrameIndex, end: SegmentEnd) -> None:
    footer = read_footer(fd)
    if footer is None:
        if os.fstat(fd).st_size != end.offset:
            raise RelayLogDamagedError(str(path), "its footer is damaged")
        return
    entries = os.pread(fd, len(index.encode()), end.offset)
    if entries != index.encode() or crc32(entries) != footer.index_crc:
        raise RelayLogDamagedError(str(path), "its index is not that of its frames")
    if footer.gtids_bytes:  # else it was sealed before there was such an index
        data = os.pread(fd, footer.gtids_bytes, footer.gtids_at)
        stored = StoredGtids(data, footer.gtid_list_bytes, footer.gtid_list_crc)
        if stored != index.gtids.encode() or footer.gtids_at != end.offset + len(entries):
            raise RelayLogDamagedError(str(path), "its index of GTIDs is not that of its frames")
    facts = (footer.end, footer.index_at, footer.last_scn, footer.last_timestamp_ns)
    if (*facts, footer.newest_timestamp_ns) != end:
        raise RelayLogDamagedError(str(path), "its footer is that of other frames")
