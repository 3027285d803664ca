"""Section 3: the database is down, or capture has stopped; nothing may report health meanwhile."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial

from benchmarks.adversity.attacks.attack import SERVERS, Attack
from benchmarks.adversity.stage import Scene

SAYS_SO = "relay, bootstrap pair and client say so in time; then all goes on by itself"
# A closed connection is noticed at once, a silent one only by a timeout.
GONE_S, SILENT_S = 8.0, 30.0
BEFORE, DURING, AFTER = 40, 20, 40

Trouble = Callable[[Scene], AbstractContextManager[None]]


def unreachable_databases() -> Iterator[Attack]:
    """Yield attacks in which the database is unreachable, and one with a source in error."""
    troubles: tuple[tuple[str, Trouble, float], ...] = (
        ("database-killed", _killed, GONE_S),
        ("database-frozen", _frozen, SILENT_S),
        ("network-refuses", _refusing, GONE_S),
        ("network-swallows", _swallowing, SILENT_S),
    )
    for name, trouble, within_s in troubles:
        run = partial(_unreachable, name, trouble, within_s)
        yield Attack(name, 3, SAYS_SO, run, setting={"has_bootstrap": True})
        moment = partial(_for_a_moment, trouble)
        yield Attack(f"{name}-under-load", 3, "nothing is lost, all goes on", moment)
    yield Attack(
        "source-in-error",
        3,
        "relay, bootstrap pair and client say that it stopped, and what to do",
        _in_error,
        setting={"has_bootstrap": True},
    )
    yield Attack(
        "connections-cut-under-load",
        3,
        "nothing is lost, all goes on",
        _cut_again_and_again,
        SERVERS,
        is_short=True,
    )


def _unreachable(name: str, trouble: Trouble, within_s: float, scene: Scene) -> None:
    scene.start()
    scene.write(BEFORE)
    scene.await_all()
    scene.saw = ""
    with trouble(scene), scene.ill(name, "relay", "bootstrap", "client", within_s=within_s):
        pass
    scene.write(AFTER)
    scene.await_all()
    scene.await_well()


def _for_a_moment(trouble: Trouble, scene: Scene) -> None:
    scene.start()
    with scene.writer.flowing(150):
        scene.rest(scene.draw.uniform(0.3, 1.0))
        for _ in range(2):
            with trouble(scene):
                scene.rest(scene.draw.uniform(0.1, 2.0))
            scene.rest(scene.draw.uniform(0.3, 1.5))
    scene.await_all()
    scene.await_well()


def _cut_again_and_again(scene: Scene) -> None:
    scene.start()
    with scene.writer.flowing(150):
        for _ in range(6):
            scene.rest(scene.draw.uniform(0.1, 0.5))
            scene.the_proxy().cut()
    scene.await_all()
    scene.await_well()


def _in_error(scene: Scene) -> None:
    scene.start()
    scene.write(BEFORE)
    scene.await_all()
    before = scene.writer.committed
    session = scene.database.connect()
    session.execute("SET SESSION binlog_format = STATEMENT")
    session.execute("UPDATE orders SET note = note")  # what it changed is not in the log
    session.close()
    scene.saw = ""
    scene.await_stop("acknowledged_scns|binlog_format", after=before)
    with scene.ill("capture has stopped", "relay", "bootstrap", "client"):
        pass


@contextlib.contextmanager
def _killed(scene: Scene) -> Iterator[None]:
    scene.the_server().kill()
    yield
    scene.the_server().start()


@contextlib.contextmanager
def _frozen(scene: Scene) -> Iterator[None]:
    pid = scene.the_server().pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def _refusing(scene: Scene) -> Iterator[None]:
    proxy = scene.the_proxy()
    proxy.is_refusing = True
    proxy.cut()
    yield
    proxy.is_refusing = False


@contextlib.contextmanager
def _swallowing(scene: Scene) -> Iterator[None]:
    proxy = scene.the_proxy()
    proxy.is_swallowing = True
    yield
    # A network that comes back does not know the old connections.
    proxy.cut()
    proxy.is_swallowing = False
