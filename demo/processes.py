"""Starts, watches and stops the child processes of the demo and the benchmarks.

Each child has its own session, so that Ctrl-C in the terminal reaches only the parent,
which then stops its children in order.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import databus
from databus.schemas.errors import DatabusError

LOG_LINES_SHOWN = 15
SIGNAL_POLL_S = 0.05
_LONGEST_PAUSE_S = 0.25
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST_OF_CONNECTIONS = 32768
_LOWEST_PORT = 12_000
_TRIES = 100


class ChildError(DatabusError):
    """A child process did not start, or ended unexpectedly."""


class Child:
    """One child process; its output goes to `<folder>/<name>.log`."""

    def __init__(self, name: str, arguments: Sequence[str], folder: Path) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._arguments = list(arguments)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, or restart it after it ended; the log is appended."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._arguments,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=child_environment(),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process id; raises ChildError when it was never started."""
        if self._process is None:
            raise ChildError(f"{self.name} was not started")
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code; None while it runs and before it was started."""
        return None if self._process is None else self._process.poll()

    def check(self) -> None:
        """Raise ChildError with the end of its log if it ended with an error."""
        if self.exit_code:
            raise ChildError(f"{self.name} ended with {self.exit_code}:\n{self.log_tail()}")

    def wait(self, timeout_s: float) -> int:
        """Wait for its end and return the exit code; raises ChildError on a timeout."""
        process = self._process
        if process is None:
            raise ChildError(f"{self.name} was not started")
        try:
            wait_until(lambda: process.poll() is not None, timeout_s, self.name)
        except TimeoutError:
            raise ChildError(f"{self.name} did not end within {timeout_s:g} s") from None
        return process.returncode

    def kill(self) -> None:
        """Send SIGKILL and wait for its end."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self, grace_s: float = 30.0) -> None:
        """Send SIGTERM, wait, then kill it. May be called twice."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def log_tail(self) -> str:
        """Return the last lines of its output."""
        if not self.log.exists():
            return ""
        text = self.log.read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-LOG_LINES_SHOWN:])


def child_environment() -> dict[str, str]:
    """Return an environment in which a child imports the package that runs here."""
    roots = [str(Path(entry).parent) for entry in databus.__path__ if Path(entry).name == "databus"]
    path = [*roots, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1"}


def python_module(module: str, *arguments: object) -> list[str]:
    """Return the command line that runs a module with this interpreter."""
    return [sys.executable, "-m", module, *map(str, arguments)]


def free_port() -> int:
    """Return a loopback port that nobody listens on now.

    It is below those that the system gives to connections. One of theirs would be taken by a
    connection now and then, before its server starts or while it is down for a moment.
    """
    for _ in range(_TRIES):
        port = _LOWEST_PORT + secrets.randbelow(_first_of_connections() - _LOWEST_PORT)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise ChildError(f"no port of {_TRIES} is free")


def _first_of_connections() -> int:
    """Return the first port that the system gives to connections; Linux's default elsewhere."""
    try:
        first = int(_RANGE.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return _FIRST_OF_CONNECTIONS
    return max(first, _LOWEST_PORT + 1000)


def port_or_free(wanted: int) -> int:
    """Return the wanted loopback port, or a free one where somebody listens there or it is 0."""
    try:
        socket.create_server(("127.0.0.1", wanted)).close()
    except OSError:
        return free_port()
    return wanted or free_port()


def wait_until(
    condition: Callable[[], object], timeout_s: float, what: str, interval_s: float = 0.02
) -> None:
    """Poll a condition until it is true; raises TimeoutError naming `what`.

    The longer it takes, the longer are the pauses: who looks takes time from what is waited for.
    """
    began_s = time.monotonic()
    while not condition():
        check_signals()
        waited_s = time.monotonic() - began_s
        if waited_s > timeout_s:
            raise TimeoutError(f"waited {timeout_s:g} s in vain for {what}")
        time.sleep(max(interval_s, min(waited_s / 20, _LONGEST_PAUSE_S)))


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_noted: list[int] = []  # global, because signals are delivered to the process


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Inside the block Ctrl-C, SIGTERM and SIGHUP stop what runs at its next `check_signals`.

    A signal is only recorded when it arrives. An exception at any point could fall between
    the start of a child and its registration, or into the cleanup, and leave a process or
    a file behind.
    """

    def note(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        _noted.append(number)

    before = [signal.signal(number, note) for number in _SIGNALS]
    try:
        yield
    finally:
        for number, handler in zip(_SIGNALS, before, strict=True):
            signal.signal(number, handler)
        _noted.clear()


def check_signals() -> None:
    """Raise KeyboardInterrupt if a signal has arrived. Call it between two complete steps."""
    if _noted:
        _noted.clear()
        raise KeyboardInterrupt


def pause(seconds: float) -> None:
    """Sleep, unless a signal stops it."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        check_signals()
        time.sleep(min(left, SIGNAL_POLL_S))
    check_signals()
