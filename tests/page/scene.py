"""A shop that is written to all the time, a relay with a small ring, a pair, consumers."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from databus.demo.processes import Child, python_module
from tests import PATIENCE_S
from tests.promises.bootstrapping import RunningPair, RunningServer, serving
from tests.promises.running import RunningRelay, Shop

RING_BYTES = 256 << 10
ORDERS = 1500
WRITES_PER_S = 40  # each a transaction with ROWS rows
ROWS = 2
NOTE = "the bell is broken, please knock"
STATES = ("packed", "sent", "delivered", "paid")


class Writer:
    """Changes orders on a thread of its own, at a steady rate; counts what it committed."""

    def __init__(self, path: Path) -> None:
        self.rows = 0
        self._path = path
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="writer")

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, and wait for it."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        with closing(sqlite3.connect(self._path, isolation_level=None, timeout=PATIENCE_S)) as shop:
            turn = 0
            while not self._stop.wait(1 / WRITES_PER_S):
                turn += 1
                ids = [(turn * ROWS + n) % ORDERS for n in range(ROWS)]
                shop.execute("BEGIN IMMEDIATE")
                shop.executemany(
                    "UPDATE orders SET note = ? WHERE id = ?",
                    [(f"{STATES[turn % len(STATES)]}; {NOTE}", number) for number in ids],
                )
                shop.execute("COMMIT")
                self.rows += ROWS


class ConsumerProcess:
    """A consumer in a process of its own; `set_pace(seconds)` says how long a row takes it."""

    def __init__(self, folder: Path, name: str, **settings: Any) -> None:
        self.name = name
        self._pace = folder / f"{name}.pace"
        file = folder / f"{name}.json"
        small = {"fetch_bytes": 8 << 10, "buffer_bytes": 16 << 10, "checkpoint_every_s": 0}
        options = {"name": name, "report_every_s": 0.5, "checkpoint_dir": str(folder / name)}
        file.write_text(json.dumps({**small, **options, **settings}), "utf-8")
        self.set_pace(0)
        command = python_module("tests.page.consumer_process", file, self._pace)
        self.child = Child(name, command, folder)

    def set_pace(self, seconds: float) -> None:
        """Take so long for each row from now on."""
        new = self._pace.with_suffix(".new")
        new.write_text(str(seconds), "utf-8")
        new.replace(self._pace)


class Scene:
    """All of it, running."""

    def __init__(
        self, folder: Path, relay: RunningRelay, server: RunningServer, shop: Shop
    ) -> None:
        self.relay = relay
        self.writer = Writer(shop.path)
        self._folder = folder
        self._server = server

    def consumer(self, name: str, **settings: Any) -> ConsumerProcess:
        """Make a consumer of the orders; start its `child` yourself."""
        places = {"relays": [self.relay.url], "bootstrap_servers": [self._server.url]}
        wanted = {"sources": ["shop.orders"], "start": "earliest"}
        return ConsumerProcess(self._folder, name, **(places | wanted | settings))


@contextmanager
def playing(folder: Path, **http: Any) -> Iterator[Scene]:
    """Set the scene; consumers that were started are the caller's to stop."""
    with ExitStack() as stack:
        shop = Shop(folder / "shop.db")
        stack.callback(shop.close)
        shop.insert(*range(ORDERS), note=NOTE, each=50)
        settings = shop.settings(ring_bytes=RING_BYTES)
        relay = RunningRelay(folder, settings, http=http)
        stack.callback(relay.child.stop)
        relay.start()
        pair = RunningPair(folder, relay)
        stack.callback(pair.producer.stop)
        pair.start()
        pair.seed()
        server = pair.server()
        stack.enter_context(serving(server))
        scene = Scene(folder, relay, server, shop)
        stack.callback(scene.writer.stop)
        yield scene
