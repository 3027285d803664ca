"""The two servers that Canal's stock client reads one binlog through, each in a process."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.peers.ours import Job, PrivateRelay
from benchmarks.peers.programs import command_of
from databus.demo.processes import Child, free_port, wait_until

SERVER = "java/canal_server"
_TIMEOUT_S = 600.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Serving:
    """A server that listens."""

    port: int
    pid: int

    @property
    def cpu_s(self) -> float:
        """CPU seconds of all its processes since their start."""
        found = 0.0
        for process in _processes_of(self.pid):
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                found += times.user + times.system
        return found

    def memory(self) -> tuple[int, int]:
        """Return the bytes of all its processes in memory, and how many are no mapped files."""
        resident = anonymous = 0
        for process in _processes_of(self.pid):
            with suppress(psutil.NoSuchProcess):
                memory = process.memory_info()
                resident += memory.rss
                anonymous += memory.rss - memory.shared
        return resident, anonymous


def _processes_of(pid: int) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        top = psutil.Process(pid)
        return [top, *top.children(recursive=True)]
    return []


@contextmanager
def relay(job: Job, folder: Path, *, is_filled: bool = False) -> Iterator[Serving]:
    """Run a relay with an empty ring; with `is_filled` it has captured all rows before."""
    port = free_port()
    door = f"""[canal]
port = {port}
[[canal.destinations]]
name = "example"
physical_sources = ["bench"]
"""
    with PrivateRelay(job, folder, door) as started:
        _wait_for_port(port, lambda: None)
        if is_filled:
            wait_until(lambda: started.captured() >= job.rows, _TIMEOUT_S, "all rows", _POLL_S)
        yield Serving(port, started.pid)


@contextmanager
def canal(job: Job, folder: Path) -> Iterator[Serving]:
    """Run Canal's own server."""
    port = free_port()
    login = (job.host, str(job.port), job.user, job.password)
    place = (job.file, str(job.offset), job.table, str(port))
    child = Child("canal", [*command_of(SERVER), *login, *place], folder)
    child.start()
    try:
        _wait_for_port(port, child.check)
        yield Serving(port, child.pid)
    finally:
        child.kill()


def _wait_for_port(port: int, check: Callable[[], None]) -> None:
    def is_open() -> bool:
        check()
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return True
        return False

    wait_until(is_open, _TIMEOUT_S, "the server's port", _POLL_S)
