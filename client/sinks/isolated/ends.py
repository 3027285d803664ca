"""How the process of a sink ends, in one word for metrics and in a text for people. Pure."""

from __future__ import annotations

import json
import os
import signal
from enum import StrEnum
from typing import NamedTuple

_MIB = 1 << 20


class Limits(NamedTuple):
    """What the processes of one lane may use; `LimitSettings` describes each."""

    memory_bytes: int
    cpu_s: float
    call_s: float
    processes: int


class EndReason(StrEnum):
    """Why it ended."""

    EXIT = "exit"
    SIGNAL = "signal"
    MEMORY = "memory"
    CPU = "cpu"
    TIME = "time"
    PROCESSES = "processes"
    ASKED = "asked"  # by its parent, or with it
    ANSWER = "answer"  # what it answered makes no sense


class End(NamedTuple):
    """A reason, and the exit code or the number of the signal."""

    reason: EndReason
    number: int = 0

    def to_json(self) -> bytes:
        """Return it as bytes, which `end_from_json` reads."""
        return json.dumps([self.reason.value, self.number]).encode()

    def text(self, limits: Limits) -> str:
        """Return it in words."""
        match self.reason:
            case EndReason.EXIT:
                return f"exit code {self.number}"
            case EndReason.SIGNAL:
                return f"signal {_signal_name(self.number)}"
            case EndReason.MEMORY:
                return f"killed: memory limit {limits.memory_bytes / _MIB:g} MiB"
            case EndReason.CPU:
                return f"killed: CPU limit {limits.cpu_s:g} s"
            case EndReason.TIME:
                return f"killed: time limit {limits.call_s:g} s"
            case EndReason.PROCESSES:
                return f"killed: limit of {limits.processes} processes"
            case EndReason.ASKED:
                return "it closed its connection, and was killed"
            case EndReason.ANSWER:
                return "killed: its answer makes no sense"


def end_of_status(status: int) -> End:
    """Return the end that a status of `waitpid` tells."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return End(EndReason.EXIT, code)
    # The kernel sends it to a process that has used up its CPU time.
    if code == -signal.SIGXCPU:
        return End(EndReason.CPU)
    return End(EndReason.SIGNAL, -code)


def end_from_json(data: bytes) -> End:
    """Read an end; raise ValueError if it is none."""
    match json.loads(data):
        case [str(reason), int(number)]:
            return End(EndReason(reason), number)
    raise ValueError(f"{data[:100]!r} is no end of a process")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
