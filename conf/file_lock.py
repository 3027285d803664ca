"""A file that one process at a time holds: two daemons never write the same folder or store.

The kernel lets go of the lock when the process dies, however it dies. The file
itself stays: removing it would let two processes lock two files of one name.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from databus.schemas.errors import SettingsError


def take_lock(path: Path, in_use: str) -> Callable[[], None]:
    """Lock the file for this process alone, its folder made if need be; returns how to let go.

    Raises SettingsError with the text `in_use` when somebody has it, or saying
    why the folder cannot be used.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise SettingsError(f"data_dir {path.parent} cannot be used: {error}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise SettingsError(in_use) from None
    return lambda: os.close(fd)
