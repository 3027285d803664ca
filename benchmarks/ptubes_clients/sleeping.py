"""Ptubes' stock client sleeps on large rows: what that costs the relay, and what it then has.

python -m benchmarks.ptubes_clients.sleeping --rows 300 --sleep 60
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import click
import psutil

from benchmarks.ptubes_clients.sdk import READER, Handed, StockSdk, compiled
from benchmarks.shared.report import Figure, at_most, publish
from databus.demo.processes import free_port
from tests.promises.running import RunningRelay, Shop, running, wait_until
from tests.zookeeper_server import PrivateZookeeper
from tools import fetch_ptubes

ROWS, SLEEP_S = 300, 60.0
_ROW_BYTES, _READ_BYTES = 1 << 20, 2 << 20
_MIB = 1 << 20
_PATIENCE_S = 300.0


class Sleeper(StockSdk):
    """Remembers the ids and lengths of rows, and not the rows."""

    def take(self, event: Handed) -> None:
        """Remember an event that it took."""
        if event.kind == "INSERT":
            self.events.append((int(event.after["id"].value or 0), len(event.note)))


def figures(count: int = ROWS, sleep_s: float = SLEEP_S) -> list[Figure]:
    """Let the client sleep on its first row; return what was held meanwhile, and what it has."""
    fetch_ptubes.fetch()
    with (
        tempfile.TemporaryDirectory(prefix="databus-ptubes-") as name,
        PrivateZookeeper() as keeper,
    ):
        folder, port = Path(name), free_port()
        (folder / "classes").mkdir()
        class_path = compiled(folder / "classes")
        shop = Shop(folder / "shop.db")
        task = {"name": READER, "physical_source": "shop"}
        ptubes = {"port": port, "monitor_port": free_port(), "read_bytes": _READ_BYTES}
        source = shop.settings(ring_bytes=2 * count * _ROW_BYTES)
        relay = RunningRelay(folder, source, ptubes=ptubes | {"reader_tasks": [task]})
        address = f"127.0.0.1:{keeper.port}"
        client = Sleeper(class_path, address, f"127.0.0.1:{port}", folder / "sdk", "shop.orders")
        client.using(mode="EARLIEST", partitions=1, sleepMs=int(sleep_s * 1000))
        with running(relay):
            relay.start()
            shop.insert(*range(1, count + 1), note="y" * _ROW_BYTES)
            relay.wait_for_scn(count)
            with client.using(heapMib=1000):
                return _watch(relay, client, count, sleep_s)


def _watch(relay: RunningRelay, client: Sleeper, count: int, sleep_s: float) -> list[Figure]:
    process = psutil.Process(relay.child.pid)
    held: list[int] = []
    grown: list[int] = []

    def look() -> bool:
        sessions = relay.get("/api/v1/ptubes").json()["sessions"]
        held.extend(one["heldBytes"] for one in sessions)
        grown.append(_own_bytes(process))
        return len(client.events) > 0

    def told() -> str:
        return f"{len(client.events)} rows, {relay.tell()}"

    wait_until(lambda: bool(relay.get("/api/v1/ptubes").json()["sessions"]), "it", told, 120.0)
    before, began_s = _own_bytes(process), time.monotonic()
    wait_until(look, "its awakening", told, sleep_s + 120.0)
    slept_s = time.monotonic() - began_s

    def is_done() -> bool:
        look()
        return len(set(client.events)) >= count

    wait_until(is_done, "all rows", told, _PATIENCE_S)
    rows = list(dict.fromkeys(client.events))
    wrong = [one for one in rows if one[1] != _ROW_BYTES]
    title = f"Ptubes' client asleep for {sleep_s:.0f} s on {count} rows of 1 MiB"
    most = (_READ_BYTES + _ROW_BYTES) / _MIB
    return [
        Figure(f"{title}: no row taken for", slept_s, "s"),
        Figure(f"{title}: held for its session", max(held) / _MIB, "MiB", at_most(most)),
        Figure(f"{title}: relay grown", (max(grown) - before) / _MIB, "MiB", at_most(64)),
        Figure(f"{title}: lost", count - len(rows), "rows", at_most(0)),
        Figure(f"{title}: cut short", len(wrong), "rows", at_most(0)),
        Figure(f"{title}: out of order", rows != sorted(rows), "", at_most(0)),
        Figure(f"{title}: again", len(client.events) - len(rows), "rows"),
    ]


def _own_bytes(process: psutil.Process) -> int:
    """Return the memory of a process without the ring, whose file it maps."""
    memory = process.memory_info()
    return int(memory.rss - memory.shared)


@click.command()
@click.option("--rows", "count", default=ROWS, show_default=True)
@click.option("--sleep", "sleep_s", default=SLEEP_S, show_default=True, help="Seconds.")
def main(count: int, sleep_s: float) -> None:
    """Let Ptubes' client sleep on large rows; exit 1 if the relay holds more than is set."""
    found = figures(count, sleep_s)
    publish("ptubes_sleeping", found)
    raise SystemExit(any(one.is_met is False for one in found))


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.ptubes_clients.sleeping")
