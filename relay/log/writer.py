"""Write a relay log: frames, segments, and the log's begin after a stop. No threads.

The order of writing is what a kill or a power cut relies on:
1. A segment has its name once its header is synced. Frames are written, then synced. Only what is
   synced is published: readers, and the ring that waits before it evicts, know no other end.
2. Index and footer of a segment are written after all its frames are synced.
3. After an error the file is cut where it was synced last, and the same windows are written
   again: what the system still had of a failed sync cannot be known.

Opening cuts the newest segment at the end of its last whole window. A log of another ring, or one
that the ring no longer continues, is moved aside as a whole (`begin_anew`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from zlib import crc32

from zstandard import ZstdCompressor

from databus.daemon.files import (
    PRIVATE,
    FileHeldError,
    make_folder,
    narrow,
    open_locked,
    sync_folder,
)
from databus.relay.log.directory import ASIDE, Found, find_segments, is_empty
from databus.relay.log.gtids.frame_gtids import gtids_of
from databus.relay.log.layout import (
    COMPRESSED,
    FRAME_HEADER_BYTES,
    GOES_ON,
    HEADER_BYTES,
    UNKNOWN_SCN,
    Footer,
    FrameHeader,
    IndexEntry,
    SegmentHeader,
)
from databus.relay.log.segment import FrameIndex, Segment, SegmentEnd, segment_paths
from databus.relay.log.windows import Windows
from databus.schemas.errors import RelayLogError
from databus.schemas.log_mark import LogMark

_LEVEL = 1  # of zstd: the fastest; higher ones save little on events
LOCK_FILE = "relay-log.lock"
UNNAMED = ".new"  # after the name of a segment whose header is not on disk yet


class LogWriter:
    """Writes one relay log. One thread at a time may call it; any may read `segments`."""

    def __init__(
        self,
        folder: Path,
        source: str,
        *,
        segment_bytes: int,
        segment_s: float,
        is_compressed: bool,
        wall_ns: Callable[[], int],
    ) -> None:
        """Open the log in a folder, or make an empty one; raise RelayLogError.

        It is an error if the folder has the log of another physical source, or if another
        process writes to it.
        """
        self.folder, self._source = folder, source
        self._segment_bytes, self._segment_ns = segment_bytes, int(segment_s * 1e9)
        self._compressor = (
            ZstdCompressor(level=_LEVEL, write_checksum=True) if is_compressed else None
        )
        self._wall_ns = wall_ns
        self.segments: tuple[Segment, ...] = ()
        self.lost = ""  # what was found not to be part of it, in words
        self.openings = 0  # counts logs begun anew: positions of an earlier one are not valid
        self._fd = self._lock = -1
        # The segment being written: its frames, and where the next one goes in log and file.
        self._index = FrameIndex()
        self._at = self._offset = 0
        self._is_new = False  # not in a synced folder yet
        self._syncer = ThreadPoolExecutor(1, "log-sync")
        self._syncing: tuple[SegmentEnd, Future[None]] | None = None  # up to where
        self._written = self._begin = _start(UNKNOWN_SCN)
        try:
            make_folder(folder)
            self._lock = open_locked(folder / LOCK_FILE)
        except FileHeldError:
            raise RelayLogError(f"relay log {folder}: another relay is writing it") from None
        except OSError as error:
            raise RelayLogError(f"relay log {folder}: {error}") from error
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the files, without a sync; may be called twice."""
        self._await_sync()
        self._syncer.shutdown(wait=False)
        self._close_segment()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @property
    def is_in_place(self) -> bool:
        """Whether the folder is still the one that was opened: not deleted, nor another one."""
        try:
            found = (self.folder / LOCK_FILE).stat()
        except FileNotFoundError:
            return False
        return os.path.samestat(found, os.fstat(self._lock))

    @property
    def ring_id(self) -> int | None:
        """Id of the ring that the log follows; None for an empty log."""
        return self.segments[-1].header.ring_id if self.segments else None

    @property
    def written(self) -> SegmentEnd:
        """The end of the whole windows that were written, synced or not."""
        return self._written

    @property
    def durable(self) -> SegmentEnd:
        """The end of the windows that are on disk."""
        return self.segments[-1].end if self.segments else self._begin

    def append(self, windows: Windows, ring_id: int, mark: LogMark | None) -> None:
        """Write a frame; it counts once `sync` returns. Raises OSError.

        `ring_id` and `mark` are for the header of a segment that begins with it.
        """
        if self._fd >= 0 and windows.first_offset == 0 and self._is_full():
            self.seal()
        if self._fd < 0:
            self._begin_segment(windows, ring_id, mark)
        data, flags = windows.data, GOES_ON if windows.goes_on else 0
        if self._compressor is not None:
            data = self._compressor.compress(data)
            flags |= COMPRESSED
        frame = FrameHeader(
            flags,
            len(data),
            len(windows.data),
            windows.first_offset,
            crc32(data),
            windows.first_scn,
            windows.last_scn,
            self._written.scn,
            windows.first_timestamp_ns,
            windows.last_timestamp_ns,
            max(windows.newest_timestamp_ns, self._written.newest_timestamp_ns),
            self._at,
            self.durable.offset,
        )
        _write_all(self._fd, frame.encode(), self._offset)
        _write_all(self._fd, data, self._offset + FRAME_HEADER_BYTES)
        self._index.add(IndexEntry.of(frame, self._offset), gtids_of(windows.data))
        self._offset += FRAME_HEADER_BYTES + len(data)
        self._at = frame.end
        if not windows.goes_on:
            self._written = SegmentEnd(
                self._at,
                self._offset,
                windows.last_scn,
                windows.last_timestamp_ns,
                frame.newest_timestamp_ns,
            )

    def begin_sync(self) -> None:
        """Begin to make durable what was written so far. Raises OSError.

        What the call before has begun is waited for, and published.
        """
        self._end_sync()
        if self._fd >= 0 and self._written != self.durable:
            self._syncing = self._written, self._syncer.submit(os.fdatasync, self._fd)

    def sync(self) -> None:
        """Make the windows written so far durable, and publish them. Raises OSError."""
        self.begin_sync()
        self._end_sync()

    def _end_sync(self) -> None:
        """Wait for the sync that was begun, and publish what it made durable. Raises OSError."""
        syncing, self._syncing = self._syncing, None
        if syncing is None:
            return
        end, done = syncing
        done.result()
        if self._is_new:
            sync_folder(self.folder)
            self._is_new = False
        self.segments[-1].end = end

    def seal(self) -> None:
        """Sync, and end the segment being written with its index. Raises OSError."""
        self.sync()
        segment, index, gtids = self.segments[-1], self._index.encode(), self._index.gtids.encode()
        end, sealed_ns = segment.end, self._wall_ns()
        footer = Footer(
            end.offset,
            len(self._index),
            end.position,
            end.scn,
            end.timestamp_ns,
            end.newest_timestamp_ns,
            sealed_ns,
            end.offset + len(index),
            len(gtids.data),
            crc32(index),
            gtids.list_bytes,
            gtids.list_crc,
        )
        _write_all(self._fd, index + gtids.data + footer.encode(), end.offset)
        os.fdatasync(self._fd)
        self._close_segment()
        segment.gtids = self._index.gtids.ranges
        segment.sealed_ns = sealed_ns
        segment.index = None  # it is in the file now

    def roll_back(self) -> None:
        """Forget what was written since the last sync, after an error. Raises OSError."""
        self._await_sync()
        if self._fd >= 0 and is_empty(self.segments[-1]):
            self._close_segment()
            self._begin = self.durable
            segment, self.segments = self.segments[-1], self.segments[:-1]
            segment.path.unlink(missing_ok=True)
        elif self._fd >= 0:
            end = self.durable
            os.ftruncate(self._fd, end.offset)
            self._offset = end.offset
            count = self._index.last(lambda entry: entry.position, end.position - 1) + 1
            self._index.cut(count)
        self._written = self.durable
        self._at = self._written.position

    def begin_anew(self, prev_scn: int) -> None:
        """Move the log aside; the next window is the first after `prev_scn`. Raises OSError."""
        self._await_sync()
        self._close_segment()
        self._set_aside(segment_paths(self.folder))
        self.openings += 1
        self.segments = ()
        self._written = self._begin = _start(prev_scn)
        self._at = 0

    def drop(self, count: int) -> None:
        """Take the oldest segments out of the log; their files are the caller's."""
        self.segments = self.segments[count:]

    def _open(self) -> None:
        for path in self.folder.glob(f"*.segment{UNNAMED}"):
            path.unlink()
        for path in self.folder.rglob("*.segment"):
            narrow(path)
        found = find_segments(self.folder)
        for segment in (*found.before, *found.log):
            if segment.header.source != self._source:
                raise RelayLogError(
                    f"relay log {self.folder}: it is of physical source "
                    f"{segment.header.source!r}, not {self._source!r}; give each its own dir"
                )
        self.lost = _lost(self.folder, found)
        if found.log and found.log[-1].has_more:
            self._copy_aside(found.log[-1].path)  # before what is behind the damage is cut off
        self._set_aside([segment.path for segment in (*found.before, *found.copies)])
        self._set_aside([Path(error.path) for error in found.unreadable])
        self.unreadable = found.unreadable
        self.segments = found.log
        if not found.log:
            return
        last = found.log[-1]
        self._written, self._at = last.end, last.end.position
        if not last.is_sealed:
            self._go_on(last)

    def _go_on(self, segment: Segment) -> None:
        """Write on to a segment, behind its last whole window."""
        assert segment.index is not None
        self._fd = os.open(segment.path, os.O_RDWR | os.O_CLOEXEC)
        self._is_new = False
        self._index, self._offset = segment.index, segment.end.offset
        self.roll_back()
        if self._fd >= 0:
            os.fdatasync(self._fd)

    def _folder_aside(self) -> Path:
        """Make a new folder in the folder `aside`. Raises OSError."""
        made_at = datetime.fromtimestamp(self._wall_ns() / 1e9, UTC)
        aside = self.folder / ASIDE / f"{made_at:%Y-%m-%dT%H%M%S.%fZ}"
        make_folder(aside)
        return aside

    def _set_aside(self, paths: Sequence[Path]) -> None:
        """Move files into a new folder of the folder `aside`. Raises OSError."""
        if not paths:
            return
        aside = self._folder_aside()
        for path in paths:
            path.rename(aside / path.name)
        sync_folder(aside)
        sync_folder(self.folder)

    def _copy_aside(self, path: Path) -> None:
        """Keep a copy of a segment in a new folder of the folder `aside`. Raises OSError."""
        aside = self._folder_aside()
        copy = aside / path.name
        shutil.copyfile(path, copy)
        narrow(copy)
        with copy.open("rb") as copied:
            os.fsync(copied.fileno())
        sync_folder(aside)

    def _is_full(self) -> bool:
        header = self.segments[-1].header
        age_ns = self._wall_ns() - header.created_ns
        return self._offset >= self._segment_bytes or age_ns >= self._segment_ns

    def _begin_segment(self, windows: Windows, ring_id: int, mark: LogMark | None) -> None:
        end = self._written
        header = SegmentHeader(
            self._source,
            ring_id,
            end.position,
            end.scn,
            windows.first_scn,
            windows.first_timestamp_ns,
            end.newest_timestamp_ns,
            self._wall_ns(),
            mark,
        )
        path = self.folder / header.name
        beside = path.with_name(path.name + UNNAMED)
        fd = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE)
        try:
            _write_all(fd, header.encode(), 0)
            os.fdatasync(fd)
            beside.rename(path)
        except BaseException:
            os.close(fd)
            with suppress(OSError):
                beside.unlink()
            raise
        self._fd, self._is_new = fd, True
        self._index, self._offset = FrameIndex(), HEADER_BYTES
        start = end._replace(offset=HEADER_BYTES)
        self._written = start
        self.segments = (*self.segments, Segment(path, header, start, index=self._index))

    def _await_sync(self) -> None:
        """Wait until a sync that was begun no longer uses the file; what it did does not count."""
        syncing, self._syncing = self._syncing, None
        if syncing is not None:
            wait([syncing[1]])

    def _close_segment(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _lost(folder: Path, found: Found) -> str:
    """Return what is no longer part of a log, in words; "" if that is nothing."""
    before = sum(not is_empty(segment) for segment in found.before)
    newest = found.log[-1] if found.log else None
    if newest is not None and newest.has_more:
        return (
            f"the log {folder} has lost what is behind scn {newest.end.scn} in {newest.path.name}: "
            f"{newest.damage}; a copy of the file is kept in {ASIDE}"
        )
    if not before and not found.unreadable:
        return ""
    where = f"before scn {found.log[0].header.first_scn}" if found.log else "in it"
    return (
        f"the log {folder} has lost what was {where}: {before} segments lie before a hole and "
        f"{len(found.unreadable)} cannot be read; they are kept in {ASIDE}"
    )


def _start(prev_scn: int) -> SegmentEnd:
    """Return the end of a log without windows, which begins after an SCN."""
    return SegmentEnd(0, 0, prev_scn, 0, 0)


def _write_all(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(fd, view, offset)
        view, offset = view[count:], offset + count
