"""A disk that a test can fill: a file system of its own where that may be mounted.

Elsewhere, without root, a write to the folder fails where it is synced, as one on a full
disk may.
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
    """A folder on a disk that is full between `fill` and `free`."""

    def __init__(self, folder: Path, fill: Callable[[], None], free: Callable[[], None]) -> None:
        self.folder = folder
        self.fill = fill
        self.free = free


@contextlib.contextmanager
def small_disk(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Disk]:
    """Give a disk at a folder, which is made."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "databus-test", str(folder)]
    try:
        is_mounted = subprocess.run(mount, capture_output=True).returncode == 0
    except OSError:
        is_mounted = False
    if not is_mounted:
        yield _pretended(folder, patch)
        return
    try:
        yield _mounted(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _mounted(folder: Path) -> Disk:
    def fill() -> None:
        with contextlib.suppress(OSError), (folder / _FILLER).open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)

    return Disk(folder, fill, (folder / _FILLER).unlink)


def _pretended(folder: Path, patch: pytest.MonkeyPatch) -> Disk:
    sync = os.fsync
    is_full = False

    def fsync(descriptor: int) -> None:
        if is_full and Path(f"/proc/self/fd/{descriptor}").readlink().is_relative_to(folder):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    def fill() -> None:
        nonlocal is_full
        is_full = True

    def free() -> None:
        nonlocal is_full
        is_full = False

    patch.setattr(os, "fsync", fsync)
    return Disk(folder, fill, free)
