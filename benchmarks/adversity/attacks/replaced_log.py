"""Section 1: the source's log is replaced by another one.

A transaction of the new log may end at the old position: capture must never continue after it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

from benchmarks.adversity.attacks.attack import Attack
from benchmarks.adversity.servers import SavedData
from benchmarks.adversity.stage import Scene
from benchmarks.adversity.writer import create_table

STOPS = "capture stops, naming both logs and the ways on; nothing of the new log is delivered"
BEFORE, AFTER = 60, 120
# The remedies, of which the message must name one.
WAYS = "epoch|start anew|start over|begin anew|move its ring"
SOON_S = 10.0  # a server's silence must be noticed within this time
QUIET_S = 1.5  # time in which a forbidden event would arrive

# The action before anything is captured; returns the later action.
Prepare = Callable[[Scene], Callable[[], None]]


def replaced_logs() -> Iterator[Attack]:
    """Yield the matrix: kind of replacement, state of the relay, transaction sizes, kind of log."""
    hows: dict[str, Prepare] = {"reset": _reset, "another": _another, "restored": _restored}
    for how, when in product(hows, ("down", "paused", "streaming", "rotating")):
        for sizes, options in (("equal", {}), ("random", {"binlog-checksum": "NONE"})):
            yield Attack(
                f"log-{how}-while-{when}-{sizes}",
                1,
                STOPS,
                partial(_replace, hows[how], when),
                setting={"is_equal": sizes == "equal", "server_options": options},
            )
    yield Attack(
        "log-reset-while-streaming-quietly",
        1,
        f"{STOPS}, and within 10 s nobody calls the relay well",
        partial(_reset_quietly, is_frozen=False),
    )
    yield Attack(
        "log-reset-while-frozen-quietly",
        1,
        f"{STOPS}, and within 10 s nobody calls the relay well",
        partial(_reset_quietly, is_frozen=True),
    )


def _reset_quietly(scene: Scene, *, is_frozen: bool) -> None:
    """Reset the log and write a few rows: it stays shorter than the part already read.

    The server keeps sending heartbeats to a client that waits at the old position.
    """
    scene.start()
    scene.write(BEFORE)
    scene.await_all()
    before = scene.writer.committed
    pid = scene.relay.pid
    if is_frozen:
        os.kill(pid, signal.SIGSTOP)
    scene.execute("RESET MASTER")
    scene.writer.begin_another_history()
    scene.write(2)
    if is_frozen:
        os.kill(pid, signal.SIGCONT)
    scene.saw = ""
    scene.await_stop("binlog", WAYS, after=before, patience_s=SOON_S)
    scene.write(2)
    scene.rest(QUIET_S)
    scene.check_nothing_came(before)


def _replace(prepare: Prepare, when: str, scene: Scene) -> None:
    _align(scene)
    scene.start()
    replace = prepare(scene)
    scene.write(BEFORE)
    if when == "rotating":
        scene.execute("FLUSH BINARY LOGS")
        scene.write(3)
    scene.await_all()
    before = scene.writer.committed
    if when == "down":
        scene.stop_relay()
    elif when == "paused":
        scene.post("pause")
        scene.wait(lambda: scene.state() == "paused", "the pause")
    replace()
    scene.writer.begin_another_history()
    if when == "rotating":
        scene.execute("FLUSH BINARY LOGS")
    scene.write(AFTER)
    if when == "down":
        scene.relay.start()
    elif when == "paused":
        scene.post("resume")
    scene.saw = ""
    scene.await_stop("binlog", WAYS, after=before)
    scene.write(5)
    scene.rest(QUIET_S)
    scene.check_nothing_came(before)


def _align(scene: Scene) -> None:
    """Start the log with the transactions, so that those of two logs end at the same positions."""
    scene.execute("RESET MASTER")


def _reset(scene: Scene) -> Callable[[], None]:
    return partial(scene.execute, "RESET MASTER")


def _another(scene: Scene) -> Callable[[], None]:
    def replace() -> None:
        other = scene.new_server("other", **{"server-id": 2})
        scene.writer.move_to(scene.database_of(other))
        scene.execute(create_table(scene.dialect))
        _align(scene)
        scene.the_proxy().target = other.port
        scene.the_proxy().cut()

    return replace


def _restored(scene: Scene) -> Callable[[], None]:
    # A backup is of a server that was stopped: it begins the same file again as the one after.
    scene.write(BEFORE // 2)
    scene.await_all()
    scene.writer.close()
    saved = SavedData(scene.the_server(), scene.folder / "saved")

    def replace() -> None:
        scene.writer.close()
        saved.restore()

    return replace
