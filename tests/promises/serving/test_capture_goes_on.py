"""Capture never waits for a process that serves: not for a lock, a buffer or an answer of it."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from databus.schemas.checkpoint import Checkpoint
from tests.promises.running import RunningRelay, wait_until
from tests.promises.serving.processes import (
    KeptConnection,
    ask_capturer,
    serving_pids,
    stream_path,
)

READERS, STOPS = 6, 12
WINDOWS = 200  # that are captured while nobody serves


def newest(relay: RunningRelay) -> int:
    """Return the newest window, as the capturing process says."""
    scn: int = ask_capturer(relay, "/bufferInfo/inbound/gen/0").json()["maxScn"]
    return scn


@contextmanager
def reading(relay: RunningRelay) -> Iterator[None]:
    """Let readers read the oldest windows at full speed, and others wait for the newest."""
    ended = threading.Event()

    def read(number: int) -> None:
        connection = KeptConnection(relay)
        while not ended.is_set():
            place = Checkpoint.flexible() if number % 2 else Checkpoint.at(newest(relay))
            connection.get(stream_path(place, wait=100, follow="true"))
        connection.close()

    threads = [threading.Thread(target=read, args=(number,)) for number in range(READERS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def test_capture_goes_on_while_all_who_serve_stand_still_wherever_they_are(
    flooded: RunningRelay,
) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    draw = random.Random(seed)
    pids = serving_pids(flooded)
    with reading(flooded):
        for _ in range(STOPS):
            time.sleep(draw.uniform(0.0, 0.1))  # somewhere in the middle of serving
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            try:
                before = newest(flooded)
                wait_until(lambda n=before: newest(flooded) > n + WINDOWS, "more windows")  # type: ignore[misc]
                # Nobody has helped: they still stand where they were.
                assert {psutil.Process(pid).status() for pid in pids} == {psutil.STATUS_STOPPED}
            finally:
                for pid in pids:
                    os.kill(pid, signal.SIGCONT)
    assert serving_pids(flooded) == pids
