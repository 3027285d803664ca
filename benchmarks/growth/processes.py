"""Runs a measurement in a process of its own, and reads the CPU time of another process."""

from __future__ import annotations

import multiprocessing
import resource
import time
from collections.abc import Callable
from typing import Any, TypeVar

TIMEOUT_S = 600.0
Result = TypeVar("Result")


def apart(work: Callable[..., Result], *arguments: Any) -> Result:
    """Return `work(*arguments)`, called in a new process; raises its error.

    `work` is a function of a module; arguments and result are pickled. A new process has a
    fresh heap, and nobody else's threads.
    """
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply_async(work, arguments).get(TIMEOUT_S)


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a running process, all threads, in nanosecond steps.

    This is the clock of `clock_getcpuclockid(3)`; /proc has steps of 10 ms.
    """
    return time.clock_gettime(~pid << 3 | 2)


def allow_open_files(count: int) -> None:
    """Let this process open so many files, if the system allows it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
