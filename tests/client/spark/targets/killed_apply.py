"""Apply a source's log to a target in processes that kill themselves, mostly in mid-apply.

    python -m tests.client.spark.targets.killed_apply <target URI> <seed>

Prints how many were killed. Forks before any library has started a thread, for
importing them all costs a second.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading

import pyarrow as pa

from databus.client.spark.targets.changes import changes_of
from databus.client.spark.targets.target import open_target
from tests.client.spark.changing_source import ChangingSource, batch_of

APP = "killed"
WINDOWS_PER_BATCH = 4
BATCHES = 6
# How long a batch may take at most until the process dies; a bit longer after each death,
# so that a machine that has other things to do gets to the end, too.
LONGEST_LIFE_S = 0.001
GROWTH = 1.4


def a_source(seed: int) -> ChangingSource:
    """Return a source with a log; the same for the same seed."""
    source = ChangingSource("shop.person", "shop", random.Random(seed))
    for _ in range(BATCHES * WINDOWS_PER_BATCH):
        source.commit()
    return source


def batches_of(source: ChangingSource) -> list[pa.Table]:
    """Cut the log into batches."""
    starts = range(0, source.scn, WINDOWS_PER_BATCH)
    return [
        batch_of(change for window in source.log[at : at + WINDOWS_PER_BATCH] for change in window)
        for at in starts
    ]


def apply_all(uri: str, seed: int, lives: random.Random, longest_s: float) -> None:
    """Apply the last batch again and what comes after it; ends by SIGKILL, or with all done."""
    batches = batches_of(a_source(seed))
    target = open_target(uri, ["id"])
    for number in range(target.applied(APP) or 0, len(batches)):
        death = threading.Timer(lives.uniform(0, longest_s), os.kill, (os.getpid(), signal.SIGKILL))
        changes = changes_of(batches[number], ["id"])
        death.start()
        target.apply(APP, number, changes)
        death.cancel()
    target.close()


def main(uri: str, seed: int) -> int:
    """Start process after process until all is applied; return how many were killed."""
    lives = random.Random(seed)
    killed = 0
    while True:
        life = random.Random(lives.random())
        child = os.fork()
        if not child:
            apply_all(uri, seed, life, LONGEST_LIFE_S * GROWTH**killed)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status == 0:
            return killed
        assert os.WTERMSIG(status) == signal.SIGKILL, status
        killed += 1


if __name__ == "__main__":
    print(main(sys.argv[1], int(sys.argv[2])))
