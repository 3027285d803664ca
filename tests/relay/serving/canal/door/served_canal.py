"""A relay with a door for clients of Canal, whose rows a test makes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from databus.relay.sources.source import Transaction
from tests.relay.fakes import ServedRelay, insert, transaction
from tests.relay.serving.canal.raw_client import Batch, RawClient


def canal_settings(**changes: Any) -> dict[str, Any]:
    destinations = [{"name": "example", "physical_sources": ["shop"]}]
    return {"port": 0, "destinations": destinations} | changes


class ServedCanal(ServedRelay):
    """A served relay, and its clients of Canal."""

    def __init__(self, folder: Path, relay: dict[str, Any] | None = None, **changes: Any) -> None:
        self._folder, self._relay_settings = folder, relay or {}
        self._changes = changes
        self.clients: list[RawClient] = []
        self.open()

    def open(self) -> None:
        """Start the relay, on what it has kept."""
        super().__init__(
            self._folder, **self._relay_settings, canal=canal_settings(**self._changes)
        )

    def close_and_open_again(self, **changes: Any) -> None:
        self.close()
        self._changes |= changes
        self.open()

    def view(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.get("/api/v1/canal").body)
        return found

    @property
    def address(self) -> str:
        return str(self.view()["address"])

    def connect(self, destination: str = "example", client_id: str = "1001") -> RawClient:
        found = RawClient(self.address, destination, client_id)
        self.clients.append(found)
        return found

    def client(self, client_id: str = "1001", filter_text: str = "") -> RawClient:
        """Return a client that has done what stock clients do first."""
        found = self.connect(client_id=client_id).login()
        found.roll_back()
        return found.subscribe(filter_text)

    def close(self) -> None:
        for one in self.clients:
            one.close()
        self.clients.clear()
        super().close()


def rows(scn: int, count: int = 1, text: str = "x") -> Transaction:
    return transaction(scn, *(insert(scn * 10 + n, text) for n in range(count)))


def drain(client: RawClient, size: int = 1000) -> list[int]:
    """Consume everything; return the keys of all rows."""
    found: list[int] = []
    while (batch := client.get(size)).id > 0:
        found += batch.keys
        client.ack(batch.id)
    return found


def kinds(batch: Batch) -> str:
    return "".join(entry.kind for entry in batch.entries)
