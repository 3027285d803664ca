"""`databus run` as a process, a writer that never rests, and a client that keeps every row."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from databus.client import DatabusClient
from databus.demo.processes import Child, free_port, python_module, wait_until
from tests import PATIENCE_S

ROWS = 500


class Node:
    """`databus …` as a process in a folder, on free ports; `file` are its settings."""

    def __init__(self, folder: Path, *words: object) -> None:
        self.folder = folder
        self.port, self.bootstrap_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.bootstrap_url = f"http://127.0.0.1:{self.bootstrap_port}"
        self.file = folder / "relay.toml"
        self.child = Child("node", python_module("databus.cli.main", *words), folder)

    @property
    def said(self) -> str:
        """All that it has printed."""
        return self.child.log.read_text(encoding="utf-8") if self.child.log.exists() else ""

    def write(self, physical: str, pair: str = "", http: str = "") -> None:
        """Write the settings: those of the physical source, `[bootstrap]` and `[http]`."""
        self.file.write_text(
            f'data_dir = "data"\n[http]\nport = {self.port}\n{http}\n'
            f"[bootstrap]\nport = {self.bootstrap_port}\n{pair}\n"
            f"[[physical_sources]]\n{physical}\n",
            encoding="utf-8",
        )

    def with_ports(self, *words: object) -> Node:
        """Have the command take the free ports."""
        ports = ("--port", self.port, "--bootstrap-port", self.bootstrap_port)
        command = python_module("databus.cli.main", *words, *ports)
        self.child = Child("node", command, self.folder)
        return self

    def start(self) -> Node:
        """Start it, and wait until both servers listen."""
        before = self.said.count("the bootstrap server")
        self.child.start()
        self.wait_for(lambda: self.said.count("the bootstrap server") > before)
        return self

    def wait_for(self, condition: Callable[[], object]) -> None:
        """Wait for something; it may not end meanwhile."""

        def is_so() -> object:
            assert self.child.exit_code is None, self.said
            return condition()

        try:
            wait_until(is_so, PATIENCE_S, "the node")
        except TimeoutError:
            raise AssertionError(self.said) from None

    def health(self, url: str) -> tuple[int, Any]:
        """Return status and body of a server's /health."""
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=PATIENCE_S) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, json.loads(refused.read())

    def statuses(self) -> dict[str, str]:
        """Return the status of each source in the store; none while the pair starts again."""
        try:
            _, body = self.health(self.bootstrap_url)
        except OSError:
            return {}
        return {
            name: one["status"]
            for physical in body["physicalSources"].values()
            for name, one in physical["sources"].items()
        }

    def ended(self) -> int:
        """Wait for its end; return the exit code."""
        return self.child.wait(PATIENCE_S)


@contextmanager
def made(folder: Path) -> Iterator[Node]:
    """Make `databus run` of `relay.toml` in a folder, not started; it is stopped at the end."""
    node = Node(folder, "run", "-c", folder / "relay.toml")
    try:
        yield node
    finally:
        node.child.stop(20)


@contextmanager
def started(folder: Path, uri: str, *words: object) -> Iterator[Node]:
    """Type `databus quickstart`, and stop it at the end; `start` waits until it serves."""
    command = ("quickstart", uri, "--yes", "--folder", folder / "databus", *words)
    node = Node(folder).with_ports(*command)
    try:
        yield node
    finally:
        node.child.stop(20)


def sqlite_source(path: Path) -> str:
    """Return the settings of a shop in SQLite."""
    return f'name = "shop"\nuri = "sqlite:{path}"\nsources = ["shop.orders"]'


def make_shop(folder: Path, rows: int = ROWS) -> Path:
    """Make an SQLite shop with rows from before."""
    path = folder / "shop.db"
    with closing(sqlite3.connect(path)) as shop, shop:
        shop.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, status TEXT)")
        shop.executemany("INSERT INTO orders VALUES (?, 'old')", [(n,) for n in range(rows)])
    return path


class SqliteOrders:
    """The orders of an SQLite shop."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, statement: str) -> None:
        with closing(sqlite3.connect(self._path, timeout=PATIENCE_S)) as shop, shop:
            shop.execute(statement)

    def rows(self) -> dict[int, str]:
        with closing(sqlite3.connect(self._path, timeout=PATIENCE_S)) as shop:
            return dict(shop.execute("SELECT id, status FROM orders").fetchall())


@contextmanager
def writing(write: Callable[[str], object]) -> Iterator[None]:
    """Insert, update and delete orders all the time, until the end of the block."""
    stopped = threading.Event()

    def work() -> None:
        number = 10_000
        while not stopped.is_set():
            write(f"INSERT INTO orders VALUES ({number}, 'new')")
            write(f"UPDATE orders SET status = 'sent {number}' WHERE id = {number % ROWS}")
            if number % 5 == 0:
                write(f"DELETE FROM orders WHERE id = {(number * 7) % ROWS}")
            number += 1
            time.sleep(0.005)

    thread = threading.Thread(target=work, name="writer")
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def read_until_equal(
    node: Node, source: str, wanted: Callable[[], dict[int, str]], **options: Any
) -> dict[int, str]:
    """Consume from the beginning until a copy equals the table; return the copy.

    The copy is of what came: a lost row would be missing, and the wait in vain.
    """
    copy: dict[int, str] = {}
    end_s = time.monotonic() + PATIENCE_S
    client = DatabusClient(
        [node.url],
        bootstrap_servers=[node.bootstrap_url],
        start="beginning",
        wait_ms=200,
        back_off={"first_s": 0.02, "max_s": 0.2},
        **options,
    )
    with client:
        for window in client.windows(source):
            for event in window.events:
                if event.is_delete:
                    copy.pop(int(event.wire_key), None)
                else:
                    copy[int(event.wire_key)] = event.row["status"]
            if copy == wanted() or time.monotonic() > end_s:
                return copy
    return copy
