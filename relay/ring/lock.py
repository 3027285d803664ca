"""Open a ring file for its one writer.

The writer holds an exclusive flock on the file while it is open; the kernel releases it when
the process ends, however it ends. A new file is made under another name and renamed once it
is complete, so a file with the ring's own name always has a complete header.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from databus.daemon.files import PRIVATE, narrow, sync_folder
from databus.relay.ring.layout import WRITER_PID
from databus.schemas.errors import RingError


def open_locked(path: Path) -> int | None:
    """Return a descriptor of the locked file at `path`; None if there is no file.

    Raises RingError if another writer has it; the message names the process.
    """
    while True:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise RingError(f"ring {path}: {error}") from error
        if _lock(path, fd):
            narrow(path)
            return fd


def make_locked(path: Path) -> int:
    """Return a descriptor of a new, empty, locked file beside `path`; see `take_name`."""
    beside = _beside(path)
    while True:
        try:
            fd = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
        except OSError as error:
            raise RingError(f"ring {path}: {error}") from error
        if _lock(beside, fd):
            os.ftruncate(fd, 0)  # a killed attempt may have left bytes
            return fd


def take_name(path: Path, fd: int) -> None:
    """Give the file made by `make_locked` the ring's name, durably."""
    os.fsync(fd)
    _beside(path).replace(path)
    sync_folder(path.parent)


def discard(path: Path) -> None:
    """Remove the file made by `make_locked`, after an attempt that failed."""
    _beside(path).unlink(missing_ok=True)


def _beside(path: Path) -> Path:
    return path.with_name(path.name + ".new")


def _lock(path: Path, fd: int) -> bool:
    """Lock an open file; close it and return False if another file has replaced it meanwhile."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = int.from_bytes(os.pread(fd, 8, WRITER_PID * 8), "little")
        os.close(fd)
        raise RingError(
            f"ring {path}: process {pid} is writing it; a ring has one writer, "
            "so stop that relay first or give this one another data_dir"
        ) from None
    try:
        if os.path.samestat(os.fstat(fd), path.stat()):
            return True
    except FileNotFoundError:
        pass
    os.close(fd)
    return False
