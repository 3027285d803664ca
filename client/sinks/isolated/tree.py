"""A process and all that it has started, as /proc lists them. Linux only."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_KIB = 1024
_LOOK_S = 0.005
# A process that ends while it is looked at.
_GONE = (FileNotFoundError, ProcessLookupError, PermissionError)


def lists_children() -> bool:
    """Whether this kernel lists the children of a process (CONFIG_PROC_CHILDREN)."""
    return Path(f"/proc/self/task/{os.getpid()}/children").exists()


def children(process: int) -> list[int]:
    """Return the children of a process, which may be gone by now."""
    found: list[int] = []
    with suppress(*_GONE):
        for task in Path(f"/proc/{process}/task").iterdir():
            with suppress(*_GONE):
                found += map(int, (task / "children").read_text().split())
    return found


def descendants(process: int) -> list[int]:
    """Return the children of a process, theirs and so on."""
    found = children(process)
    for one in found:  # grows on the way
        found += [child for child in children(one) if child not in found]
    return found


def memory_bytes(processes: Sequence[int], most: int) -> int:
    """Return the memory that processes take together, exactly if it may be more than `most`.

    The quick sum counts a page that several of them share once for each.
    """
    quick = sum(map(_resident_bytes, processes))
    return quick if quick <= most else sum(map(_proportional_bytes, processes))


def kill_descendants(timeout_s: float) -> bool:
    """Kill what this process has started, and wait for it; return whether nothing is left.

    This process has to be a subreaper: what loses its parent becomes a child of it. So when it has
    no child any more, it has no descendant either.
    """
    end_s = time.monotonic() + timeout_s
    while time.monotonic() < end_s:
        for one in descendants(os.getpid()):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(one, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return True
        time.sleep(_LOOK_S)
    return False


def _resident_bytes(process: int) -> int:
    with suppress(*_GONE):
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * _PAGE_BYTES
    return 0


def _proportional_bytes(process: int) -> int:
    with suppress(*_GONE):
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * _KIB
    return 0
