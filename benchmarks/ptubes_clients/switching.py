"""The source goes to another server while Ptubes' client consumes, and the client restarts."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.ptubes_clients.sdk import READER, Handed, StockSdk, checkpoints, compiled
from benchmarks.shared.report import Figure, at_most
from databus.demo.private_mariadb import PrivateMariaDB
from databus.demo.processes import free_port
from tests.promises.running import RunningRelay, running, wait_until
from tests.promises.switching.server_pair import Load, ServerPair
from tests.zookeeper_server import PrivateZookeeper
from tools import fetch_ptubes

ROWS = 300
_PATIENCE_S = 180.0


def switched(tell: Callable[[str], None]) -> list[Figure]:
    """Kill a primary under the client, and start the client anew after that."""
    fetch_ptubes.fetch()
    with (
        tempfile.TemporaryDirectory(prefix="databus-ptubes-") as name,
        ServerPair(lambda options: PrivateMariaDB(options=options), is_mariadb=True) as pair,
        PrivateZookeeper() as zookeeper,
    ):
        pair.catch_up()
        return _run(pair, Path(name), f"127.0.0.1:{zookeeper.port}", tell)


def _relay(pair: ServerPair, folder: Path, port: int) -> RunningRelay:
    password = folder / "password"
    password.write_text(pair.primary.password)
    source = {
        "name": "shop",
        "uri": [pair.primary.uri, pair.replica.uri],
        "sources": ["shop.orders"],
        "start": "earliest",
        "password_file": str(password),
        "reconnect_min_s": 0.05,
        "reconnect_max_s": 0.2,
        "switch_after_s": 0.3,
    }
    ptubes = {
        "port": port,
        "monitor_port": free_port(),
        "heartbeat_s": 0.5,
        "reader_tasks": [{"name": READER, "physical_source": "shop"}],
    }
    return RunningRelay(folder, source, ptubes=ptubes)


def _run(
    pair: ServerPair, folder: Path, zookeeper: str, tell: Callable[[str], None]
) -> list[Figure]:
    (folder / "classes").mkdir()
    class_path, port, load = compiled(folder / "classes"), free_port(), Load(pair)
    relay = _relay(pair, folder, port)

    def instance(name: str) -> StockSdk:
        readers = f"127.0.0.1:{port}"
        made = StockSdk(class_path, zookeeper, readers, folder / name, "shop.orders")
        return made.using(mode="EARLIEST")

    with running(relay):
        relay.start()
        wanted = set(load.write(ROWS))
        tell("switch of the source's server")
        with instance("one") as one:
            _wait(wanted, relay, one)
            pair.catch_up()
            pair.fail_over()
            after = set(load.write(ROWS))
            _wait(wanted | after, relay, one)
            places = [event for event in rows_of(one) if _id(event) in after]
            servers = {event.place[0] for event in rows_of(one)}
            _wait_stored(zookeeper, {event.place[0] for event in places})
        tell("start after the switch")
        rest = set(load.write(ROWS))
        with instance("two") as two:
            _wait(rest, relay, two)
        ids = [_id(event) for event in (*rows_of(one), *rows_of(two))]
        everything = wanted | after | rest
        early = sum(_id(event) in wanted for event in rows_of(two))
    title = f"Ptubes' client, {len(everything)} rows over a switch of the server"
    return [
        Figure(f"{title}: lost", len(everything - set(ids)), "rows", at_most(0)),
        Figure(f"{title}: again from the first server", early, "rows", at_most(0)),
        Figure(f"{title}: again", len(ids) - len(set(ids)), "rows"),
        Figure(f"{title}: server numbers in its places", len(servers), ""),
    ]


def rows_of(client: StockSdk) -> list[Handed]:
    """Return the rows that a client took."""
    return [one for one in list(client.events) if one.kind == "INSERT"]


def _id(event: Handed) -> int:
    return int(event.after["id"].value or 0)


def _wait(wanted: set[int], relay: RunningRelay, client: StockSdk) -> None:
    def have() -> bool:
        return wanted <= {_id(event) for event in rows_of(client)}

    wait_until(have, "rows", relay.tell, _PATIENCE_S)


def _wait_stored(zookeeper: str, servers: set[int]) -> None:
    """Wait until all partitions have a checkpoint of these servers."""

    def have() -> bool:
        found: list[Any] = list(checkpoints(zookeeper).values())
        return len(found) > 0 and all(one["serverId"] in servers for one in found)

    wait_until(have, "checkpoints of the next server", str, _PATIENCE_S)
