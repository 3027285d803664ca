"""Limits that a process sets for itself, before it runs code of the user."""

from __future__ import annotations

import math
import resource

from databus.client.sinks.isolated.ends import Limits


def limit_this_process(limits: Limits) -> None:
    """Limit memory, and leave no dump of it behind. Processes that it starts inherit it."""
    # Not RLIMIT_AS: threads and allocators reserve far more addresses than they use. RLIMIT_DATA
    # is what a process has for itself to write: heap, stacks of threads, private mappings.
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = limits.memory_bytes if hard == resource.RLIM_INFINITY else min(limits.memory_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def lift_memory_limit() -> None:
    """Take back the limit of memory, for the last words of this process."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def limit_cpu(cpu_s: float) -> None:
    """Let the kernel kill this process when it has used so many more seconds of CPU."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    most = math.ceil(used.ru_utime + used.ru_stime + cpu_s)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (most, hard))
