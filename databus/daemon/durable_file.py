"""Replacing a file so that after a crash it is the old one or the new one, whole."""

from __future__ import annotations

import os
from pathlib import Path

from databus.daemon.private_files import PRIVATE


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
