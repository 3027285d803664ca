"""Files that hold rows, or where somebody is in them, are their owner's alone: 0600.

They go around the tokens, so the modes are given where the files are made and
do not depend on the umask. Those of an earlier version are narrowed when they
are opened; whose they are not, nobody narrows, and `databus doctor` tells.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

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
