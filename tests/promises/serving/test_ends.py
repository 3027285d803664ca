"""What happens when one of a relay's processes is killed, stands still, or is told to end."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import psutil

from databus.schemas.checkpoint import Checkpoint
from tests.promises.running import Remembering, RunningRelay, Shop, consuming, wait_until
from tests.promises.serving.processes import (
    KeptConnection,
    capturer,
    metric,
    rows_in,
    serving_pids,
    stream_path,
)


def serving_status(served: RunningRelay) -> Any:
    return served.get("/health").json()["servingProcesses"]


def test_a_killed_process_drops_its_connections_and_nothing_else(
    served: RunningRelay, shop: Shop
) -> None:
    shop.insert(*range(10))
    wait_until(lambda: rows_in(served) == 10, "the rows", served.tell)
    kept = {pid: [] for pid in serving_pids(served)}  # type: ignore[var-annotated]
    while not all(kept.values()):
        connection = KeptConnection(served)
        assert connection.get(stream_path()).status == 200
        kept[connection.process(served)].append(connection)
    victim, other = kept
    os.kill(victim, signal.SIGKILL)
    assert all(one.get(stream_path()).status == 200 for one in kept[other])

    def is_replaced() -> bool:
        now = serving_pids(served)
        return len(now) == 2 and victim not in now

    wait_until(is_replaced, "another process", served.tell)
    assert "it is started again" in served.child.log_tail()
    # One that ended once, and serves again, is no news any more.
    wait_until(lambda: serving_status(served)["running"] == 2, "both", served.tell)
    assert (serving_status(served)["restarts"], serving_status(served)["warning"]) == (1, "")
    assert served.get("/health").status == 200
    os.kill(next(pid for pid in serving_pids(served) if pid != other), signal.SIGKILL)
    wait_until(lambda: serving_status(served)["restarts"] == 2, "its end", served.tell)
    assert "serving process" in serving_status(served)["warning"]
    wait_until(lambda: serving_status(served)["running"] == 2, "both", served.tell)
    assert "2 ends one soon after the other" in serving_status(served)["warning"]
    # What connects meanwhile waits in its socket, and is served.
    assert all(served.get(stream_path()).status == 200 for _ in range(20))
    for one in (one for group in kept.values() for one in group):
        one.close()


def test_a_process_that_stands_still_is_replaced(served: RunningRelay) -> None:
    victim = serving_pids(served)[0]
    os.kill(victim, signal.SIGSTOP)
    wait_until(lambda: not psutil.pid_exists(victim), "its end", served.child.log_tail)
    wait_until(lambda: len(serving_pids(served)) == 2, "another process", served.child.log_tail)
    assert "stood still" in served.child.log_tail()


def test_a_client_misses_nothing_and_gets_nothing_twice_while_processes_are_killed(
    served: RunningRelay, shop: Shop
) -> None:
    seen, ended = Remembering(), threading.Event()

    def write() -> None:
        number = 0
        while not ended.wait(0.01):
            number += 1
            shop.insert(number)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with consuming([served.url], ["shop.orders"], seen):
            for _ in range(3):
                # Not while it is started: those are killed that serve.
                wait_until(lambda: len(serving_pids(served)) == 2, "both", served.child.log_tail)
                for pid in serving_pids(served):
                    os.kill(pid, signal.SIGKILL)
            ended.set()
            writer.join()
            wait_until(lambda: len(seen.rows("shop.orders")) == len(shop.rows()), "all rows")
    finally:
        ended.set()
        writer.join()
    assert [event.wire_key for event in seen.events] == sorted(shop.rows())
    assert not seen.rollbacks


def test_all_end_with_a_killed_capturing_process(served: RunningRelay) -> None:
    pids = serving_pids(served)
    os.kill(pids[0], signal.SIGSTOP)  # even one that stands still
    served.child.kill()
    wait_until(lambda: not any(map(psutil.pid_exists, pids)), "their end")


def test_a_frozen_capturing_process_shows_in_health_and_readers_go_on(
    served: RunningRelay, shop: Shop
) -> None:
    for number in range(2):
        shop.insert(number)
        wait_until(lambda n=number: rows_in(served) == n + 1, "a row", served.tell)  # type: ignore[misc]
    begin = next(iter(served.windows()))
    process = capturer(served)
    process.suspend()
    try:
        answer = served.get("/health")  # held until it is known, at most a few seconds
        assert answer.status == 503
        assert "stood still" in answer.json()["problem"]
        assert served.get("/sources").status == 503
        read = served.get(stream_path(Checkpoint.at(begin)))
        assert read.status == 200
        assert len(read.body) > 100
    finally:
        process.resume()
    wait_until(lambda: served.get("/health").status == 200, "health", served.child.log_tail)
    assert "Traceback" not in served.child.log_tail()


def test_held_requests_are_answered_when_the_relay_is_told_to_end(
    served: RunningRelay, shop: Shop
) -> None:
    shop.insert(1)
    wait_until(lambda: rows_in(served) == 1, "the row", served.tell)
    newest, answers = served.max_scn(), []

    def hold() -> None:
        answers.append(served.get(stream_path(Checkpoint.at(newest), wait=25_000)).status)

    threads = [threading.Thread(target=hold) for _ in range(6)]
    for thread in threads:
        thread.start()
    wait_until(
        lambda: metric(served, 'databus_relay_held_requests{physical_source="shop"}') == 6,
        "held requests",
        served.tell,
    )
    pids = serving_pids(served)
    os.kill(capturer(served).pid, signal.SIGTERM)
    assert served.end() == 0
    for thread in threads:
        thread.join()
    assert answers == [200] * 6
    assert not any(map(psutil.pid_exists, pids))
