"""The private files in which a process of sinks keeps its state."""

from __future__ import annotations

from pathlib import Path

from databus.daemon.files import make_folder, replace_file
from databus.schemas.errors import CheckpointError


def keep_file(path: Path, data: bytes) -> None:
    """Replace a file as a whole, durably; raise CheckpointError if it cannot be written."""
    try:
        make_folder(path.parent)
        replace_file(path, data)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error}") from error
