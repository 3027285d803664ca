"""Replacement of files that several processes of one machine write.

Each replaces a file only if its content is still what it decided upon. A lock file beside it is
held for that comparison and a rename: microseconds, for the new content was written and synced
before. A process that is killed unlocks it. One that is stopped (SIGSTOP) exactly then blocks the
others, which get an error that names it; nothing is written meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from databus.daemon.files import PRIVATE, make_folder, sync_folder

_PATIENCE_S = 3.0
_PAUSE_S = 0.002
_LEFTOVER = re.compile(r"\.new\.(?P<pid>\d+)\.\d+$")
_HOLDER_BYTES = 16


def content_of(path: Path) -> bytes | None:
    """Return a file's content, None without a file; raise OSError."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def replace_guarded(
    path: Path,
    data: bytes,
    is_wanted: Callable[[bytes | None], bool],
    patience_s: float = _PATIENCE_S,
) -> bool:
    """Replace a file durably if `is_wanted` agrees to its present content; return whether it did.

    `is_wanted` is called while the file is locked, and may raise. Raises OSError; EAGAIN if another
    process has kept the file locked for `patience_s`.
    """
    make_folder(path.parent)
    # Of this process and thread alone: nobody else may rename it half written.
    beside = path.with_name(f"{path.name}.new.{os.getpid()}.{threading.get_ident()}")
    try:
        _write_synced(beside, data)
        with _locked(path.with_name(f"{path.name}.guard"), patience_s):
            if not is_wanted(content_of(path)):
                return False
            beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    sync_folder(path.parent)
    return True


def remove_leftovers(folder: Path) -> None:
    """Remove the half-written files of processes that were killed."""
    with contextlib.suppress(OSError):
        for path in folder.glob("*.new.*"):
            found = _LEFTOVER.search(path.name)
            if found and not _is_running(int(found["pid"])):
                path.unlink(missing_ok=True)


def _write_synced(path: Path, data: bytes) -> None:
    path.unlink(missing_ok=True)  # of a killed process that had our id, perhaps with a wider mode
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def _locked(guard: Path, patience_s: float) -> Iterator[None]:
    fd = os.open(guard, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
    try:
        _lock(fd, guard, patience_s)
        os.pwrite(fd, f"{os.getpid():<{_HOLDER_BYTES}}".encode(), 0)
        yield
        # A process forked since has the file open too, so closing it does not unlock it.
        fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        os.close(fd)


def _lock(fd: int, guard: Path, patience_s: float) -> None:
    deadline_s = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < deadline_s:
                time.sleep(_PAUSE_S)
                continue
            holder = os.pread(fd, _HOLDER_BYTES, 0).decode("ascii", "replace").strip()
            text = (
                f"process {holder or 'of unknown id'} has kept it locked for {patience_s:g} s, so "
                "it is stopped; let it go on (SIGCONT) or end it"
            )
            raise BlockingIOError(errno.EAGAIN, text, str(guard)) from None
        return


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
