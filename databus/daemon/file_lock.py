"""A file that one process at a time holds: two never write the same folder, store or checkpoint.

The kernel lets go of the lock when the process dies, however it dies. The file
itself stays: removing it would let two processes lock two files of one name.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from databus.daemon.private_files import PRIVATE, make_folder, narrow
from databus.schemas.errors import SettingsError


class FileHeldError(Exception):
    """Somebody has the lock; `content` is what he wrote into the file. Becomes another error."""

    def __init__(self, content: str) -> None:
        super().__init__(content)
        self.content = content


def open_locked(path: Path) -> int:
    """Return a descriptor of the file, locked, its folder made if need be; closing it lets go.

    Raises FileHeldError when it is locked already, by this process too; OSError
    when the folder or the file cannot be used.
    """
    make_folder(path.parent)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
    narrow(path)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        content = os.pread(fd, 64, 0).decode("ascii", "replace")
        os.close(fd)
        raise FileHeldError(content) from None
    except OSError:
        os.close(fd)
        raise
    return fd


def take_lock(path: Path, in_use: str) -> Callable[[], None]:
    """Lock a file of a daemon's `data_dir`; returns how to let go.

    Raises SettingsError with the text `in_use` when somebody has it, or saying
    why the folder cannot be used.
    """
    try:
        fd = open_locked(path)
    except FileHeldError:
        raise SettingsError(in_use) from None
    except OSError as error:
        raise SettingsError(f"data_dir {path.parent} cannot be used: {error}") from error
    return lambda: os.close(fd)


def holder_of(path: Path) -> str:
    """Return what the holder of a lock has written into its file; empty when nobody has it.

    A holder that has written nothing is `unknown`. Nothing is made, and
    somebody who takes the lock in this very moment is refused.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        # Shared, and let go of at once: nobody else who only looks is in the way.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(fd, 64, 0).decode("ascii", "replace") or "unknown"
    except OSError:
        return ""
    else:
        return ""
    finally:
        os.close(fd)
