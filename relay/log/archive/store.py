"""The objects of an archive, in any file system that pyarrow knows. Blocking; thread-safe.

Where the file system renames, an object is written under another name first. An object store shows
an object once it is closed, perhaps cut off by an error: so a segment counts only with its
manifest, which is written last and has its length and digest.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from databus.daemon.files import make_folder, narrow, sync_folder
from databus.relay.log.archive.manifest import ArchiveError, Manifest, is_manifest
from databus.schemas.errors import SettingsError

SCHEMES = ("file", "s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")
_RENAMES = frozenset({"local", "hdfs"})
_CHUNK_BYTES = 1 << 20
_READERS = 8  # of manifests at a time
_PROBE = ".databus-probe"


class ArchiveStore:
    """The objects below one base; paths are relative to it, with slashes."""

    def __init__(self, uri: str) -> None:
        """Connect to nothing yet; raise SettingsError for a URI of no known kind."""
        if urlsplit(uri).scheme not in SCHEMES:
            raise SettingsError(
                f"archive {shown(uri)}: it must begin with one of "
                f"{', '.join(f'{scheme}://' for scheme in SCHEMES)}"
            )
        try:
            import pyarrow as pa
            from pyarrow import fs
        except ImportError as error:
            raise SettingsError(
                f"archive {shown(uri)}: it needs pyarrow: pip install pyarrow"
            ) from error
        self._uri = uri
        self._errors = (OSError, pa.ArrowException)
        self._from_uri = fs.FileSystem.from_uri
        self._selector, self._is_file = fs.FileSelector, fs.FileType.File
        self._opened: tuple[Any, str] | None = None

    def __str__(self) -> str:
        return shown(self._uri)

    def close(self) -> None:
        """Close the connections; the next use opens them again."""
        self._opened = None

    def names(self, folder: str) -> dict[str, int]:
        """Return the files of a folder and their sizes; none if there is no such folder."""
        with self._trying(folder) as (files, base):
            wanted = self._selector(f"{base}/{folder}", allow_not_found=True)
            return {
                one.base_name: one.size
                for one in files.get_file_info(wanted)
                if one.type == self._is_file
            }

    def folders(self, folder: str = "") -> list[str]:
        """Return the names of the folders in a folder."""
        with self._trying(folder or "its base") as (files, base):
            at = f"{base}/{folder}" if folder else base
            wanted = self._selector(at, allow_not_found=True)
            found = [one for one in files.get_file_info(wanted) if one.type != self._is_file]
            return sorted(one.base_name for one in found)

    def read(self, path: str) -> bytes:
        """Return the bytes of an object."""
        with self._trying(path) as (files, base), files.open_input_stream(f"{base}/{path}") as file:
            data: bytes = file.read()
            return data

    def read_range(self, path: str, begin: int, end: int) -> bytes:
        """Return the bytes of an object from an offset to another; all of them, or ArchiveError."""
        with self._trying(path) as (files, base), files.open_input_file(f"{base}/{path}") as file:
            size_bytes = file.size()
            data: bytes = file.read_at(end - begin, begin) if size_bytes >= end else b""
        if len(data) != end - begin:
            raise ArchiveError(f"archive {self}: {path} is damaged: it has only {size_bytes} bytes")
        return data

    def write(self, path: str, chunks: Iterable[bytes]) -> None:
        """Write an object; once it returns, the object is there for good.

        Raises ArchiveError also if it has not as many bytes then as were written.
        """
        with self._trying(path) as (files, base):
            at = f"{base}/{path}"
            if files.type_name not in _RENAMES:
                self._check_size(files, at, _write(files, at, chunks))
                return
            if files.type_name == "local":
                make_folder(Path(at).parent)
            else:
                files.create_dir(at.rpartition("/")[0], recursive=True)
            part = f"{at}.part"
            self._check_size(files, part, _write(files, part, chunks))
            if files.type_name == "local":
                _make_durable(Path(part))
            files.move(part, at)
            if files.type_name == "local":
                sync_folder(Path(at).parent)

    def _check_size(self, files: Any, path: str, size_bytes: int) -> None:
        found = files.get_file_info(path).size
        if found != size_bytes:
            raise ArchiveError(
                f"archive {self}: {path} has {found} bytes instead of the {size_bytes} written"
            )

    def delete(self, path: str) -> None:
        """Delete an object, if it is there."""
        with self._trying(path) as (files, base):
            if files.get_file_info(f"{base}/{path}").type == self._is_file:
                files.delete_file(f"{base}/{path}")

    def fetch(self, manifest: Manifest, to: Path) -> None:
        """Copy a segment into a file; raise ArchiveError also if it is not what was archived."""
        digest, size = sha256(), 0
        with (
            self._trying(manifest.segment_path) as (files, base),
            files.open_input_stream(f"{base}/{manifest.segment_path}") as source,
            to.open("wb") as target,
        ):
            narrow(to)
            while chunk := source.read(_CHUNK_BYTES):
                digest.update(chunk)
                target.write(chunk)
                size += len(chunk)
        if (size, digest.hexdigest()) != (manifest.size_bytes, manifest.sha256):
            to.unlink()
            raise ArchiveError(
                f"archive {self}: {manifest.segment_path} is damaged: it has {size} bytes that are "
                f"not the {manifest.size_bytes} that were archived"
            )

    def manifests(self, folder: str, known: Mapping[str, Manifest]) -> dict[str, Manifest]:
        """Return the manifests of a log's folder by name; those that are known are not read."""
        names = [name for name in self.names(folder) if is_manifest(name)]
        found = {name: known[name] for name in names if name in known}
        new = [name for name in names if name not in found]
        with ThreadPoolExecutor(_READERS) as pool:
            paths = [f"{folder}/{name}" for name in new]
            for name, path, text in zip(new, paths, pool.map(self.read, paths), strict=True):
                found[name] = Manifest.from_json(path, text)
        return found

    def check(self) -> None:
        """Write an object, read it and delete it; raise ArchiveError."""
        probe = f"{_PROBE}-{os.getpid()}"
        self.write(probe, [b"databus"])
        if self.read(probe) != b"databus":
            raise ArchiveError(f"archive {self}: an object was not read as it was written")
        self.delete(probe)

    @contextmanager
    def _trying(self, path: str) -> Iterator[tuple[Any, str]]:
        """Yield the file system and the base; turn its errors into ArchiveError."""
        try:
            if self._opened is None:
                files, base = self._from_uri(self._uri)
                self._opened = files, base.rstrip("/")
            yield self._opened
        except self._errors as error:
            raise ArchiveError(f"archive {self}: {path}: {error}") from error


def shown(uri: str) -> str:
    """Return a URI without credentials and options, for texts."""
    parts = urlsplit(uri)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _write(files: Any, path: str, chunks: Iterable[bytes]) -> int:
    """Write an object; return how many bytes it should have."""
    size_bytes = 0
    with files.open_output_stream(path) as file:
        for chunk in chunks:
            file.write(chunk)
            size_bytes += len(chunk)
    return size_bytes


def _make_durable(path: Path) -> None:
    narrow(path)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
