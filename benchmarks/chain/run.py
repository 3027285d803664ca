"""Runs a chain of three relays under load: first for latencies, then with kills of the middle."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import click
from rich.console import Console

from benchmarks.chain.links import TRACED, Latencies, measure_links
from benchmarks.chain.writer import Writer
from benchmarks.shared.report import Figure, at_most, percentile, publish
from databus.demo.private_mariadb import PrivateMariaDB
from databus.demo.processes import check_signals, stopped_by_signals
from tests.promises.chaining.chain import chain, digest_of
from tests.promises.running import RunningRelay, mysql_source, new_database, wait_until

KILLS, SHORT_KILLS = 10, 2
SECONDS, SHORT_SECONDS = 20.0, 3.0
RATE, KILL_RATE = 500.0, 100.0
LENGTH = 3
P50_MS = at_most(2.0)


@dataclass(slots=True)
class Findings:
    """What came of a run."""

    plain: Latencies = field(default_factory=Latencies)
    compressed: Latencies = field(default_factory=Latencies)
    digests: set[str] = field(default_factory=set)
    dumps: int = 0
    rows: int = 0


def measure(
    kills: int, rate: float, seconds: float, seed: int, tell: Callable[[str], None]
) -> Findings:
    """Run a chain for its latencies, and another one with kills; `tell` tells the progress."""
    found = Findings()
    with (
        stopped_by_signals(),
        tempfile.TemporaryDirectory(prefix="databus-chain-") as name,
        PrivateMariaDB() as server,
    ):
        tell(f"{rate:g} transactions/s for {seconds:g} s, plain and compressed")
        found.plain = _time(server, Path(name), rate, seconds, "none")
        found.compressed = _time(server, Path(name), rate, seconds, "zstd")
        with new_database(server, "killed") as database:
            folder = Path(name) / "killed"
            folder.mkdir()
            first = RunningRelay(folder / "relay-1", mysql_source(database, folder))
            writer = Writer(database, KILL_RATE)
            with chain(first, folder, LENGTH) as relays:
                _kill(relays[1], writer, kills, random.Random(seed), tell)
                tell("reading all")
                _wait_for_all(relays)
                found.digests = {digest_of(relay) for relay in relays}
                processes = database.run("SHOW FULL PROCESSLIST")
                found.dumps = sum("Binlog Dump" in str(row) for row in processes)
                found.rows = writer.rows
    return found


def _time(
    server: PrivateMariaDB, folder: Path, rate: float, seconds: float, compression: str
) -> Latencies:
    with new_database(server, f"timed_{compression}") as database:
        own = folder / compression
        own.mkdir()
        first = RunningRelay(own / "relay-1", mysql_source(database, own), module=TRACED)
        return measure_links(first, own, LENGTH, Writer(database, rate), seconds, compression)


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
    plain, compressed = found.plain, found.compressed
    for number, latencies_s in enumerate(plain.links_s, 1):
        p50, p99 = (percentile(latencies_s, percent) * 1e3 for percent in (50, 99))
        figures.append(Figure(f"{_link(number)}, p50", p50, "ms", P50_MS))
        figures.append(Figure(f"{_link(number)}, p99", p99, "ms"))
    for percent in (50, 99):
        value = percentile(plain.client_s, percent) * 1e3
        figures.append(Figure(f"chain, from the last ring to a callback, p{percent}", value, "ms"))
    figures += [
        Figure("chain: a window on the wire", plain.wire_bytes, "bytes"),
        Figure("chain: a window on the wire, compressed", plain.packed_bytes, "bytes"),
    ]
    for number, latencies_s in enumerate(compressed.links_s, 1):
        value = percentile(latencies_s, 50) * 1e3
        figures.append(Figure(f"{_link(number)}, p50, compressed", value, "ms"))
    for number, both in enumerate(zip(plain.cpu_us, compressed.cpu_us, strict=True), 1):
        for text, value in zip(("", ", compressed"), both, strict=True):
            name = f"chain, relay {number}: CPU{text}"
            figures.append(Figure(name, value, "µs/transaction"))
    return figures


def _link(number: int) -> str:
    return f"chain, link {number}: from ring to ring"


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
