"""A disk that a test can spoil: a file system of its own where that may be mounted.

Full, or read-only. Elsewhere, without root, and where rights are taken, which root does not
need, a write to the folder fails where it is synced, as one on a full disk may.
"""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

SIZE = "256k"
_FILLER = "filler"


class Disk:
    """A folder that cannot be written to between `spoil` and `mend`, and what is said then."""

    def __init__(
        self, folder: Path, spoil: Callable[[], None], mend: Callable[[], None], says: str
    ) -> None:
        self.folder = folder
        self.spoil = spoil
        self.mend = mend
        self.says = says


@contextlib.contextmanager
def small_disk(
    folder: Path, patch: pytest.MonkeyPatch, error: int = errno.ENOSPC
) -> Iterator[Disk]:
    """Give a disk at a folder, which is made; `error` is what writing meets: ENOSPC, EROFS, …"""
    folder.mkdir()
    makers = {errno.ENOSPC: _filled, errno.EROFS: _protected}
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "databus-test", str(folder)]
    if error not in makers or not _runs(mount):
        yield _closed(folder) if error == errno.EROFS else _pretended(folder, patch, error)
        return
    try:
        yield makers[error](folder)
    finally:
        while folder.is_mount():  # twice where it is read-only
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _runs(command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        return False


def _filled(folder: Path) -> Disk:
    def fill() -> None:
        with contextlib.suppress(OSError), (folder / _FILLER).open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)

    return Disk(folder, fill, (folder / _FILLER).unlink, os.strerror(errno.ENOSPC))


def _protected(folder: Path) -> Disk:
    """Give a disk that a second mount makes read-only: files that are open stay writable."""

    def protect() -> None:
        subprocess.run(["mount", "--bind", str(folder), str(folder)], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], check=True)

    def lay_open() -> None:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)

    return Disk(folder, protect, lay_open, os.strerror(errno.EROFS))


def _closed(folder: Path) -> Disk:
    """Give a folder that who is not root may not write to."""
    closed, opened = (lambda: folder.chmod(0o500)), (lambda: folder.chmod(0o700))
    return Disk(folder, closed, opened, os.strerror(errno.EACCES))


def _pretended(folder: Path, patch: pytest.MonkeyPatch, error: int) -> Disk:
    sync = os.fsync
    is_spoilt = False

    def fsync(descriptor: int) -> None:
        if is_spoilt and Path(f"/proc/self/fd/{descriptor}").readlink().is_relative_to(folder):
            raise OSError(error, os.strerror(error))
        sync(descriptor)

    def spoil() -> None:
        nonlocal is_spoilt
        is_spoilt = True

    def mend() -> None:
        nonlocal is_spoilt
        is_spoilt = False

    patch.setattr(os, "fsync", fsync)
    return Disk(folder, spoil, mend, os.strerror(error))
