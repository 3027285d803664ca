"""Kills relays and clients while stock clients of Canal consume, and looks at what they have."""

from __future__ import annotations

import contextlib
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from benchmarks.canal_clients.clients import RunningClient, canal_table
from benchmarks.canal_clients.every_type import change_of, wrong_columns
from benchmarks.shared.every_type import TABLE, Change, changes, make
from benchmarks.shared.report import Figure, at_most, publish
from databus.demo.private_mariadb import PrivateMariaDB
from databus.demo.processes import check_signals, free_port, stopped_by_signals
from tests.mariadb_server import Database
from tests.promises.running import RunningRelay, mysql_source, new_database, running, wait_until
from tests.zookeeper_server import PrivateZookeeper
from tools.fetch_canal_clients import CLIENTS, JAVA, fetch

CHANGES, SHORT_CHANGES = 100_000, 3_000
KILLS, SHORT_KILLS = 3, 1
_ROLLBACK_EVERY = 25
_SIZE = 32  # KiB of the log in a batch
_PATIENCE_S = 900.0


@dataclass(frozen=True, slots=True)
class Findings:
    """What a client has of the changes."""

    client: str
    changes: int
    lost: int
    again: int
    out_of_order: int
    wrong_values: int
    rollbacks: int
    kills: int
    seconds: float

    @property
    def problems(self) -> int:
        """Number of broken promises: what comes again after a kill is none."""
        return self.lost + self.out_of_order + self.wrong_values


def judge(client: RunningClient, name: str, wanted: Sequence[Change], kills: int) -> Findings:
    """Compare what a client took with what was changed."""
    seen = [change_of(row) for row in client.rows]
    once = list(dict.fromkeys(seen))
    place = {change: number for number, change in enumerate(wanted)}
    numbers = [place.get(change, -1) for change in once]
    return Findings(
        name,
        len(wanted),
        lost=len(set(wanted) - set(once)),
        again=len(seen) - len(once),
        out_of_order=sum(two < one for one, two in pairwise(numbers)),
        wrong_values=sum(bool(wrong_columns(row)) for row in client.rows),
        rollbacks=client.rollbacks,
        kills=kills,
        seconds=0.0,
    )


def measure(count: int, kills: int, seed: int, tell: Callable[[str], None]) -> list[Findings]:
    """Let all clients consume so many changes; `tell` is called with the progress."""
    draw = random.Random(seed)
    for client in CLIENTS:
        fetch(client)
    options = {"binlog-row-metadata": "FULL"}
    with (
        stopped_by_signals(),
        tempfile.TemporaryDirectory(prefix="databus-canal-") as name,
        PrivateMariaDB(options=options) as server,
        new_database(server, "canal_clients") as database,
    ):
        folder = Path(name)
        database.run(TABLE)
        transactions = list(changes(count))
        tell(f"making {count} changes")
        make(database, transactions)
        wanted = list(chain.from_iterable(transactions))
        found = _simple_clients(database, folder, wanted, kills, draw, tell)
        found.append(_cluster_client(database, folder, wanted, kills, draw, tell))
        return found


def _relay(database: Database, folder: Path, **more: Any) -> RunningRelay:
    folder.mkdir(exist_ok=True)
    source = mysql_source(database, folder, sources=[f"{database.name}.every_type"])
    # Relays keep what is far behind, so that kills are all that happens.
    source |= {"ring_bytes": 256 << 20}
    options = {"coordinator": more.pop("coordinator")} if "coordinator" in more else {}
    return RunningRelay(folder, source, canal=canal_table(folder, free_port(), **more), **options)


def _simple_clients(
    database: Database,
    folder: Path,
    wanted: Sequence[Change],
    kills: int,
    draw: random.Random,
    tell: Callable[[str], None],
) -> list[Findings]:
    """Let the three clients consume from one relay; kill it, and them, on the way."""
    destinations = [{"name": one.name, "physical_sources": ["shop"]} for one in CLIENTS]
    relay = _relay(database, folder / "one", destinations=destinations)
    with running(relay), contextlib.ExitStack() as stack:
        relay.start()
        address = str(relay.get("/api/v1/canal").json()["address"])
        began_s = time.monotonic()
        clients = {
            one.name: stack.enter_context(
                RunningClient(
                    one,
                    address,
                    folder,
                    destination=one.name,
                    size=_SIZE,
                    rollback_every=_ROLLBACK_EVERY,
                    outstanding=3,
                )
            )
            for one in CLIENTS
        }
        everyone = list(clients.values())
        for number, share in enumerate(_shares(kills)):
            _wait_for_rows(everyone, int(len(wanted) * share), relay)
            tell(f"kill {number + 1} of {kills}")
            time.sleep(draw.uniform(0, 0.3))
            relay.child.kill()
            draw.choice(everyone).kill()
            relay.start()
            for one in everyone:
                one.kill()  # no more than it has: those that live are started again, too
                one.start()
        done = {}
        for name, one in clients.items():
            _wait_for_all(one, wanted, relay)
            done[name] = time.monotonic() - began_s
        return [
            replace(judge(one, name, wanted, kills), seconds=done[name])
            for name, one in clients.items()
        ]


def _cluster_client(
    database: Database,
    folder: Path,
    wanted: Sequence[Change],
    kills: int,
    draw: random.Random,
    tell: Callable[[str], None],
) -> Findings:
    """Let Java's cluster client consume from two relays; kill the one that serves."""
    with PrivateZookeeper() as zookeeper, contextlib.ExitStack() as stack:
        common = {"coordinator": zookeeper.url("/databus"), "zookeeper": True}
        pair = [
            stack.enter_context(running(_relay(database, folder / name, **common)))
            for name in ("first", "second")
        ]
        for one in pair:
            one.start()
        wait_until(lambda: any(map(is_active, pair)), "a relay that serves")
        address, began_s = f"127.0.0.1:{zookeeper.port}", time.monotonic()
        client = stack.enter_context(
            RunningClient(
                JAVA, address, folder, mode="cluster", size=_SIZE, rollback_every=_ROLLBACK_EVERY
            )
        )
        for number, share in enumerate(_shares(kills)):
            _wait_for_rows([client], int(len(wanted) * share), pair[0])
            tell(f"cluster: kill {number + 1} of {kills}")
            active = next(one for one in pair if is_active(one))
            time.sleep(draw.uniform(0, 0.3))
            active.child.kill()
            other = next(one for one in pair if one is not active)
            wait_until(lambda other=other: is_active(other), "the other relay", patience_s=60)  # type: ignore[misc]
            active.start()
        _wait_for_all(client, wanted, pair[0])
        seconds = time.monotonic() - began_s
        return replace(judge(client, "java, cluster of two relays", wanted, kills), seconds=seconds)


def is_active(relay: RunningRelay) -> bool:
    """Return whether a relay serves the destination."""
    return bool(relay.get("/api/v1/canal").json()["destinations"][0]["isActive"])


def _shares(kills: int) -> Iterator[float]:
    for number in range(1, kills + 1):
        yield number / (kills + 1)


def _wait_for_rows(clients: Sequence[RunningClient], rows: int, relay: RunningRelay) -> None:
    def have() -> bool:
        check_signals()
        return all(len(one.rows) >= rows for one in clients)

    def told() -> str:
        return "\n".join([*(one.tell() for one in clients), relay.tell()])

    wait_until(have, f"{rows} rows", told, _PATIENCE_S)


def _wait_for_all(client: RunningClient, wanted: Sequence[Change], relay: RunningRelay) -> None:
    def has_last() -> bool:
        check_signals()
        return bool(client.rows) and change_of(client.rows[-1]) == wanted[-1]

    wait_until(has_last, "the last change", lambda: client.tell() + relay.tell(), _PATIENCE_S)


def figures_of(found: Sequence[Findings]) -> list[Figure]:
    """Return the figures of a run."""
    figures = []
    for one in found:
        name = f"Canal client {one.client}, {one.changes} changes, {one.kills} kills"
        figures += [
            Figure(f"{name}: lost", one.lost, "rows", at_most(0)),
            Figure(f"{name}: out of order", one.out_of_order, "rows", at_most(0)),
            Figure(f"{name}: other values than Canal's", one.wrong_values, "rows", at_most(0)),
            Figure(f"{name}: again after kills", one.again, "rows"),
            Figure(f"{name}: rollbacks", one.rollbacks, "times"),
            Figure(f"{name}: all", one.seconds, "s"),
        ]
    return figures


def figures(short: bool = False) -> list[Figure]:
    """Let all stock clients consume under kills; return what they have."""
    count, kills = (SHORT_CHANGES, SHORT_KILLS) if short else (CHANGES, KILLS)
    return figures_of(measure(count, kills, 1, lambda _text: None))


@click.command()
@click.option("--changes", "count", default=CHANGES, show_default=True, help="Row changes.")
@click.option("--kills", default=KILLS, show_default=True, help="Kills of each relay.")
@click.option("--seed", default=1, show_default=True, help="Times of the kills.")
def main(count: int, kills: int, seed: int) -> None:
    """Let Canal's stock clients consume while relays and clients are killed; exit 1 on a loss."""
    with Console(stderr=True).status("starting") as status:
        found = measure(count, kills, seed, status.update)
    for one in found:
        print(f"seed {seed}: {one}")
    publish("canal_clients", figures_of(found))
    raise SystemExit(sum(one.problems for one in found) > 0)
