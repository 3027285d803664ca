"""Archived segments that are read now: whole files in a folder of bounded size.

A file that is open stays readable after it was deleted. So a reader needs no lock.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

from databus.daemon.files import make_folder
from databus.relay.log.archive.away import SegmentAwayError
from databus.relay.log.archive.manifest import ArchiveError, Manifest
from databus.relay.log.segment import Segment

_FETCHERS = 2
_PART = ".part"


class SegmentCache:
    """The files; thread-safe. With `waits` a reader waits for a segment on its own thread."""

    def __init__(
        self,
        folder: Path,
        most_bytes: int,
        fetch: Callable[[Manifest, Path], None],
        *,
        waits: bool,
    ) -> None:
        """`fetch` copies a segment into a file; raises ArchiveError."""
        self._folder, self._most_bytes, self._fetch = folder, most_bytes, fetch
        self._pool = None if waits else ThreadPoolExecutor(_FETCHERS, "archive-fetch")
        self._lock = threading.Lock()
        self._fetches: dict[str, Future[None]] = {}
        self.fetched_bytes = 0
        self._clear()

    def close(self) -> None:
        """End the threads, and delete the files."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._clear()

    def path_of(self, manifest: Manifest) -> Path:
        """Return where the file is or will be."""
        return self._folder / f"{manifest.stem}.segment"

    def open_file(self, manifest: Manifest) -> int:
        """Return a new descriptor of a segment; raise SegmentAwayError or ArchiveError."""
        path = self.path_of(manifest)
        with suppress(FileNotFoundError):
            return _open(path)
        if self._pool is None:
            self._take(manifest)
            return _open(path)
        raise SegmentAwayError(manifest.stem, partial(self._begin, self._pool, manifest))

    def _begin(self, pool: ThreadPoolExecutor, manifest: Manifest) -> Future[None]:
        """Return the fetch of a segment, which may be over."""
        with self._lock:
            fetch = self._fetches.get(manifest.stem)
            if fetch is None or fetch.done():
                fetch = self._fetches[manifest.stem] = pool.submit(self._take, manifest)
            return fetch

    def _take(self, manifest: Manifest) -> None:
        path = self.path_of(manifest)
        if path.exists():
            return
        part = path.with_name(path.name + _PART)
        try:
            make_folder(self._folder)
            self._fetch(manifest, part)
            self._make_room(manifest.size_bytes)
            part.rename(path)
        except OSError as error:
            raise ArchiveError(f"archive: {path} cannot be written: {error}") from error
        finally:
            part.unlink(missing_ok=True)
            with self._lock:
                self._fetches.pop(manifest.stem, None)
        self.fetched_bytes += manifest.size_bytes

    def _make_room(self, size_bytes: int) -> None:
        """Delete the files that were opened longest ago."""
        with self._lock:
            files = [(path.stat(), path) for path in self._folder.glob("*.segment")]
            held = sum(found.st_size for found, _ in files)
            for found, path in sorted(files, key=lambda one: one[0].st_mtime_ns):
                if held + size_bytes <= self._most_bytes:
                    break
                path.unlink()
                held -= found.st_size

    def _clear(self) -> None:
        """Delete all files: a kill may have left some that are not on disk as a whole."""
        for pattern in ("*.segment", f"*{_PART}"):
            for path in self._folder.glob(pattern):
                path.unlink()


class ArchivedSegment(Segment):
    """A sealed segment in an archive; its file is in the cache while it is read."""

    def __init__(self, manifest: Manifest, cache: SegmentCache) -> None:
        path, header, end = cache.path_of(manifest), manifest.header, manifest.end
        super().__init__(path, header, end, sealed_ns=manifest.sealed_ns, gtids=manifest.gtids)
        self.manifest = manifest
        self._cache = cache

    def open_file(self) -> int:
        """Return a new descriptor of its file; raise SegmentAwayError or ArchiveError."""
        return self._cache.open_file(self.manifest)

    @property
    def size_bytes(self) -> int:
        """Size of the object."""
        return self.manifest.size_bytes


def _open(path: Path) -> int:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    os.utime(fd)  # when it was used last
    return fd
