"""Several processes of one group on one machine: `databus client run --processes N`."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial

from databus.conf.settings import ClientSettings
from databus.daemon.parents import end_with_parent
from databus.schemas.errors import SettingsError

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.2
_START_AGAIN_S = 1.0
_STOP_S = 30.0


def run_processes(settings: ClientSettings, count: int) -> int:
    """Run this very command `count` times as members of a group; return the exit code.

    A process that is killed is started again. One that ends with an error stops them all, for the
    others would meet it next. SIGTERM and Ctrl-C stop all. Raises SettingsError.
    """
    if not settings.group:
        raise SettingsError("--processes: the settings name no `group` that shares the rows")
    if settings.http is not None and settings.http.port != 0:
        raise SettingsError(f"--processes: port {settings.http.port} is for one of them: use 0")
    is_ending = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: is_ending.set())
    command = without_processes(sys.argv[1:])
    running = [_start(command) for _ in range(count)]
    code = 0
    try:
        while not is_ending.wait(_LOOK_EVERY_S) and code == 0:
            for place, process in enumerate(running):
                ended = process.poll()
                if ended is not None and ended > 0:
                    code = ended
                elif ended is not None:
                    log.warning("process %d has ended; starting another one", process.pid)
                    is_ending.wait(_START_AGAIN_S)
                    running[place] = _start(command)
    finally:
        _stop(running)
    return code


def without_processes(arguments: list[str]) -> list[str]:
    """Return the command line for one of them."""
    kept, is_value = [], False
    for one in arguments:
        if not is_value and one != "--processes" and not one.startswith("--processes="):
            kept.append(one)
        is_value = one == "--processes"
    return kept


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    # Not in the terminal's process group: Ctrl-C reaches this process, which stops the others.
    # Killed, this process takes the others along, which give their partitions back.
    return subprocess.Popen(
        [sys.executable, "-m", "databus.cli.main", *command],
        start_new_session=True,
        preexec_fn=partial(end_with_parent, os.getpid(), signal.SIGTERM),
    )


def _stop(running: list[subprocess.Popen[bytes]]) -> None:
    for process in running:
        process.terminate()
    deadline_s = time.monotonic() + _STOP_S
    for process in running:
        try:
            process.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
