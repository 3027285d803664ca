"""Two processes of `databus bootstrap run` with `fill_lease_s` on one store, and a writer."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from random import Random
from typing import Any

from click.testing import CliRunner

from databus.bootstrap.store.store import Store
from databus.bootstrap.store.values import SourceState
from databus.cli.main import main
from databus.demo.processes import Child, free_port, python_module
from tests import PATIENCE_S
from tests.promises.running import RunningRelay, Shop, running, to_toml, wait_until

TTL_S = 3.0
SOURCE = "shop.orders"
RING_BYTES = 32 << 20  # a takeover must not take the producer out of the ring
_LOCKS = Path("/proc/locks")


class Server:
    """One of the two processes; it keeps its port when it is started again."""

    def __init__(self, folder: Path, name: str, relay: RunningRelay, **options: Any) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.config = folder / f"{name}.toml"
        settings = {
            "data_dir": str(folder / "pair"),
            "relays": [relay.url],
            "fill_lease_s": TTL_S,
            "back_off": {"first_s": 0.05, "max_s": 0.5},
        }
        text = to_toml(settings | options, {"port": self.port}, relay.physical)
        self.config.write_text(text, "utf-8")
        command = python_module("databus.cli.main", "bootstrap", "run", "-c", self.config)
        self.child = Child(name, command, folder)

    def get(self, path: str) -> bytes:
        with contextlib.closing(
            HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        ) as connection:
            connection.request("GET", path)
            body: bytes = connection.getresponse().read()
            return body

    def store(self) -> dict[str, Any]:
        """Return what its API says of the store."""
        found: dict[str, Any] = json.loads(self.get("/api/v1/physicalSources/shop"))
        return found

    def is_active(self) -> bool:
        """Say whether it answers, and fills the store."""
        try:
            return bool(self.lease()["role"] == "active")
        except OSError:
            return False

    def lease(self) -> dict[str, Any]:
        found: dict[str, Any] = self.store()["lease"]
        return found

    def freeze(self) -> None:
        """Stop it, and wait until it stands still."""
        os.kill(self.child.pid, signal.SIGSTOP)
        stat = Path(f"/proc/{self.child.pid}/stat")
        wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "a stop")

    def wake(self) -> None:
        os.kill(self.child.pid, signal.SIGCONT)


class TwoServers:
    """Two servers, the relay that both read, and what was measured."""

    def __init__(
        self, folder: Path, relay: RunningRelay, coordinators: Sequence[str], **options: Any
    ) -> None:
        self.path = folder / "pair" / "shop.db"
        self.relay = relay
        self.servers = [
            Server(folder, name, relay, **options, coordinator=coordinator)
            for name, coordinator in zip(("one", "two"), coordinators, strict=True)
        ]
        self.takeovers_s: list[float] = []

    def active(self) -> Server:
        """Wait for the server that fills the store."""
        found: list[Server] = []

        def is_there() -> bool:
            found[:] = [server for server in self.servers if server.is_active()]
            return bool(found)

        wait_until(is_there, "an active server", self.tell, PATIENCE_S)
        return found[0]

    def other(self, server: Server) -> Server:
        (other,) = (one for one in self.servers if one is not server)
        return other

    def start(self, server: Server) -> None:
        server.child.start()
        wait_until(lambda: self._answers(server), server.child.name, server.child.log_tail)

    def kill_active(self) -> Server:
        """Kill the active one, wait until the other one is, and start it again; return it."""
        server = self.active()
        self.wait_for_standby(self.other(server))
        server.child.kill()
        self.wait_for_takeover(self.other(server))
        self.start(server)
        return server

    def wait_for_standby(self, server: Server) -> None:
        """Wait until a server knows who the owner is: then it would take over."""
        wait_until(lambda: server.lease()["owner"] != "", "a standby", self.tell)

    def wait_for_role(self, server: Server, role: str) -> None:
        wait_until(lambda: server.lease()["role"] == role, role, self.tell)

    def wait_for_takeover(self, server: Server) -> None:
        """Wait until a server is active, and note how long that took."""
        began_s = time.monotonic()
        wait_until(server.is_active, "a takeover", self.tell, PATIENCE_S)
        self.takeovers_s.append(time.monotonic() - began_s)

    def freeze_between_writes(self, server: Server) -> None:
        """Freeze a server while it is not in a write, nor in the checkpoint behind one."""
        shm = f":{Path(f'{self.path}-shm').stat().st_ino} "
        while True:
            server.freeze()
            ours = f"WRITE {server.child.pid} "
            held = [line for line in _LOCKS.read_text().splitlines() if shm in line]
            if not [line for line in held if ours in line]:
                return
            server.wake()
            time.sleep(0.01)

    def state(self) -> SourceState:
        with contextlib.closing(Store.open(self.path, is_read_only=True)) as store:
            return store.source(SOURCE)

    def position(self) -> int:
        with contextlib.closing(Store.open(self.path, is_read_only=True)) as store:
            return store.position().scn

    def wait_until_equal(self, shop: Shop) -> None:
        """Wait until the store has what the source has, then compare every row."""
        self.relay.wait_for_scn(self._newest_scn(shop))
        wait_until(
            lambda: self.state().status == "active" and self.position() >= self.relay.max_scn(),
            "the store to be as far",
            lambda: (self.state(), self.position(), self.tell()),
            PATIENCE_S,
        )
        words = ["bootstrap", "verify", "-c", str(self.servers[0].config), "--json"]
        found = CliRunner().invoke(main, words, prog_name="databus")
        assert json.loads(found.stdout)[SOURCE]["isSame"], found.stdout

    def tell(self) -> str:
        return "\n".join(
            f"{one.child.name} {one.child.exit_code}: {one.child.log_tail()}"
            for one in self.servers
        )

    def show(self, what: str) -> None:
        """Print the takeover times."""
        shown = ", ".join(f"{one:.2f}" for one in self.takeovers_s)
        print(f"{what}: takeovers after {shown} s, with a lease of {TTL_S:g} s")

    def _answers(self, server: Server) -> bool:
        assert server.child.exit_code is None, server.child.log_tail()
        try:
            return server.get("/admin") == b"GOOD"
        except OSError:
            return False

    def _newest_scn(self, shop: Shop) -> int:
        """Write a row and return the SCN that the relay gives it."""
        before = self.relay.max_scn()
        shop.connection.execute("INSERT INTO orders (note) VALUES ('the end')")
        wait_until(lambda: self.relay.max_scn() > before, "the last window")
        return self.relay.max_scn()


@contextmanager
def two_servers(
    folder: Path, shop: Shop, rows: int, coordinators: Sequence[str] = ("", ""), **options: Any
) -> Iterator[TwoServers]:
    """Run a relay of a shop with rows, and two servers of one store."""
    shop.insert(*range(rows), note="n" * 100, each=200)
    relay = RunningRelay(folder, shop.settings(ring_bytes=RING_BYTES), coordinator=coordinators[0])
    with running(relay.start()), ExitStack() as ended:
        pair = TwoServers(folder, relay, coordinators, **options)
        for server in pair.servers:
            ended.callback(server.child.kill)
        for server in pair.servers:
            pair.start(server)
        yield pair


class Writer:
    """Changes the shop until the block ends, on a connection of its own."""

    def __init__(self, shop: Shop, rows: int, random: Random) -> None:
        self._shop, self._rows, self._random = Shop(shop.path), rows, random
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self.transactions = 0

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join()
        self._shop.close()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while not self._ended.wait(0.01):
                with self._shop.transaction():
                    for _ in range(self._random.choice((1, 2, 5))):
                        self._shop.connection.execute(*self._statement())
                self.transactions += 1
        except BaseException as error:
            self._error = error

    def _statement(self) -> tuple[str, tuple[int, ...]]:
        key, number = self._random.randrange(self._rows), self._random.randrange(10**6)
        return self._random.choice(
            (
                ("INSERT INTO orders (note) VALUES ('new ' || ?)", (number,)),
                ("UPDATE orders SET note = 'changed ' || ? WHERE id = ?", (number, key)),
                ("UPDATE orders SET note = ? WHERE id BETWEEN ? AND ? + 9", (number, key, key)),
                ("DELETE FROM orders WHERE id = ?", (key,)),
                ("REPLACE INTO orders VALUES (?, 'again ' || ?)", (key, number)),
            )
        )
