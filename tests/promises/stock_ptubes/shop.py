"""A database, and a relay of it for the stock client."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

from benchmarks.ptubes_clients.sdk import PARTITIONS, StockSdk
from databus.conf.loading import build_settings
from databus.conf.settings import RelaySettings
from databus.relay.relay import Relay
from databus.relay.service import make_service
from databus.relay.serving.ptubes.door import PtubesDoor
from tests import PATIENCE_S
from tests.relay.fakes import ServiceThread, wait_until

TABLES = "main.orders,main.idle"


class Shop:
    """A database, and a relay of it that can be ended and started again at the same port."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._port = folder, 0
        self.database = sqlite3.connect(folder / "shop.db")
        self.database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT)")
        self.database.execute("CREATE TABLE idle (id INTEGER PRIMARY KEY, note TEXT)")
        self.database.commit()
        self._next_id = 0
        self.start()

    def start(self) -> None:
        raw: dict[str, Any] = {
            "data_dir": self._folder / "data",
            "http": {"port": 0},
            "physical_sources": [
                {
                    "name": "shop",
                    "uri": f"sqlite:{self._folder / 'shop.db'}",
                    "sources": ["main.orders", "main.idle"],
                }
            ],
            "ptubes": {
                "port": self._port,
                "monitor_port": None,
                "heartbeat_s": 0.5,
                "reader_tasks": [{"name": "reader", "physical_source": "shop"}],
            },
        }
        relay = Relay(build_settings(raw, RelaySettings))
        service = make_service(relay)
        self._server = ServiceThread(service)
        (door,) = service.front_doors
        assert isinstance(door, PtubesDoor)
        self.door, self._port = door, door.ports[0]
        wait_until(lambda: relay.is_ready)

    def stop(self) -> None:
        self._server.close()

    def close(self) -> None:
        self.stop()
        self.database.close()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def insert(self, count: int) -> set[str]:
        """Commit rows, a few in each transaction; return their notes."""
        notes = set()
        for _ in range(count):
            self._next_id += 1
            note = f"order {self._next_id} \u4e2d\u6587"
            self.database.execute("INSERT INTO orders VALUES (?, ?)", (self._next_id, note))
            notes.add(note)
            if self._next_id % 3 == 0:
                self.database.commit()
        self.database.commit()
        return notes

    @property
    def owned(self) -> list[int]:
        """How many partitions each session has."""
        return [len(one.session.wanted.owned) for one in self.door.sessions]

    def wait_for_first(self, client: StockSdk) -> None:
        """Wait until a client that begins with what is latest has a row.

        Until then it begins there at each of its subscriptions.
        """
        wait_until(lambda: self.owned == [PARTITIONS], PATIENCE_S)
        for _ in range(60):
            self.insert(1)
            with contextlib.suppress(AssertionError):
                wait_until(lambda: bool(client.notes), 2)
                return
