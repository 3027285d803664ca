"""Sends mangled requests to a relay's port for clients of Ptubes, while a client is served.

    python -m benchmarks.ptubes_clients.fuzz --requests 100000 --seed S

The protocol has no passwords. What nobody may get is a session on a table that the reader tasks do
not have: a third of the mangled subscriptions ask for one, and the relay captures it.
"""

from __future__ import annotations

import contextlib
import random
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import psutil

from benchmarks.shared.report import Figure, at_most, publish
from databus.demo.processes import free_port
from tests.promises.running import RunningRelay, Shop, running, wait_until
from tests.relay.serving.ptubes.fuzz import Attack
from tests.relay.serving.ptubes.stock import READER, StockClient

REQUESTS, SHORT_REQUESTS = 100_000, 2_000
OPEN, CLOSED = "shop.orders", "shop.secrets"
_WORKERS, _INSERT = 4, 1


@dataclass(slots=True)
class Findings:
    """What the relay did."""

    requests: int = 0
    answers: int = 0
    subscribed: int = 0
    closed_sessions: int = 0
    rows: int = 0
    lost: int = 0
    grown_mib: float = 0.0
    defects: int = 0
    has_died: bool = False

    @property
    def problems(self) -> int:
        """Number of broken promises."""
        return self.closed_sessions + self.lost + self.defects + self.has_died


def measure(count: int, seed: int) -> Findings:
    """Attack a relay that serves a client meanwhile; return what it did."""
    found = Findings(requests=count)
    with tempfile.TemporaryDirectory(prefix="databus-ptubes-fuzz-") as name:
        folder, port = Path(name), free_port()
        shop = Shop(folder / "shop.db")
        shop.connection.execute("CREATE TABLE secrets (id INTEGER PRIMARY KEY, note TEXT)")
        task = {"name": READER, "physical_source": "shop", "tables": [OPEN]}
        ptubes = {"port": port, "monitor_port": free_port(), "reader_tasks": [task]}
        settings = shop.settings(sources=[OPEN, CLOSED])
        with (
            contextlib.closing(shop),
            running(RunningRelay(folder, settings, ptubes=ptubes)) as relay,
        ):
            relay.start()
            _attack(relay, port, shop, found, seed)
            found.defects = relay.child.log.read_text().count("Traceback")
    return found


def _attack(relay: RunningRelay, port: int, shop: Shop, found: Findings, seed: int) -> None:
    # What is loaded at the first use is no growth.
    _run(port, 400, seed + 1000)
    process = psutil.Process(relay.child.pid)
    before = process.memory_info().rss
    ids: list[int] = []
    with StockClient(port) as client:
        assert client.subscribe(tables=(OPEN,)) == "success"
        attacks = [Attack(port, random.Random(seed + n), (OPEN, CLOSED)) for n in range(_WORKERS)]
        threads = [
            threading.Thread(target=one.send, args=(found.requests // _WORKERS,)) for one in attacks
        ]
        for one in threads:
            one.start()
        while any(one.is_alive() for one in threads):
            found.rows += 1
            shop.insert(found.rows)
            ids += _fetched(client)
            _look(relay, found)
        for one in threads:
            one.join()
        found.answers = sum(one.answers for one in attacks)
        found.subscribed = sum(one.subscribed for one in attacks)

        def has_last() -> bool:
            ids.extend(_fetched(client))
            return found.rows in ids

        wait_until(has_last, "the last row")
    found.has_died = not process.is_running()
    found.lost = len(set(range(1, found.rows + 1)) - set(ids))
    found.grown_mib = (process.memory_info().rss - before) / (1 << 20)


def _run(port: int, count: int, seed: int) -> None:
    Attack(port, random.Random(seed), (OPEN, CLOSED)).send(count)


def _look(relay: RunningRelay, found: Findings) -> None:
    sessions: list[dict[str, Any]] = relay.get("/api/v1/ptubes").json()["sessions"]
    found.closed_sessions += sum(CLOSED in one["tables"] for one in sessions)


def _fetched(client: StockClient) -> list[int]:
    rows = [event.after for event in client.fetch().events if event.event_type == _INSERT]
    return [int(row["id"] or 0) for row in rows]


def figures_of(found: Findings) -> Sequence[Figure]:
    """Return the figures of a run."""
    name = f"{found.requests} mangled requests of Ptubes, {found.answers} answers"
    return [
        Figure(f"{name}: relay died", found.has_died, "times", at_most(0)),
        Figure(f"{name}: defects in its log", found.defects, "", at_most(0)),
        Figure(f"{name}: sessions on a closed table", found.closed_sessions, "", at_most(0)),
        Figure(f"{name}: sessions on an open one", found.subscribed, ""),
        Figure(f"{name}: rows lost to a client", found.lost, "rows", at_most(0)),
        Figure(f"{name}: memory grown", found.grown_mib, "MiB", at_most(64)),
    ]


@click.command()
@click.option("--requests", "count", default=REQUESTS, show_default=True)
@click.option("--seed", default=1, show_default=True)
def main(count: int, seed: int) -> None:
    """Send mangled requests; exit 1 if a promise is broken."""
    found = measure(count, seed)
    print(f"seed {seed}: {found}")
    publish("ptubes_fuzz", list(figures_of(found)))
    raise SystemExit(found.problems > 0)


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.ptubes_clients.fuzz")
