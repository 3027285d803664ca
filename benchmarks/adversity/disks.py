"""A disk that can be filled: a tmpfs where one may be mounted, else files that cannot grow."""

from __future__ import annotations

import contextlib
import errno
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

from databus.demo.processes import Child

_FILLER = "filler"
_BLOCK = bytes(64 << 10)


class SmallDisk:
    """A folder on its own small disk, for the length of a scene."""

    def __init__(self, folder: Path, size_mib: int) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        options = f"size={size_mib}m,mode=0700"
        command = ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)]
        done = subprocess.run(command, capture_output=True, check=False)
        self.is_mounted = done.returncode == 0

    @contextlib.contextmanager
    def full(self, *children: Child) -> Iterator[None]:
        """Fill the disk for the length of a `with`; without a mount only for `children`."""
        if not self.is_mounted:
            with contextlib.ExitStack() as stack:
                for child in children:
                    stack.enter_context(limited(child, resource.RLIMIT_FSIZE, 0))
                yield
            return
        filler = self.folder / _FILLER
        self._fill(filler)
        try:
            yield
        finally:
            filler.unlink()

    def close(self) -> None:
        """Unmount the disk and remove its files."""
        if self.is_mounted:
            subprocess.run(["umount", "-l", str(self.folder)], check=False, capture_output=True)

    @staticmethod
    def _fill(filler: Path) -> None:
        with filler.open("wb", buffering=0) as out:
            for block in (_BLOCK, b"\0"):
                try:
                    while out.write(block) == len(block):
                        pass
                    while out.write(b"\0"):
                        pass
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise


@contextlib.contextmanager
def limited(child: Child, what: int, most: int) -> Iterator[None]:
    """Lower a limit of a running process for the length of a `with`."""
    before = resource.prlimit(child.pid, what)
    resource.prlimit(child.pid, what, (most, before[1]))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(child.pid, what, before)
