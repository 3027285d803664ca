"""A bootstrap server on a real port over a hand-filled store."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from databus.bootstrap.ownership.workers import MakeWorker
from databus.bootstrap.pair import Pair
from databus.bootstrap.producer.relay_monitor import RelayMonitor
from databus.bootstrap.service import make_service
from databus.bootstrap.store.file import WriteLease
from databus.client.puller.transport import Transport
from databus.conf.loading import build_settings
from databus.conf.settings import (
    BootstrapSettings,
    PhysicalSourceSettings,
)
from tests.bootstrap.filled import ORDERS, PERSON, FilledStore, make_filled
from tests.bootstrap.walking import BATCH_BYTES
from tests.relay.fakes import Answer, ServiceThread, get


def pair_settings(folder: Path, **changes: Any) -> BootstrapSettings:
    """Return the settings of a pair with a shop and a crm."""
    raw: dict[str, Any] = {
        "data_dir": folder / "pair",
        "relays": ["http://127.0.0.1:1"],
        "http": {"port": 0},
        "physical_sources": [
            {"name": "shop", "uri": "sqlite:/shop.db", "sources": [PERSON.source, ORDERS.source]},
            {"name": "crm", "uri": "sqlite:/crm.db", "sources": ["crm.contact"]},
        ],
    }
    return build_settings(raw | changes, BootstrapSettings)


class FakeWorker:
    """A producer or a seeding that does nothing but have a problem when the test says so."""

    def __init__(
        self,
        settings: BootstrapSettings,
        physical: PhysicalSourceSettings,
        *,
        lease: WriteLease | None = None,
    ) -> None:
        self.name = physical.name
        self.lease = lease
        self.problem = ""
        self.is_running = False
        self.is_paused = False

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False

    def start(self) -> None:
        self.is_running = True

    def stop(self, timeout_s: float | None = None) -> bool:
        self.is_running = False
        return True


class ServedStore:
    """The shop's store with a server; the crm's was never made."""

    def __init__(
        self,
        folder: Path,
        make_producer: MakeWorker | None = None,
        http: Mapping[str, Any] | None = None,
        persons: int = 10,
        **changes: Any,
    ) -> None:
        settings = pair_settings(folder, http={"port": 0} | dict(http or {}), **changes)
        self.filled: FilledStore = make_filled(settings.data_dir / "shop.db", persons)
        self.pair = Pair(settings, make_producer)
        # There is no relay, and nobody asks one: that would be a trouble of its own.
        self.pair.relays = RelayMonitor((), (), lambda: Transport(1.0))
        self.server = ServiceThread(make_service(self.pair))
        self.url = self.server.url

    def ask(self, path: str, parameters: Mapping[str, Any]) -> Answer:
        return self.get(path, **parameters)

    def get(self, path: str, headers: dict[str, str] | None = None, **parameters: Any) -> Answer:
        query = f"?{urlencode(parameters)}" if parameters else ""
        return get(self.url, path + query, headers)

    def page(self, **parameters: Any) -> Answer:
        asked: dict[str, Any] = {
            "sources": 1,
            "output": "binary",
            "batchSize": BATCH_BYTES,
            "maxev": 2,
            "truncate": "true",
        }
        return self.get("/bootstrap", **asked | parameters)

    def close(self) -> None:
        self.server.close()
        self.filled.close()
