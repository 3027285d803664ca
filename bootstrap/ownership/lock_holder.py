"""Names the process that holds a store's write lock, from the kernel's table of locks.

SQLite in WAL mode locks byte 120 of the `-shm` file to write. The file is not opened here: closing
it would release the locks that SQLite has on it in this process.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_WRITE_LOCK_AT = 120  # in the -shm file; https://sqlite.org/walformat.html
_LOCKS = Path("/proc/locks")
_STOPPED = "Tt"  # by a signal, by a debugger


def shown_holder(store: Path, locks: Path = _LOCKS) -> str:
    """Return a sentence about the process that holds the write lock; "" when none is found."""
    pid = 0
    with suppress(OSError):
        file = Path(f"{store}-shm").stat()
        device = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}"
        pid = find_holder(locks.read_text().splitlines(), f"{device}:{file.st_ino}")
    if pid <= 0:
        return ""
    if _state_of(pid) in _STOPPED:
        return (
            f"process {pid} holds its lock and is stopped in the middle of a write: let it go on "
            f"(kill -CONT {pid}) or end it (kill -KILL {pid})"
        )
    return f"process {pid} holds its lock"


def find_holder(locks: Iterable[str], file: str) -> int:
    """Return the process that holds the write lock of a file, `device:inode`; 0 when none does.

    A line of the table is `1: POSIX  ADVISORY  WRITE 4711 fe:00:9977931 120 120`.
    """
    for line in locks:
        fields = line.split()
        if len(fields) != 8 or fields[1] != "POSIX" or fields[3] != "WRITE" or fields[5] != file:
            continue
        begin, end = int(fields[6]), fields[7]
        if begin <= _WRITE_LOCK_AT and (end == "EOF" or int(end) >= _WRITE_LOCK_AT):
            return int(fields[4])
    return 0


def _state_of(pid: int) -> str:
    """Return the letter of a process's state; "?" when it is not known."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "?"
    return status.rpartition(")")[2].split()[0]
