"""Which processes the tests of isolated sinks have left."""

from __future__ import annotations

import contextlib
import time

import psutil

from tests import PATIENCE_S


def below(process: int | None = None) -> list[psutil.Process]:
    """Return all descendants of a process, by default of this one."""
    return list(psutil.Process(process).children(recursive=True))


def command_lines() -> list[str]:
    """Return the command lines of all descendants that have not ended meanwhile."""
    lines = []
    for process in below():
        # One of an earlier test may end between the listing and the question.
        with contextlib.suppress(psutil.NoSuchProcess):
            lines.append(" ".join(process.cmdline()))
    return lines


def are_gone(processes: list[psutil.Process]) -> bool:
    """Wait for processes to end; return whether all have."""
    end_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < end_s:
        if not any(map(lives, processes)):
            return True
        time.sleep(0.02)
    return False


def lives(process: psutil.Process) -> bool:
    """Whether a process runs: a zombie has ended, and waits for its parent."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
