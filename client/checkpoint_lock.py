"""One process, and one registration in it, at a time for each checkpoint file.

Two that write one file would each go on from the other's place. The kernel
lets go when the process dies, however it dies; the file stays, for removing it
would let two processes lock two files of one name.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from databus.schemas.errors import CheckpointError


def take_lock(path: Path) -> Callable[[], None]:
    """Lock the file, its folder made if need be; returns how to let go.

    Raises CheckpointError, naming the file and the process that has it.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be locked: {error}; see checkpoint_dir") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
    except BlockingIOError:
        holder = os.pread(fd, 20, 0).decode("ascii", "replace") or "that did not say its id"
        os.close(fd)
        raise CheckpointError(
            f"{path} is locked: process {holder} reads this registration; stop it, or give this "
            "one another `name` or checkpoint_dir"
        ) from None
    except OSError as error:
        os.close(fd)
        raise CheckpointError(f"{path} cannot be locked: {error}; see checkpoint_dir") from error

    def let_go() -> None:
        # A process forked meanwhile has the file open too: closing it here is not enough.
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)

    return let_go
