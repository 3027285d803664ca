"""Archived segments that are read now: what was needed of them, in a folder of bounded size.

Of a segment its end is fetched first, with footer and indexes, and then the frames that are asked
for. For a reader that goes on, as much is read ahead as it has read so far. What was fetched is
checked by the CRCs of frames and footer before anybody reads it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from zlib import crc32

from databus.daemon.files import OpenFile, make_folder
from databus.relay.log.archive.away import SegmentAwayError
from databus.relay.log.archive.manifest import ArchiveDamagedError, ArchiveError, Manifest
from databus.relay.log.archive.partial_file import PartialFile
from databus.relay.log.layout import (
    ENTRY_BYTES,
    FOOTER_BYTES,
    FRAME_HEADER_BYTES,
    Footer,
    FrameHeader,
)
from databus.relay.log.segment import Segment
from databus.schemas.errors import DamagedWindowsError

MOST_AHEAD_BYTES = 16 << 20
_FETCHERS = 2


class SegmentCache:
    """The files; thread-safe. With `waits` a reader waits for bytes on its own thread."""

    def __init__(
        self,
        folder: Path,
        most_bytes: int,
        read: Callable[[str, int, int], bytes],
        *,
        waits: bool,
    ) -> None:
        """`read` returns the bytes of an object from an offset to another; raises ArchiveError.

        More than `most_bytes` are held only of one file, or while it is read.
        """
        self._folder, self._most_bytes, self._read = folder, most_bytes, read
        self._pool = None if waits else ThreadPoolExecutor(_FETCHERS, "archive-fetch")
        self._lock = threading.Lock()
        self._files: dict[str, PartialFile] = {}  # the one that was opened last at the end
        self._fetches: dict[tuple[str, int], Future[None]] = {}
        self.fetched_bytes = 0
        self._clear()

    def close(self) -> None:
        """End the threads, and delete the files."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._files.clear()
        self._clear()

    def path_of(self, manifest: Manifest) -> Path:
        """Return where the file is or will be."""
        return self._folder / f"{manifest.stem}.segment"

    def open_file(self, manifest: Manifest) -> PartialFile:
        """Return the file of a segment, of which nothing may be here; raise ArchiveError."""
        path = self.path_of(manifest)
        with self._lock:
            file = self._files.pop(manifest.stem, None)
            try:
                if file is None:
                    make_folder(self._folder)
                    file = PartialFile.make(path, manifest.size_bytes)
            except OSError as error:
                raise ArchiveError(f"archive: {path} cannot be written: {error}") from error
            self._files[manifest.stem] = file
        return file

    def require(self, manifest: Manifest, file: PartialFile, begin: int, end: int) -> None:
        """Return if bytes of a file are here: whole frames, or all that follows the last one.

        Otherwise raise SegmentAwayError, or fetch them; raises ArchiveError.
        """
        while (gap := file.gap(begin, end)) is not None:
            at, until = gap
            if at < manifest.end.offset:
                needed = min(end, until)
                ahead = at + min(MOST_AHEAD_BYTES, file.before(at))
                until = min(until, manifest.end.offset, max(needed, ahead))
            else:
                needed = until
            take = partial(self._take, manifest, file, (at, needed, until))
            if self._pool is not None:
                begin_fetch = partial(self._begin, self._pool, (manifest.stem, at), take)
                raise SegmentAwayError(manifest.stem, begin_fetch)
            take()

    def _begin(
        self, pool: ThreadPoolExecutor, key: tuple[str, int], take: Callable[[], None]
    ) -> Future[None]:
        """Return the fetch of bytes of a segment, which may be over."""
        with self._lock:
            fetch = self._fetches.get(key)
            if fetch is None or fetch.done():
                fetch = self._fetches[key] = pool.submit(self._take_and_forget, key, take)
            return fetch

    def _take_and_forget(self, key: tuple[str, int], take: Callable[[], None]) -> None:
        try:
            take()
        finally:
            with self._lock:
                self._fetches.pop(key, None)

    def _take(self, manifest: Manifest, file: PartialFile, range_: tuple[int, int, int]) -> None:
        """Fetch bytes from an offset on: those up to the second one at least, else the third."""
        begin, needed, until = range_
        data = self._read(manifest.segment_path, begin, until)
        is_end = begin >= manifest.end.offset
        sound = _sound_end(data, manifest) if is_end else sound_frames(data)
        with self._lock:
            self.fetched_bytes += len(data)
        if begin + sound < needed:
            raise ArchiveDamagedError(
                f"archive: {manifest.segment_path} is damaged at byte {begin + sound}: what is "
                "there is not what was archived"
            )
        self._make_room(sound, file)
        try:
            file.write(begin, data[:sound])
        except OSError as error:
            path = self.path_of(manifest)
            raise ArchiveError(f"archive: {path} cannot be written: {error}") from error

    def _make_room(self, size_bytes: int, wanted: PartialFile) -> None:
        """Delete the files that were opened longest ago."""
        with self._lock:
            held = sum(file.held_bytes for file in self._files.values())
            for stem, file in list(self._files.items()):
                if held + size_bytes <= self._most_bytes:
                    break
                if file is not wanted:
                    held -= file.held_bytes
                    del self._files[stem]
                    (self._folder / f"{stem}.segment").unlink(missing_ok=True)

    def _clear(self) -> None:
        """Delete all files: of those that a kill has left nobody knows what is here."""
        for path in self._folder.glob("*.segment*"):
            path.unlink()


class ArchivedSegment(Segment):
    """A sealed segment in an archive; what is read of it is in the cache meanwhile."""

    def __init__(self, manifest: Manifest, cache: SegmentCache) -> None:
        path, header, end = cache.path_of(manifest), manifest.header, manifest.end
        super().__init__(path, header, end, sealed_ns=manifest.sealed_ns, gtids=manifest.gtids)
        self.manifest = manifest
        self._cache = cache

    def open_file(self) -> PartialFile:
        """Return its file; raise ArchiveError."""
        return self._cache.open_file(self.manifest)

    def require(self, file: OpenFile, begin: int, end: int) -> None:
        """Raise SegmentAwayError if bytes of its file are not here; ArchiveError."""
        assert isinstance(file, PartialFile)
        self._cache.require(self.manifest, file, begin, end)

    @property
    def size_bytes(self) -> int:
        """Size of the object."""
        return self.manifest.size_bytes


class ArchivedCopy(ArchivedSegment):
    """An archived segment that is read because the same one on disk is damaged."""

    def __init__(
        self, manifest: Manifest, cache: SegmentCache, damage: Callable[[], DamagedWindowsError]
    ) -> None:
        """`damage` makes the error that is raised where this copy is damaged, too."""
        super().__init__(manifest, cache)
        self._damage = damage

    def require(self, file: OpenFile, begin: int, end: int) -> None:
        """Raise SegmentAwayError if bytes of its file are not here; ArchiveError."""
        try:
            super().require(file, begin, end)
        except SegmentAwayError as away:
            raise away.instead_of(self._damage) from None


def sound_frames(data: bytes) -> int:
    """Return where the last of the whole frames ends that bytes begin with."""
    at = 0
    while (frame := FrameHeader.decode(data, at)) is not None:
        begin = at + FRAME_HEADER_BYTES
        stored = data[begin : begin + frame.stored_bytes]
        if len(stored) < frame.stored_bytes or crc32(stored) != frame.data_crc:
            break
        at = begin + frame.stored_bytes
    return at


def _sound_end(data: bytes, manifest: Manifest) -> int:
    """Return how much of the end of a segment is sound: all of it, or nothing."""
    footer, end = Footer.decode(data[-FOOTER_BYTES:]), manifest.end
    if footer is None or (footer.index_at, footer.end, footer.last_scn) != (
        end.offset,
        end.position,
        end.scn,
    ):
        return 0
    entries = data[: footer.frames * ENTRY_BYTES]
    size_bytes = len(entries) + footer.gtids_bytes + FOOTER_BYTES
    return len(data) if crc32(entries) == footer.index_crc and size_bytes == len(data) else 0
