"""One process, and one registration in it, at a time for each checkpoint file.

Two that write one file would each go on from the other's place.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from databus.daemon.file_lock import FileHeldError, open_locked
from databus.schemas.errors import CheckpointError


def take_lock(path: Path) -> Callable[[], None]:
    """Lock the file, and say in it who did; returns how to let go.

    Raises CheckpointError, naming the file and the process that has it.
    """
    try:
        fd = open_locked(path)
    except FileHeldError as held:
        raise CheckpointError(
            f"{path} is locked: process {held.content or 'that did not say its id'} reads this "
            "registration; stop it, or give this one another `name` or checkpoint_dir"
        ) from None
    except OSError as error:
        raise _unusable(path, error) from error
    try:
        _check_writable(path.parent)
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
    except OSError as error:
        os.close(fd)
        raise _unusable(path, error) from error

    def let_go() -> None:
        # A process forked meanwhile has the file open too: closing it here is not enough.
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)

    return let_go


def _check_writable(folder: Path) -> None:
    """Raise now what saving would meet: the lock's file may be there, and open, all the same."""
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, "no file can be made in it", str(folder))


def _unusable(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(
        f"{path} cannot be locked: {error}; make its folder writable for this user, or choose "
        "another checkpoint_dir"
    )
