"""Files of the daemons: private, replaced whole, held by one process at a time.

Files that hold rows, or where a consumer is in them, are their owner's alone
(0600): reading them would go around the tokens. The mode is set where a file is
made and does not depend on the umask. Files of an earlier version are narrowed
when they are opened; those of another user are left, and `databus doctor` says so.

A file that is replaced is after a crash the old one or the new one, whole.

The kernel releases a lock when the process dies, however it dies. The file itself
stays: removing it would let two processes lock two files of one name.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Callable
from pathlib import Path

from databus.schemas.errors import SettingsError

PRIVATE = 0o600
SHARED = 0o666  # what the umask leaves of it: tables that are made for others to read
_OF_OTHERS = 0o077
_OURS = re.compile(r"\.(ring|scn|db|history|json|lock)\b")


def make_folder(path: Path) -> None:
    """Make a folder for such files, and those above it, unless it is there; raises OSError."""
    for missing in [p for p in (*reversed(path.parents), path) if not p.exists()]:
        missing.mkdir(mode=0o700, exist_ok=True)
    path.mkdir(exist_ok=True)  # where it is no folder: say so


def make_private(path: Path) -> None:
    """Make an empty file that only its owner reads, or narrow the one that is there.

    Without a descriptor: closing one would let go of the locks that SQLite has
    on a file in this process. Why it cannot be made is said by who opens it.
    """
    try:
        os.mknod(path, PRIVATE)
    except OSError:
        for one in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
            narrow(one)


def narrow(path: Path) -> None:
    """Take from others what they may do with a file; one that is not ours stays as it is."""
    with contextlib.suppress(OSError):
        if path.stat().st_mode & _OF_OTHERS:
            path.chmod(PRIVATE)


def wide_files(folder: Path) -> list[Path]:
    """Return the files of databus in a folder that others than their owner may read."""
    try:
        ours = [path for path in folder.iterdir() if _OURS.search(path.name) and path.is_file()]
        return sorted(path for path in ours if path.stat().st_mode & _OF_OTHERS)
    except OSError:
        return []


def replace_file(path: Path, data: bytes, mode: int = PRIVATE) -> None:
    """Write beside it, sync, rename over it, sync the folder. Raises OSError."""
    beside = path.with_name(path.name + ".new")
    beside.unlink(missing_ok=True)  # of a process that was killed, perhaps with a wider mode
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
