"""Read a segment's file: its header, its end, its index, its frames.

A sealed segment has a footer and an index. Without them it is the one being written, or a kill
or damage has taken them: then its frames are read from the beginning on, up to the end of the
last window that is whole.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from zstandard import ZstdDecompressor, ZstdError

from databus.daemon.files import OpenFile
from databus.relay.log.gtids.frame_gtids import GtidKey, GtidRanges, gtids_of
from databus.relay.log.gtids.gtid_index import GtidIndex, GtidList
from databus.relay.log.layout import (
    COMPRESSED,
    ENTRY_BYTES,
    FOOTER_BYTES,
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    HEADER_BYTES,
    Footer,
    FrameHeader,
    IndexEntry,
    SegmentHeader,
)
from databus.schemas.errors import RelayLogDamagedError, RelayLogError

_SEARCHED_BYTES = 1 << 20


class SegmentEnd(NamedTuple):
    """Where the whole windows of a segment end: in the log, in the file, and the last of them."""

    position: int
    offset: int
    scn: int
    timestamp_ns: int
    newest_timestamp_ns: int


class FrameIndex:
    """The index of a segment, or the frames of the segment being written, which are added.

    `gtids` is the index of their GTIDs if they were added; of a sealed segment it is in the file.
    """

    def __init__(self, entries: bytes | bytearray = b"") -> None:
        self._entries = bytearray(entries)
        self.gtids = GtidIndex()

    def __len__(self) -> int:
        return len(self._entries) // ENTRY_BYTES

    def __getitem__(self, number: int) -> IndexEntry:
        if not 0 <= number < len(self):
            raise IndexError(number)
        return IndexEntry.decode(self._entries, number)

    def add(self, entry: IndexEntry, gtids: GtidRanges) -> None:
        """Add the next frame."""
        self.gtids.add(gtids)
        self._entries += entry.encode()

    def cut(self, count: int) -> None:
        """Forget all entries but the first `count`."""
        del self._entries[count * ENTRY_BYTES :]
        self.gtids.cut(count)

    def encode(self) -> bytes:
        """Return the bytes of all entries."""
        return bytes(self._entries)

    def last(self, key: Callable[[IndexEntry], Any], wanted: Any, count: int | None = None) -> int:
        """Return the last of the first `count` frames whose key is not above; -1 without one.

        The keys must not fall from frame to frame.
        """
        end = len(self) if count is None else count
        return bisect_right(self, wanted, 0, end, key=key) - 1


class Segment:
    """One segment of a log: what is known without reading its frames.

    Of the segment being written, `end` and `index` grow. A reader takes `end` first: frames
    behind it are of a window that is not whole yet.
    """

    def __init__(
        self,
        path: Path,
        header: SegmentHeader,
        end: SegmentEnd,
        *,
        sealed_ns: int = 0,
        index: FrameIndex | None = None,
        damage: str = "",
        has_more: bool = False,
        gtids: GtidRanges | None = None,
    ) -> None:
        """`index` is None if it is in the file; `damage` says what was found in a file.

        With `has_more` the damaged frame was on disk once: it is not the torn end of a file.
        `gtids` are those of a sealed segment; None if its file does not have them.
        """
        self.path = path
        self.header = header
        self.end = end
        self.sealed_ns = sealed_ns
        self.index = index
        self.damage = damage
        self.has_more = has_more
        self.gtids = gtids

    @property
    def is_sealed(self) -> bool:
        """Whether nothing more is written to it."""
        return self.sealed_ns > 0

    def open_file(self) -> OpenFile:
        """Return its file; raise OSError."""
        return OpenFile(os.open(self.path, os.O_RDONLY | os.O_CLOEXEC))

    def require(self, file: OpenFile, begin: int, end: int) -> None:
        """Raise SegmentAwayError if bytes of its file are not here: frames, or all behind them."""

    @property
    def size_bytes(self) -> int:
        """Size of the file; 0 if it is gone."""
        try:
            return self.path.stat().st_size
        except OSError:
            return 0


def read_segment(path: Path) -> Segment:
    """Read the header and the end of a file; raise RelayLogDamagedError or OSError.

    Without a footer all frames are read, to find the end of the whole windows.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        header = SegmentHeader.decode(str(path), os.pread(fd, HEADER_BYTES, 0))
        footer = read_footer(fd)
        if footer is not None:
            return _sealed(fd, path, header, footer)
        found = scan_frames(fd, path, header)
        has_more = bool(found.damage) and _has_frame_behind(fd, path, found.damaged_at)
        return Segment(
            path,
            header,
            found.end,
            index=found.frames,
            damage=found.damage,
            has_more=has_more,
        )
    finally:
        os.close(fd)


def read_sealed(path: Path) -> Segment | None:
    """Read a segment that is sealed; None for any other file."""
    with suppress(RelayLogDamagedError, FileNotFoundError), path.open("rb") as file:
        footer = read_footer(file.fileno())
        if footer is not None:
            data = os.pread(file.fileno(), HEADER_BYTES, 0)
            header = SegmentHeader.decode(str(path), data)
            return _sealed(file.fileno(), path, header, footer)
    return None


def _sealed(fd: int, path: Path, header: SegmentHeader, footer: Footer) -> Segment:
    end = SegmentEnd(
        footer.end,
        footer.index_at,
        footer.last_scn,
        footer.last_timestamp_ns,
        footer.newest_timestamp_ns,
    )
    damage, gtids = "", None
    try:
        listed = _read_gtid_list(fd, path, footer)
        gtids = None if listed is None else listed.ranges
    except RelayLogDamagedError as error:  # its windows may be sound
        damage = error.problem
    return Segment(path, header, end, sealed_ns=footer.sealed_ns, damage=damage, gtids=gtids)


def read_footer(fd: int) -> Footer | None:
    """Return the footer of a file; None if it has none that fits the file."""
    size = os.fstat(fd).st_size
    footer = Footer.decode(os.pread(fd, FOOTER_BYTES, max(0, size - FOOTER_BYTES)))
    if footer is None:
        return None
    index_bytes = footer.frames * ENTRY_BYTES + footer.gtids_bytes
    return footer if footer.index_at + index_bytes + FOOTER_BYTES == size else None


def read_index(fd: int, path: Path) -> FrameIndex:
    """Return the index of a sealed segment; raise RelayLogDamagedError."""
    footer = read_footer(fd)
    if footer is not None:
        entries = os.pread(fd, footer.frames * ENTRY_BYTES, footer.index_at)
        if crc32(entries) == footer.index_crc:
            return FrameIndex(entries)
    raise RelayLogDamagedError(str(path), "its index is damaged")


def read_frames_with(fd: int, path: Path, gtid: GtidKey) -> list[int]:
    """Return the frames of a sealed segment that may have a GTID, by the index in its file.

    Raises RelayLogDamagedError.
    """
    footer = read_footer(fd)
    listed = None if footer is None else _read_gtid_list(fd, path, footer)
    if footer is None or listed is None:
        raise RelayLogDamagedError(str(path), "it has no index of GTIDs any more")
    try:
        return listed.frames_with(gtid, lambda at, size: os.pread(fd, size, footer.gtids_at + at))
    except ValueError as error:
        raise _damaged_gtids(path) from error


def _read_gtid_list(fd: int, path: Path, footer: Footer) -> GtidList | None:
    """Return the list of a segment's GTIDs, if it has one; raise RelayLogDamagedError."""
    if not footer.gtids_bytes:
        return None
    end = footer.gtids_at + footer.gtids_bytes
    data = os.pread(fd, footer.gtid_list_bytes, end - footer.gtid_list_bytes)
    if len(data) != footer.gtid_list_bytes or crc32(data) != footer.gtid_list_crc:
        raise _damaged_gtids(path)
    try:
        listed = GtidList(data)
    except ValueError as error:
        raise _damaged_gtids(path) from error
    if listed.frames != footer.frames:
        raise _damaged_gtids(path)
    return listed


def _damaged_gtids(path: Path) -> RelayLogDamagedError:
    return RelayLogDamagedError(str(path), "its index of GTIDs is damaged")


class Scan(NamedTuple):
    """The frames of whole windows in a file, where they end, and what is behind that, if any.

    `damaged_at` is the offset of the first frame that is not sound, or of the end.
    """

    frames: FrameIndex
    end: SegmentEnd
    damage: str
    damaged_at: int


def scan_frames(fd: int, path: Path, header: SegmentHeader) -> Scan:
    """Read the frames of a file up to the first that is not sound."""
    start = SegmentEnd(
        header.position, HEADER_BYTES, header.prev_scn, 0, header.newest_timestamp_ns
    )
    index, end, whole, damage = FrameIndex(), start, 0, ""
    at = HEADER_BYTES
    decompressor = ZstdDecompressor()
    try:
        for offset, frame in frames_of(fd, path, header):
            _, data = read_frame(fd, path, offset, decompressor)
            index.add(IndexEntry.of(frame, offset), gtids_of(data))
            at = end_of(frame, offset).offset
            if not frame.goes_on:
                end, whole = end_of(frame, offset), len(index)
    except RelayLogDamagedError as error:
        damage = error.problem
    index.cut(whole)
    return Scan(index, end, damage, at)


def _has_frame_behind(fd: int, path: Path, offset: int) -> bool:
    """Return whether a whole frame behind the damaged one at an offset proves that it was synced.

    Of what was not synced, a power cut may leave any part.
    """
    decompressor = ZstdDecompressor()
    with suppress(RelayLogDamagedError):
        read_frame(fd, path, offset, decompressor)
        return False  # it was just being written
    at, size = offset + 1, os.fstat(fd).st_size
    while at < size:
        found = os.pread(fd, _SEARCHED_BYTES, at).find(FRAME_MAGIC)
        if found < 0:
            at += _SEARCHED_BYTES - len(FRAME_MAGIC) + 1
            continue
        with suppress(RelayLogDamagedError):
            if read_frame(fd, path, at + found, decompressor)[0].synced > offset:
                return True
        at += found + 1
    return False


def end_of(frame: FrameHeader, offset: int) -> SegmentEnd:
    """Return the end that a frame makes, which ends with a whole window."""
    return SegmentEnd(
        frame.end,
        offset + FRAME_HEADER_BYTES + frame.stored_bytes,
        frame.last_scn,
        frame.last_timestamp_ns,
        frame.newest_timestamp_ns,
    )


def frames_of(fd: int, path: Path, header: SegmentHeader) -> Iterator[tuple[int, FrameHeader]]:
    """Yield the frames and their offsets, by their headers alone.

    Ends where the file does, or a sealed segment's frames; raises RelayLogDamagedError at bytes
    that are no frame, or another one than the next.
    """
    footer = read_footer(fd)
    size = os.fstat(fd).st_size if footer is None else footer.index_at
    offset, before = HEADER_BYTES, None
    while offset < size:
        frame = FrameHeader.decode(os.pread(fd, FRAME_HEADER_BYTES, offset))
        end = offset + FRAME_HEADER_BYTES + (0 if frame is None else frame.stored_bytes)
        if frame is None or end > size:
            raise RelayLogDamagedError(str(path), f"no whole frame begins at byte {offset}")
        if not _follows(frame, before, header):
            raise RelayLogDamagedError(str(path), f"the frame at byte {offset} is not the next one")
        yield offset, frame
        offset, before = end, frame


def _follows(frame: FrameHeader, before: FrameHeader | None, header: SegmentHeader) -> bool:
    if before is None:
        is_first = frame.first_scn == header.first_scn and frame.first_offset == 0
        return is_first and (frame.position, frame.prev_scn) == (header.position, header.prev_scn)
    if frame.position != before.end:
        return False
    if before.goes_on:
        return frame.first_scn == before.last_scn and frame.first_offset > 0
    return frame.prev_scn == before.last_scn < frame.first_scn and frame.first_offset == 0


def read_frame(
    fd: int, path: Path, offset: int, decompressor: ZstdDecompressor
) -> tuple[FrameHeader, bytes]:
    """Return the header and the events of the frame at an offset; raise RelayLogDamagedError."""
    header = FrameHeader.decode(os.pread(fd, FRAME_HEADER_BYTES, offset))
    if header is None:
        raise RelayLogDamagedError(str(path), f"no frame begins at byte {offset}")
    stored = os.pread(fd, header.stored_bytes, offset + FRAME_HEADER_BYTES)
    if len(stored) != header.stored_bytes or crc32(stored) != header.data_crc:
        raise RelayLogDamagedError(str(path), f"the frame at byte {offset} is damaged")
    if not header.flags & COMPRESSED:
        return header, stored
    try:
        plain = decompressor.decompress(stored, max_output_size=header.plain_bytes)
    except ZstdError as error:
        text = f"the frame at byte {offset} cannot be decompressed: {error}"
        raise RelayLogDamagedError(str(path), text) from error
    if len(plain) != header.plain_bytes:
        raise RelayLogDamagedError(str(path), f"the frame at byte {offset} has another size")
    return header, plain


def segment_paths(folder: Path) -> list[Path]:
    """Return the segments' files in a folder, in the order of their SCNs; raise RelayLogError."""
    try:
        return sorted(path for path in folder.iterdir() if path.name.endswith(".segment"))
    except OSError as error:
        raise RelayLogError(f"relay log {folder}: {error}") from error
