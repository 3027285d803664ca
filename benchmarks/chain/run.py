"""Runs a chain of three relays under load: first for latencies, then with kills of the middle."""

from __future__ import annotations

import contextlib
import itertools
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import click
from rich.console import Console

from benchmarks.chain.arrivals import Arrivals
from benchmarks.shared.report import Figure, at_most, percentile, publish
from databus.demo.private_mariadb import PrivateMariaDB
from databus.demo.processes import check_signals, stopped_by_signals
from tests.mariadb_server import Database
from tests.promises.chaining.chain import chain, digest_of
from tests.promises.running import RunningRelay, mysql_source, new_database, wait_until

KILLS, SHORT_KILLS = 10, 2
SECONDS, SHORT_SECONDS = 20.0, 3.0
RATE = 100.0
LENGTH = 3


@dataclass(slots=True)
class Findings:
    """What came of a run. Latencies are those that each link adds, in seconds."""

    latencies_s: list[list[float]] = field(default_factory=list)
    digests: set[str] = field(default_factory=set)
    dumps: int = 0
    rows: int = 0


class Writer:
    """Inserts rows at a rate, on a thread, while its context lasts."""

    def __init__(self, database: Database, rate: float) -> None:
        self.rows = 0
        self._database, self._rate = database, rate
        self._ended = threading.Event()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Write meanwhile."""
        self._ended.clear()
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def _run(self) -> None:
        begin_s, before = time.monotonic(), self.rows
        while not self._ended.is_set():
            self.rows += 1
            self._database.run(f"INSERT INTO orders VALUES ({self.rows}, 'n{self.rows}', 1.5)")
            due_s = begin_s + (self.rows - before) / self._rate
            self._ended.wait(max(0.0, due_s - time.monotonic()))


def measure(
    kills: int, rate: float, seconds: float, seed: int, tell: Callable[[str], None]
) -> Findings:
    """Run a chain; `tell` is called with the progress."""
    found = Findings()
    with (
        stopped_by_signals(),
        tempfile.TemporaryDirectory(prefix="databus-chain-") as name,
        PrivateMariaDB() as server,
        new_database(server, "chain") as database,
    ):
        folder = Path(name)
        first = RunningRelay(folder / "relay-1", mysql_source(database, folder))
        with chain(first, folder, LENGTH) as relays:
            writer = Writer(database, rate)
            tell(f"{rate:g} transactions/s for {seconds:g} s")
            found.latencies_s = _latencies(relays, writer, seconds)
            _kill(relays[1], writer, kills, random.Random(seed), tell)
            tell("reading all")
            _wait_for_all(relays)
            found.digests = {digest_of(relay) for relay in relays}
            processes = database.run("SHOW FULL PROCESSLIST")
            found.dumps = sum("Binlog Dump" in str(row) for row in processes)
            found.rows = writer.rows
    return found


def _latencies(relays: list[RunningRelay], writer: Writer, seconds: float) -> list[list[float]]:
    with contextlib.ExitStack() as stack:
        scn = relays[0].max_scn()
        read = [stack.enter_context(Arrivals(relay, max(scn, 0))) for relay in relays]
        with writer.running():
            time.sleep(seconds)
        _wait_for_all(relays)
        time.sleep(0.2)
    found = []
    for before, after in itertools.pairwise(read):
        both = before.at_s.keys() & after.at_s.keys()
        found.append([after.at_s[scn] - before.at_s[scn] for scn in both])
    return found


def _kill(
    middle: RunningRelay,
    writer: Writer,
    kills: int,
    draw: random.Random,
    tell: Callable[[str], None],
) -> None:
    with writer.running():
        for number in range(1, kills + 1):
            check_signals()
            tell(f"kill {number} of {kills}")
            time.sleep(draw.uniform(0.1, 1.0))
            middle.child.kill()
            time.sleep(draw.uniform(0.0, 0.5))
            middle.serve()


def _wait_for_all(relays: list[RunningRelay]) -> None:
    """Wait until the relays have all that was written; heartbeats come later."""

    def is_so() -> bool:
        return len({relay.max_scn() for relay in relays}) == 1

    wait_until(is_so, "the newest window at all", relays[-1].tell)


def figures_of(kills: int, found: Findings) -> list[Figure]:
    """Return the figures of a run."""
    name = f"chain of {LENGTH}, the middle killed {kills} times ({found.rows} rows)"
    figures = [
        Figure(f"{name}: different streams", len(found.digests), "SHA-256", at_most(1)),
        Figure(f"{name}: dump connections", found.dumps, "connections", at_most(1)),
    ]
    for number, latencies_s in enumerate(found.latencies_s, 1):
        link = f"chain, link {number}: added latency"
        for percent in (50, 99):
            value = percentile(latencies_s, percent) * 1e3
            figures.append(Figure(f"{link}, p{percent}", value, "ms"))
    return figures


def figures(short: bool = False) -> list[Figure]:
    """Run a chain; return how many streams differ, and the latency that each link adds."""
    kills, seconds = (SHORT_KILLS, SHORT_SECONDS) if short else (KILLS, SECONDS)
    return figures_of(kills, measure(kills, RATE, seconds, 1, lambda _text: None))


@click.command()
@click.option("--kills", default=KILLS, show_default=True, help="Kills of the middle relay.")
@click.option("--rate", default=RATE, show_default=True, help="Transactions a second.")
@click.option("--seconds", default=SECONDS, show_default=True, help="Of the counted part.")
@click.option("--seed", default=1, show_default=True, help="Times of the kills.")
def main(kills: int, rate: float, seconds: float, seed: int) -> None:
    """Kill the middle of a chain under load; exit 1 if what is served differs."""
    with Console(stderr=True).status("starting") as status:
        found = measure(kills, rate, seconds, seed, status.update)
    print(f"seed {seed}; SHA-256: {', '.join(sorted(found.digests))}")
    publish("chain", figures_of(kills, found))
    raise SystemExit(len(found.digests) != 1 or found.dumps != 1)
