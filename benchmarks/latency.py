"""`python -m benchmarks.latency`: from a commit to the consumer's callback, at 500 transactions/s.

Three processes beside the database: the load, the relay, the client. The time
counted is from COMMIT having returned in the load to the callback having been
entered in the client; all are on one host, so they read one clock. A callback
may be first: a database tells its change log before it tells its client, and
such a latency is negative. Beside it stands the time from COMMIT having been
*sent*, which includes what the database itself needs.

The breakdown is a run of its own with a relay and a client that note when each
window was where: noting costs a little, so it is no part of the run that counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import click
from rich.console import Console

from benchmarks.shared.load import SOURCE, create_table, read_numbers
from benchmarks.shared.report import Figure, at_most, percentile, publish
from databus.demo.databases import Dialect
from databus.demo.processes import python_module, stopped_by_signals
from databus.demo.stage import Stage

RATE = 500.0
WARM_UP_S = 3.0
SECONDS = 20.0
SHORT_SECONDS = 5.0
END_TIMEOUT_S = 30.0
P50_MS = at_most(3.0)
P99_MS = at_most(20.0)
STEPS = (
    "COMMIT returned → window in the ring",
    "in the ring → response made",
    "response made → decoded by the client",
    "decoded → callback",
)


@dataclass(frozen=True, slots=True)
class Run:
    """The duration and rate of a run, and whether relay and client record each window."""

    dialect: Dialect
    seconds: float
    rate: float = RATE
    is_traced: bool = False

    @property
    def transactions(self) -> int:
        """The number of transactions."""
        return int((WARM_UP_S + self.seconds) * self.rate)

    @property
    def warm_up(self) -> int:
        """The number of transactions that are not counted."""
        return int(WARM_UP_S * self.rate)


@dataclass(frozen=True, slots=True)
class Stamps:
    """The times of one transaction, in ns; `trace` has those of ring and response, or nothing."""

    begun: int
    committed: int
    decoded: int
    called: int
    trace: tuple[int, ...] = ()

    @property
    def steps(self) -> list[int]:
        """The duration of each of STEPS."""
        points = (self.committed, *self.trace, self.decoded, self.called)
        return [later - earlier for earlier, later in pairwise(points)]


def perform(run: Run) -> list[Stamps]:
    """Run it; return the stamps of the counted part. Raises ChildError when a process fails."""
    statements = [create_table(run.dialect)]
    module = "benchmarks.shared.traced_relay" if run.is_traced else "databus.cli.main"
    with Stage(run.dialect, statements, [SOURCE], command_module=module) as stage:
        stage.start_relay()
        client, load = (
            stage.child("client", _client(stage, run)),
            stage.child("load", _load(stage, run)),
        )
        client.start()
        load.start()
        load.wait(WARM_UP_S + run.seconds + END_TIMEOUT_S)
        load.check()
        client.wait(END_TIMEOUT_S)
        client.check()
        stage.relay.stop()
        commits = read_numbers(stage.folder / "load.stamps", 2)
        calls = read_numbers(stage.folder / "client.stamps", 4)
        trace = read_numbers(stage.folder / "relay.stamps", 3) if run.is_traced else []
    return join(commits, calls, trace)[run.warm_up :]


def join(
    commits: Sequence[tuple[int, ...]],
    calls: Sequence[tuple[int, ...]],
    trace: Sequence[tuple[int, ...]],
) -> list[Stamps]:
    """Join the processes' records by transaction number and by SCN.

    `commits`: begun, committed, one a transaction. `calls`: n, scn, decoded,
    called. `trace`: scn, in the ring, response made. Raises ValueError unless
    every transaction was called back exactly once, in order.
    """
    if [n for n, *_ in calls] != list(range(1, len(commits) + 1)):
        raise ValueError(
            f"{len(commits)} transactions committed, {len(calls)} callbacks: not the same"
        )
    places = {scn: (in_ring, made) for scn, in_ring, made in trace}
    return [
        Stamps(begun, committed, decoded, called, places.get(scn, ()))
        for (begun, committed), (_, scn, decoded, called) in zip(commits, calls, strict=True)
    ]


def figures_of(run: Run, found: Sequence[Stamps]) -> list[Figure]:
    """Return the figures of a counted run."""
    after = [(stamps.called - stamps.committed) / 1e6 for stamps in found]
    before = [(stamps.called - stamps.begun) / 1e6 for stamps in found]
    name = f"{run.dialect}, {run.rate:g} transactions/s: commit to callback"
    return [
        Figure(f"{name}, p50", percentile(after, 50), "ms", P50_MS),
        Figure(f"{name}, p99", percentile(after, 99), "ms", P99_MS),
        Figure(f"{name}, max", max(after), "ms"),
        Figure(f"{name}, counted from COMMIT sent, p50", percentile(before, 50), "ms"),
        Figure(f"{name}, counted from COMMIT sent, p99", percentile(before, 99), "ms"),
    ]


def breakdown_of(run: Run, found: Sequence[Stamps]) -> list[Figure]:
    """Return the median and p99 of each step of a traced run."""
    steps = [stamps.steps for stamps in found if stamps.trace]
    figures = []
    for index, name in enumerate(STEPS):
        times = [step[index] / 1e6 for step in steps]
        for percent in (50, 99):
            label = f"{run.dialect}, where it goes: {name}, p{percent}"
            figures.append(Figure(label, percentile(times, percent), "ms"))
    return figures


def _client(stage: Stage, run: Run) -> list[str]:
    return python_module(
        "benchmarks.shared.probe",
        *("--relay", stage.url, "--stamps", stage.folder / "client.stamps"),
        *("--events", run.transactions),
        *(("--traced",) if run.is_traced else ()),
    )


def _load(stage: Stage, run: Run) -> list[str]:
    return python_module(
        "benchmarks.shared.load",
        *stage.database.arguments(),
        *("--rate", run.rate, "--transactions", run.transactions),
        *("--stamps", stage.folder / "load.stamps"),
    )


def measure(dialect: Dialect, seconds: float, rate: float) -> list[Figure]:
    """Measure one source: the counted run, then the breakdown."""
    counted = Run(dialect, seconds, rate)
    traced = Run(dialect, SHORT_SECONDS, rate, is_traced=True)
    return figures_of(counted, perform(counted)) + breakdown_of(traced, perform(traced))


def figures(short: bool = False) -> list[Figure]:
    """Measure both sources."""
    return measure_all(SHORT_SECONDS if short else SECONDS, RATE, ("sqlite", "mysql"))


def measure_all(seconds: float, rate: float, dialects: Sequence[Dialect]) -> list[Figure]:
    """Measure these sources one after another; a signal stops it and cleans up."""
    with stopped_by_signals():
        return [figure for dialect in dialects for figure in measure(dialect, seconds, rate)]


@click.command()
@click.option("--short", is_flag=True, help=f"Measure for {SHORT_SECONDS:g} seconds.")
@click.option("--seconds", type=float, help=f"Measure for so long; {SECONDS:g} when left out.")
@click.option("--rate", type=float, default=RATE, show_default=True, help="Transactions a second.")
@click.option("--source", "dialect", type=click.Choice(["sqlite", "mysql"]), help="Only this one.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write figures here.")
def main(
    short: bool,
    seconds: float | None,
    rate: float,
    dialect: Dialect | None,
    json_file: Path | None,
) -> None:
    """Measure the time from a commit to the consumer's callback."""
    length_s = seconds or (SHORT_SECONDS if short else SECONDS)
    dialects: tuple[Dialect, ...] = (dialect,) if dialect else ("sqlite", "mysql")
    with Console(stderr=True).status("measuring latency …"):
        found = measure_all(length_s, rate, dialects)
    publish("latency", found, json_file)


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.latency")
