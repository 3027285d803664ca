"""The process of a lane of an isolated sink, as its parent has it."""

from __future__ import annotations

import os
import pickle
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from databus.client.sinks.isolated.answers import MOST_BYTES
from databus.client.sinks.isolated.ends import End, EndReason, Limits, end_from_json
from databus.client.sinks.isolated.frames import FrameSocket
from databus.client.sinks.isolated.output import OutputLog
from databus.client.sinks.isolated.supervisor import Start, command_line

_END_S = 2.0  # for what ends by itself
_KILL_S = 15.0  # longer than the supervisor takes to kill what is left
_MOST_END_BYTES = 1000


class SinkChild:
    """A supervisor and its worker. Used on one thread; `abort` is for all."""

    def __init__(self, name: str, limits: Limits, environment: Mapping[str, str]) -> None:
        """Start it; raise OSError."""
        ours, theirs = socket.socketpair()
        ends, ends_of_child = os.pipe()
        start = Start(os.getpid(), theirs.fileno(), ends_of_child, limits)
        try:
            self._process = subprocess.Popen(
                command_line(name, start),
                bufsize=0,
                env=dict(environment),
                pass_fds=(theirs.fileno(), ends_of_child),
                start_new_session=True,  # a process group of its own, without the terminal
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        except BaseException:
            ours.close()
            os.close(ends)
            raise
        finally:
            theirs.close()
            os.close(ends_of_child)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._control, self._ends = self._process.stdin, ends
        self._calls = FrameSocket(ours, MOST_BYTES)
        self._output = OutputLog(name, self._process.stdout)
        self._lock = threading.Lock()
        self._end: End | None = None

    @property
    def pid(self) -> int:
        """The process id of the supervisor, which is that of the process group, too."""
        return self._process.pid

    def send(self, *messages: Any, end_s: float) -> None:
        """Send messages; raise TimeoutError, and OSError if it has ended."""
        for one in messages:
            self._calls.send(pickle.dumps(one, protocol=5), end_s=end_s)

    def receive(self, end_s: float) -> bytes:
        """Return its answer; raise TimeoutError, EOFError, FrameError and OSError."""
        return self._calls.receive(end_s)

    def abort(self) -> None:
        """Have it killed, and all that it has started. Thread-safe."""
        with self._lock, suppress(OSError):
            self._control.close()

    def finish(self) -> End:
        """Wait a moment for its end, or kill it, and all that it has started; say how it ended."""
        if self._end is None:
            told = self._told(_END_S)
            self.abort()
            told = told or self._told(_KILL_S)
            self._let_go()
            self._end = _read_end(told) or _end_of_supervisor(self._process.returncode)
        return self._end

    def _told(self, timeout_s: float) -> bytes:
        """Return what the supervisor says when all is over, b"" if it says nothing so long."""
        if not select.select([self._ends], (), (), timeout_s)[0]:
            return b""
        return os.read(self._ends, _MOST_END_BYTES)

    def _let_go(self) -> None:
        self._calls.close()
        os.close(self._ends)
        exited = os.pidfd_open(self._process.pid)
        select.select([exited], (), (), _KILL_S)
        os.close(exited)
        # If the code of the sink has killed its supervisor, this is left. The group has its name
        # as long as its leader is not waited for.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._output.end()


def _read_end(told: bytes) -> End | None:
    with suppress(ValueError):
        return end_from_json(told)
    return None


def _end_of_supervisor(code: int) -> End:
    return End(EndReason.SIGNAL, -code) if code < 0 else End(EndReason.EXIT, code)
