"""Five states of a relay, each with its real cause: well, and four that need somebody.

Each is a context that gives the page's URL once the relay is in that state.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from databus.demo.private_mariadb import PrivateMariaDB
from tests.full_disk import small_disk
from tests.page.scene import Scene, playing
from tests.promises.running import (
    Remembering,
    RunningRelay,
    Shop,
    consuming,
    mysql_source,
    new_database,
    running,
    sources_of,
    wait_until,
)

SMALL_RING_BYTES = 64 << 10
SLOW_S = 50.0  # for one row: this consumer stands still
A_FIFTH = 0.2  # of the ring is left: it is falling, whatever is written


class State(NamedTuple):
    """A state, its cause, and what the page has to say of it, in words and in a kind of colour."""

    name: str
    caused: Callable[[Path], AbstractContextManager[str]]
    kind: str
    words: tuple[str, ...]
    parts: tuple[tuple[str, str], ...]  # of the overview


@contextmanager
def well(folder: Path) -> Iterator[str]:
    """A relay, a consumer, rows."""
    with ExitStack() as stack:
        shop = Shop(folder / "shop.db")
        stack.callback(shop.close)
        relay = stack.enter_context(running(RunningRelay(folder, shop.settings()).start()))
        consumer = Remembering()
        options = {"name": "billing", "report_every_s": 0.2}
        stack.enter_context(consuming([relay.url], ["shop.orders"], consumer, **options))
        shop.insert(*range(100), each=4)
        wait_until(lambda: len(consumer.events) == 100, "all rows")
        yield relay.url


@contextmanager
def database_gone(folder: Path) -> Iterator[str]:
    """A MariaDB that is killed while it is captured."""
    with (
        PrivateMariaDB(options={"binlog-row-metadata": "FULL"}) as server,
        new_database(server, "shop") as database,
        running(RunningRelay(folder, mysql_source(database, folder)).start()) as relay,
        consuming([relay.url], sources_of(database)[:1], Remembering(), name="billing"),
    ):
        database.run("INSERT INTO orders VALUES (1, 'a', 1)")
        wait_until(lambda: relay.max_scn() > 0, "the row")
        server.kill()
        wait_until(lambda: relay.get("/health").status != 200, "trouble")
        yield relay.url
        server.restart()


@contextmanager
def stopped_by_an_error(folder: Path) -> Iterator[str]:
    """A transaction that is larger than the ring."""
    shop = Shop(folder / "shop.db")
    settings = shop.settings(ring_bytes=SMALL_RING_BYTES)
    with running(RunningRelay(folder, settings).start()) as relay:
        shop.insert(1)
        shop.insert(*range(2, 40), note="x" * 4096, each=100)
        shop.close()
        wait_until(lambda: b'"error"' in relay.get("/health").body, "the error", relay.tell)
        yield relay.url


@contextmanager
def consumer_falling(folder: Path) -> Iterator[str]:
    """A consumer that stands still on a small ring, which is written on."""
    with playing(folder) as scene:
        consumer = scene.consumer("billing", bootstrap_servers=[], buffer_bytes=8 << 20)
        consumer.set_pace(SLOW_S)
        consumer.child.start()
        try:
            scene.writer.start()
            wait_until(lambda: _share_left(scene, "billing") < A_FIFTH, "it to fall")
            scene.writer.stop()
            yield scene.relay.url
        finally:
            consumer.child.kill()


def _share_left(scene: Scene, name: str) -> float:
    clients = scene.relay.get("/api/v1/clients").json()["clients"]
    shares = [p["edgeShare"] for c in clients if c["name"] == name for p in c["positions"]]
    return min((share for share in shares if share is not None), default=1.0)


@contextmanager
def disk_full(folder: Path) -> Iterator[str]:
    """A relay log on a small disk that is full."""
    with pytest.MonkeyPatch.context() as patch, small_disk(folder / "disk", patch) as disk:
        if not disk.folder.is_mount():
            pytest.fail("no file system may be mounted here: run it as root, as the CI does")
        physical = {
            "name": "shop",
            "uri": "generator:?rate=4000&rows=3",
            "sources": ["shop.orders", "shop.people"],
            "ring_bytes": SMALL_RING_BYTES,
            "log": {"dir": str(disk.folder / "log"), "segment_bytes": 64 << 10},
        }
        with running(RunningRelay(folder, physical)) as relay:
            relay.serve()
            wait_until(lambda: disk.says.encode() in relay.get("/health").body, "the full disk")
            yield relay.url
            grow = ["mount", "-o", "remount,size=64m", str(disk.folder)]
            subprocess.run(grow, check=True, capture_output=True)


STATES = (
    State(
        "well",
        well,
        "well",
        ("All is well: 1 database connected, 1 table captured, 1 consumer in no danger.",),
        (("Database", "connected"), ("Relay", "ok"), ("Consumers", "1 live")),
    ),
    State(
        "database-gone",
        database_gone,
        "bad",
        ("shop: the database does not answer", "next try in", "Start the database"),
        (("Database", "unreachable"), ("Relay", "ok"), ("Consumers", "1 waiting")),
    ),
    State(
        "stopped-by-an-error",
        stopped_by_an_error,
        "bad",
        ("shop: capture is stopped by an error", "ring_bytes", "Do what the text says"),
        (("Database", "not read"), ("Relay", "error"), ("Consumers", "none")),
    ),
    State(
        "consumer-falling",
        consumer_falling,
        "bad",
        ("billing is about to be overwritten", "% left", "Look at its callbacks"),
        (("Database", "connected"), ("Relay", "ok"), ("Consumers", "1 falling · 1 live")),
    ),
    State(
        "disk-full",
        disk_full,
        "bad",
        ("shop: the relay log cannot be written", "the disk is full", "make room"),
        (("Database", "not read"), ("Relay", "retrying"), ("Consumers", "none")),
    ),
)
