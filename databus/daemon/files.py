"""Files of the daemons: private modes, atomic replacement, locks.

Only the owner can read files that contain rows or positions (mode 0600), because reading them
would bypass the tokens. The mode is set when a file is created, and does not depend on the umask.
Files of earlier versions get it when they are opened. Files of other users are left unchanged;
`databus doctor` reports them.

After a crash, a replaced file has either the old content or the new one.

The kernel releases a lock when the process ends, in whatever way. The lock's file is not removed:
otherwise two processes could lock two files of the same name.
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
SHARED = 0o666  # minus the umask: for tables that others may read
_OF_OTHERS = 0o077
_OURS = re.compile(r"\.(ring|scn|db|history|jsonl?|lock|segment)\b")


class OpenFile:
    """A descriptor that is closed as soon as nobody holds this any more.

    A reader goes on to its next file while a part of this one is still being sent.
    """

    def __init__(self, fd: int) -> None:
        """Take over a descriptor."""
        self.fd = fd

    def __del__(self) -> None:
        os.close(self.fd)


def make_folder(path: Path) -> None:
    """Create a private folder and its missing parents; raises OSError."""
    for missing in [p for p in (*reversed(path.parents), path) if not p.exists()]:
        missing.mkdir(mode=0o700, exist_ok=True)
    path.mkdir(exist_ok=True)  # raises if it is not a folder


def make_private(path: Path) -> None:
    """Create an empty private file, or make an existing one private.

    Opens no descriptor, because closing one would release the locks that SQLite has on the file
    in this process (POSIX locks). An error is not raised here; opening the file raises it.
    """
    try:
        os.mknod(path, PRIVATE)
    except OSError:
        for one in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
            narrow(one)


def narrow(path: Path) -> None:
    """Remove the rights of others from a file; a file of another user stays unchanged."""
    with contextlib.suppress(OSError):
        if path.stat().st_mode & _OF_OTHERS:
            path.chmod(PRIVATE)


def wide_files(folder: Path) -> list[Path]:
    """Return the files of databus in a folder that not only their owner may read."""
    try:
        ours = [path for path in folder.iterdir() if _OURS.search(path.name) and path.is_file()]
        return sorted(path for path in ours if path.stat().st_mode & _OF_OTHERS)
    except OSError:
        return []


def replace_file(path: Path, data: bytes, mode: int = PRIVATE) -> None:
    """Replace a file atomically and durably; raises OSError."""
    beside = path.with_name(path.name + ".new")
    beside.unlink(missing_ok=True)  # left by a killed process, perhaps with a wider mode
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        file.flush()
        # Before the rename: otherwise a power failure may leave the new name with no content.
        os.fsync(file.fileno())
    beside.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the renames in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class FileHeldError(Exception):
    """Another holder has the lock; `content` is the text of its file. Becomes another error."""

    def __init__(self, content: str) -> None:
        super().__init__(content)
        self.content = content


def open_locked(path: Path, *, is_shared: bool = False) -> int:
    """Open and lock a file, and create its folder; closing the returned descriptor unlocks it.

    A lock that `is_shared` keeps out those that are not. Raises FileHeldError if it is locked, also
    by this process; OSError if the folder or the file cannot be used.
    """
    make_folder(path.parent)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
    narrow(path)
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        content = os.pread(fd, 64, 0).decode("ascii", "replace")
        os.close(fd)
        raise FileHeldError(content) from None
    except OSError:
        os.close(fd)
        raise
    return fd


def take_lock(path: Path, in_use: str, *, is_shared: bool = False) -> Callable[[], None]:
    """Lock a file of a daemon's `data_dir`; return the function that unlocks it.

    Raises SettingsError with the text `in_use` if the file is locked, or with the reason if the
    folder cannot be used.
    """
    try:
        fd = open_locked(path, is_shared=is_shared)
    except FileHeldError:
        raise SettingsError(in_use) from None
    except OSError as error:
        raise SettingsError(f"data_dir {path.parent} cannot be used: {error}") from error
    return lambda: os.close(fd)


def holder_of(path: Path) -> str:
    """Return the text that the holder of a lock wrote into its file; "" without a holder.

    A holder that wrote nothing is `unknown`. Creates no file. A process that requests the lock at
    the same moment is refused.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        # A shared lock, released at once: several processes can look at the same time.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(fd, 64, 0).decode("ascii", "replace") or "unknown"
    except OSError:
        return ""
    else:
        return ""
    finally:
        os.close(fd)
