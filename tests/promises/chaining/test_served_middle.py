"""A chain whose middle has serving processes, each of which is killed and frozen."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path

from tests.promises.chaining.chain import insert, link, wait_for_equal
from tests.promises.running import RunningRelay, Shop, running, wait_until
from tests.promises.serving.processes import serving_pids

ROUNDS = 2


def test_the_third_has_every_window_whatever_is_killed_or_frozen_in_the_middle(
    shop: Shop, tmp_path: Path
) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    draw = random.Random(seed)
    sources = ["shop.orders"]
    first = RunningRelay(tmp_path / "first", shop.settings())
    more = {"serving_processes": 2}
    middle = link(tmp_path / "middle", first.url, sources=sources, options=more)
    third = link(tmp_path / "third", middle.url, sources=sources)
    ended = threading.Event()

    def write() -> None:
        number = 0
        while not ended.wait(0.002):
            number += 1
            shop.insert(number)
        insert(shop, first, number + 1)

    writer = threading.Thread(target=write)
    with running(first), running(middle), running(third):
        for one in (first, middle, third):
            one.start()
        writer.start()
        try:
            for _ in range(ROUNDS):
                wait_until(lambda: len(serving_pids(middle)) == 2, "both", middle.child.log_tail)
                for pid in serving_pids(middle):
                    time.sleep(draw.uniform(0, 0.2))
                    os.kill(pid, signal.SIGKILL)
                wait_until(lambda: len(serving_pids(middle)) == 2, "both", middle.child.log_tail)
                # What stands still is replaced after 5 s, unless it is the one that looks.
                frozen = [*serving_pids(middle), middle.child.pid]
                for pid in frozen:
                    os.kill(pid, signal.SIGSTOP)
                time.sleep(draw.uniform(0, 0.5))
                for pid in frozen:
                    os.kill(pid, signal.SIGCONT)
                time.sleep(draw.uniform(0, 0.2))
                middle.child.kill()
                time.sleep(draw.uniform(0, 0.3))
                middle.serve()
        finally:
            ended.set()
            writer.join()
        wait_for_equal(first, middle, third)
