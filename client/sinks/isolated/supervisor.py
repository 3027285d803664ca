"""The process between databus and the code of a sink: it ends with either, and leaves nothing.

    databus ── supervisor ── worker ── whatever the sink's code starts

It is a subreaper (PR_SET_CHILD_SUBREAPER): also a daemon of two forks stays below it, so all can be
found and killed when the worker ends, when databus asks for it, and when databus is gone. It runs
no code of the user. That code could kill it, too, as it runs as the same user: then the worker is
killed by the kernel, and the rest of its process group by databus.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

from databus.client.sinks.isolated.ends import End, EndReason, Limits, end_of_status
from databus.client.sinks.isolated.tree import (
    descendants,
    kill_descendants,
    lists_children,
    memory_bytes,
)
from databus.daemon.parents import end_with_parent

_PR_SET_CHILD_SUBREAPER = 36
_LOOK_EVERY_S = 0.2
_KILL_S = 10.0
_NICENESS = 5
_OOM_SCORE = "500"
_CONTROL = 0  # stdin: databus closes its end, or is gone
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Start(NamedTuple):
    """What the command line says, after the name of the sink, which is for people."""

    parent: int
    calls: int  # descriptor of the worker's socket
    ends: int  # descriptor of the pipe that says how the worker ended
    limits: Limits


def command_line(name: str, start: Start) -> list[str]:
    """Return the command of a supervisor."""
    # -P: a module in the working directory cannot take the place of one of the standard library.
    module = [sys.executable, "-P", "-m", "databus.client.sinks.isolated.supervisor", name]
    return module + list(map(str, (*start[:3], *start.limits)))


def _start_of(words: Sequence[str]) -> Start:
    parent, calls, ends, memory, cpu_s, call_s, processes = words
    limits = Limits(int(memory), float(cpu_s), float(call_s), int(processes))
    return Start(int(parent), int(calls), int(ends), limits)


def main(words: Sequence[str]) -> int:
    """Start the worker, wait for its end, kill what is left, and say how it ended."""
    start = _start_of(words)
    for descriptor in (start.calls, start.ends):
        os.set_inheritable(descriptor, False)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    _let_others_run_first()
    if not lists_children():
        sys.stderr.write("this kernel does not list child processes: set isolate = false\n")
        return 1
    # The code of the sink may signal its process group.
    for number in _SIGNALS:
        signal.signal(number, lambda *_: None)
    supervisor = os.getpid()
    worker = os.fork()
    if worker == 0:
        _become_worker(start, supervisor)
    os.close(start.calls)
    end = _wait_for_end(worker, start)
    is_clean = kill_descendants(_KILL_S)
    os.write(start.ends, end.to_json())
    return 0 if is_clean else 1


def _let_others_run_first() -> None:
    os.nice(_NICENESS)
    # Where the kernel gives each session a share of the CPU, niceness counts only within one.
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(_NICENESS))


def _become_worker(start: Start, supervisor: int) -> NoReturn:
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    end_with_parent(supervisor, signal.SIGKILL)
    with suppress(OSError):
        # When the machine is out of memory, the kernel ends this one, and not databus.
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
    os.close(start.ends)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, _CONTROL)
    os.close(null)
    code = 1
    try:
        # Here, so that the supervisor stays small.
        from databus.client.sinks.isolated.worker import Worker

        code = Worker(socket.socket(fileno=start.calls), start.limits).run()
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
        os._exit(code)


def _wait_for_end(worker: int, start: Start) -> End:
    poller = select.poll()
    exited = os.pidfd_open(worker)
    poller.register(exited, select.POLLIN)
    poller.register(_CONTROL, select.POLLIN | select.POLLHUP)
    while True:
        ready = {descriptor for descriptor, _ in poller.poll(_LOOK_EVERY_S * 1000)}
        status = _reap(worker)
        if status is not None:
            return end_of_status(status)
        if _CONTROL in ready or os.getppid() != start.parent:
            return End(EndReason.ASKED)
        if (over := _over_limits(start.limits)) is not None:
            return End(over)


def _reap(worker: int) -> int | None:
    """Take the exit statuses of children; return that of the worker, if it has ended."""
    while True:
        child, status = os.waitpid(-1, os.WNOHANG)
        if child == worker:
            return status
        if child == 0:
            return None


def _over_limits(limits: Limits) -> EndReason | None:
    found = descendants(os.getpid())
    if len(found) > limits.processes:
        return EndReason.PROCESSES
    if memory_bytes(found, limits.memory_bytes) > limits.memory_bytes:
        return EndReason.MEMORY
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[2:]))
