"""Sinks whose code does what no sink should do: for the processes of tests."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from databus.client.sinks.contract import Change, Opening, Position
from databus.client.sinks.errors import SinkRefusedError, SinkUnavailableError
from tests.client.sinks.copy_sink import ExactCopy, UpsertCopy

SLEEPER = [
    sys.executable,
    "-c",
    "import signal,time;signal.signal(15,signal.SIG_IGN);time.sleep(999)",
]


def eat_memory() -> None:
    held = []
    while True:
        held.append(bytearray(8 << 20))


def eat_memory_in_children() -> None:
    """Four children of 40 MiB: each alone is within the limit."""
    for _ in range(4):
        if os.fork() == 0:
            held = bytearray(40 << 20)
            held[:: 1 << 12] = b"x" * len(held[:: 1 << 12])
            time.sleep(999)
    time.sleep(999)


def spin() -> None:
    while True:
        pass


def hang() -> None:
    time.sleep(999)


def crash() -> None:
    ctypes.string_at(0)


def leave_children() -> None:
    """A child, one that ignores SIGTERM in a session of its own, and a daemon of two forks."""
    subprocess.Popen(["sleep", "999"])
    subprocess.Popen(SLEEPER, start_new_session=True)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(999)
        os._exit(0)


def crash_and_leave_children() -> None:
    leave_children()
    crash()


def start_many() -> None:
    for _ in range(100):
        subprocess.Popen(["sleep", "999"])
    time.sleep(999)


def print_much() -> None:
    print("x" * (2 << 20))
    for number in range(200_000):
        print(f"line {number}")
        sys.stderr.write(f"error {number}\n")


def fail() -> None:
    raise ValueError("boom")


def away() -> None:
    raise SinkUnavailableError("it is away", 7.0)


def leave() -> None:
    sys.exit(4)


def break_the_protocol() -> None:
    """Write on the socket itself, as code that wants to harm its parent might."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208
        if descriptor > 2:
            try:
                os.write(descriptor, b"\x00\x00\x00\x08{garbage")
            except OSError:
                continue


def kill_its_supervisor() -> None:
    subprocess.Popen(["sleep", "999"])
    os.kill(os.getppid(), 9)
    time.sleep(999)


HARMS: dict[str, Callable[[], object]] = {
    "memory": eat_memory,
    "children's memory": eat_memory_in_children,
    "spin": spin,
    "hang": hang,
    "exit": lambda: os._exit(3),
    "crash": crash,
    "children": leave_children,
    "crash with children": crash_and_leave_children,
    "many": start_many,
    "print": print_much,
    "fail": fail,
    "away": away,
    "leave": leave,
    "garbage": break_the_protocol,
    "supervisor": kill_its_supervisor,
    "nothing": lambda: None,
}


class IllSink:
    """Does harm in one of its calls."""

    def __init__(self, harm: str, call: str = "write") -> None:
        self._harm, self._call = harm, call

    def open(self, opening: Opening) -> Position | None:
        self._do("open")
        return None

    def write(self, changes: Sequence[Change]) -> None:
        self._do("write")

    def flush(self) -> Position | None:
        self._do("flush")
        return None

    def close(self) -> None:
        self._do("close")

    def _do(self, call: str) -> None:
        if call == self._call:
            HARMS[self._harm]()


class SpinningBehind(IllSink):
    """Spins on a thread, and writes well."""

    def open(self, opening: Opening) -> Position | None:
        threading.Thread(target=spin, daemon=True).start()
        return None

    def _do(self, call: str) -> None:
        pass


class Telling:
    """Refuses a row that is named `bad`, and says what it was given."""

    keeps_position = True
    follows_schemas = True

    def __init__(self, variable: str = "") -> None:
        self._variable = variable
        self._last: Position | None = None

    def open(self, opening: Opening) -> Position | None:
        print(f"variable: {os.environ.get(self._variable)}")
        print(f"stdin: {sys.stdin.read()!r}")
        return opening.position

    def write(self, changes: Sequence[Change]) -> None:
        for one in changes:
            if one.after is not None and one.after.get("name") == "bad":
                raise SinkRefusedError("not wanted", one)
            self._last = one.position
            print(one.op, dict(one.key), one.after, one.scn, one.transaction.gtid)

    def flush(self) -> Position | None:
        return self._last

    def unique_keys(self, source: str) -> list[tuple[str, ...]]:
        return [("mail",), (source, "x")]

    def close(self) -> None:
        print("closed")


class DyingCopy(ExactCopy):
    """An exact copy that dies about every fifth time, before or after what it commits."""

    def write(self, changes: Sequence[Change]) -> None:
        self._may_die()
        super().write(changes)
        self._may_die()

    def flush(self) -> Position | None:
        self._may_die()
        durable = super().flush()
        self._may_die()
        return durable

    def _may_die(self) -> None:
        if os.urandom(1)[0] < 12:
            crash_and_leave_children()


class DyingUntilMended(IllSink):
    """Does harm as long as there is no file `PATH.mended`; then it writes the keys to a file."""

    def __init__(self, harm: str, path: str) -> None:
        super().__init__(harm)
        self._path = Path(path)

    def write(self, changes: Sequence[Change]) -> None:
        if not Path(f"{self._path}.mended").exists():
            super().write(changes)
        with self._path.open("a") as file:
            file.writelines(f"{one.key['id']}\n" for one in changes)


class PoisonedCopy(UpsertCopy):
    """A copy that a row with `poison` kills."""

    def _apply(self, change: Change) -> None:
        if change.after is not None and change.after["item"] == "poison":
            crash()
        super()._apply(change)
