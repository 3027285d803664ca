"""The job's process tree: the driver's Python, its JVM, executors, and the tasks' Python workers.

All of them are in one session, begun by the driver, whatever their parents are after a kill.
"""

from __future__ import annotations

import os
from contextlib import suppress

import psutil

from databus.demo.processes import Child, wait_until

EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
WORKER = "pyspark.worker"
GONE_S = 30.0


def kill_tree(job: Child) -> None:
    """Kill all processes of the job by SIGKILL."""
    session = job.pid
    job.kill()

    def is_gone() -> bool:
        left = _of_session(session)
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        return not left

    wait_until(is_gone, GONE_S, "the end of the job's processes")


def task_processes(job: Child) -> list[psutil.Process]:
    """Return the processes that run tasks: executors' JVMs, or the driver's Python workers."""
    found: dict[str, list[psutil.Process]] = {EXECUTOR: [], WORKER: []}
    for process in _of_session(job.pid):
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            kind = _kind(process)
            if kind:
                found[kind].append(process)
    return found[EXECUTOR] or found[WORKER]


def _kind(process: psutil.Process) -> str:
    words = process.cmdline()
    if EXECUTOR in words:
        return EXECUTOR
    # Workers are forks of a daemon of the same command line, which runs no task itself.
    parent = process.parent()
    is_worker = words[-1:] == [WORKER] and parent is not None and parent.cmdline() == words
    return WORKER if is_worker else ""


def _of_session(session: int) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["status"]):
        with suppress(ProcessLookupError, PermissionError):
            is_over = process.info["status"] == psutil.STATUS_ZOMBIE
            if not is_over and os.getsid(process.pid) == session:
                found.append(process)
    return found
