"""`python -m benchmarks.latency`: from a commit to the consumer's callback, and its CPU time.

At 500 transactions/s, and with MySQL also at 5,000, which several sessions commit together.

Beside the database run the load, one process a session, the relay and the client. The time
counted is from the commit having returned in the load to the callback having been
entered in the client; all are on one host, so they read one clock. A callback
may be first: a database tells its change log before it tells its client, and
such a latency is negative. Beside it stands the time from the INSERT having been
*sent*, which includes what the database itself needs.

CPU seconds are those of relay and client, all threads, over the counted part. They are given per
transaction and as a share of one core. They depend less on what else the machine does than the
times; but the later a process is scheduled, the more transactions it handles at once.

The breakdown is a run of its own with a relay and a client that note when each
window was where: noting costs a little, so it is no part of the run that counts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import click
from rich.console import Console

from benchmarks.growth.processes import cpu_seconds
from benchmarks.shared.load import SOURCE, create_table, read_numbers
from benchmarks.shared.report import Figure, at_least, at_most, percentile, publish
from databus.demo.databases import Dialect
from databus.demo.processes import Child, python_module, stopped_by_signals
from databus.demo.stage import Stage

RATE = 500.0
FAST_RATE = 5_000.0
WARM_UP_S = 3.0
SECONDS = 20.0
SHORT_SECONDS = 5.0
END_TIMEOUT_S = 30.0
END_FACTOR = 10  # a load that cannot keep to its rate takes longer
COUNTED_SHARE = 0.8  # of the seconds; CPU time is taken while load and client still run
# By rate; others have no targets.
P50_MS = {RATE: at_most(0.6)}
P99_MS = {RATE: at_most(3.0), FAST_RATE: at_most(10.0)}
CORE_PERCENT = {RATE: at_most(20.0)}
RATE_REACHED = {FAST_RATE: at_least(0.95 * FAST_RATE)}
RATE_OF_SESSION = 1_000.0
STEPS = (
    "commit returned → window in the ring",
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

    @property
    def sessions(self) -> int:
        """The number of sessions that commit; a SQLite database has one writer."""
        return 1 if self.dialect == "sqlite" else math.ceil(self.rate / RATE_OF_SESSION)


@dataclass(frozen=True, slots=True)
class Stamps:
    """The times of one transaction, in ns; `trace` has those of ring and response, or nothing."""

    sent: int
    committed: int
    decoded: int
    called: int
    trace: tuple[int, ...] = ()

    @property
    def steps(self) -> list[int]:
        """The duration of each of STEPS."""
        points = (self.committed, *self.trace, self.decoded, self.called)
        return [later - earlier for earlier, later in pairwise(points)]


@dataclass(frozen=True, slots=True)
class Work:
    """What relay and client did in a part of a run: CPU seconds of each, and transactions."""

    relay_s: float
    client_s: float
    seconds: float
    transactions: int


@dataclass(frozen=True, slots=True)
class Found:
    """The stamps of the counted part of a run, and the work in most of it."""

    stamps: list[Stamps]
    work: Work


def perform(run: Run) -> Found:
    """Run it; return the counted part. Raises ChildError when a process fails."""
    statements = [create_table(run.dialect)]
    module = "benchmarks.shared.traced_relay" if run.is_traced else "databus.cli.main"
    with Stage(run.dialect, statements, [SOURCE], command_module=module) as stage:
        stage.start_relay()
        client = stage.child("client", _client(stage, run))
        loads = [stage.child(f"load{n}", _load(stage, run, n)) for n in range(run.sessions)]
        for child in (client, *loads):
            child.start()
        time.sleep(WARM_UP_S)
        begin = _used(stage, client)
        time.sleep(run.seconds * COUNTED_SHARE)
        end = _used(stage, client)
        for load in loads:
            load.wait(END_FACTOR * (WARM_UP_S + run.seconds) + END_TIMEOUT_S)
            load.check()
        client.wait(END_TIMEOUT_S)
        client.check()
        stage.relay.stop()
        commits = _commits(stage.folder, run)
        calls = read_numbers(stage.folder / "client.stamps", 4)
        trace = read_numbers(stage.folder / "relay.stamps", 3) if run.is_traced else []
    stamps = join(commits, calls, trace, run.sessions)
    return Found(stamps[run.warm_up :], work_between(begin, end, commits))


def _commits(folder: Path, run: Run) -> list[tuple[int, ...]]:
    """Return sent and committed of each transaction, by number."""
    found: list[tuple[int, ...]] = [()] * run.transactions
    for n in range(run.sessions):
        found[n :: run.sessions] = read_numbers(folder / f"load{n}.stamps", 2)
    return found


def _used(stage: Stage, client: Child) -> tuple[int, float, float]:
    """Return the time, in ns, and the CPU seconds that relay and client have used."""
    return time.time_ns(), cpu_seconds(stage.relay.pid), cpu_seconds(client.pid)


def work_between(
    begin: tuple[int, float, float],
    end: tuple[int, float, float],
    commits: Sequence[tuple[int, ...]],
) -> Work:
    """Return the work between two moments, each with CPU seconds of relay and client."""
    committed = sum(begin[0] <= at <= end[0] for _, at in commits)
    return Work(end[1] - begin[1], end[2] - begin[2], (end[0] - begin[0]) / 1e9, committed)


def join(
    commits: Sequence[tuple[int, ...]],
    calls: Sequence[tuple[int, ...]],
    trace: Sequence[tuple[int, ...]],
    sessions: int = 1,
) -> list[Stamps]:
    """Join the processes' records by transaction number and by SCN.

    `commits`: sent, committed, one a transaction, of the sessions in turns. `calls`: n, scn,
    decoded, called. `trace`: scn, in the ring, response made. Raises ValueError unless every
    transaction was called back exactly once, and each session's in order.
    """
    called = [n for n, *_ in calls]
    for first in range(1, sessions + 1):
        own = range(first, len(commits) + 1, sessions)
        if [n for n in called if n % sessions == first % sessions] != [*own]:
            raise ValueError(
                f"{len(commits)} transactions committed, {len(calls)} callbacks: not the same"
            )
    places = {scn: (in_ring, made) for scn, in_ring, made in trace}
    return [
        Stamps(sent, committed, decoded, called, places.get(scn, ()))
        for (sent, committed), (_, scn, decoded, called) in zip(commits, sorted(calls), strict=True)
    ]


def figures_of(run: Run, found: Sequence[Stamps]) -> list[Figure]:
    """Return the latencies of a counted run."""
    after = [(stamps.called - stamps.committed) / 1e6 for stamps in found]
    before = [(stamps.called - stamps.sent) / 1e6 for stamps in found]
    name = f"{run.dialect}, {run.rate:g} transactions/s: commit to callback"
    return [
        Figure(f"{name}, p50", percentile(after, 50), "ms", P50_MS.get(run.rate)),
        Figure(f"{name}, p99", percentile(after, 99), "ms", P99_MS.get(run.rate)),
        Figure(f"{name}, max", max(after), "ms"),
        Figure(f"{name}, counted from INSERT sent, p50", percentile(before, 50), "ms"),
        Figure(f"{name}, counted from INSERT sent, p99", percentile(before, 99), "ms"),
    ]


def work_of(run: Run, work: Work) -> list[Figure]:
    """Return the CPU time of a counted run."""
    name = f"{run.dialect}, {run.rate:g} transactions/s"
    per, total_s = 1e6 / work.transactions, work.relay_s + work.client_s
    percent = 100 * total_s / work.seconds
    return [
        Figure(
            f"{name}: rate reached",
            work.transactions / work.seconds,
            "/s",
            RATE_REACHED.get(run.rate),
        ),
        Figure(f"{name}: CPU, relay", work.relay_s * per, "µs/transaction"),
        Figure(f"{name}: CPU, client", work.client_s * per, "µs/transaction"),
        Figure(f"{name}: CPU, both", total_s * per, "µs/transaction"),
        Figure(f"{name}: share of a core, both", percent, "%", CORE_PERCENT.get(run.rate)),
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


def _load(stage: Stage, run: Run, session: int) -> list[str]:
    return python_module(
        "benchmarks.shared.load",
        *stage.database.arguments(),
        *("--rate", run.rate, "--transactions", run.transactions),
        *("--session", session, "--sessions", run.sessions),
        *("--stamps", stage.folder / f"load{session}.stamps"),
    )


def count(dialect: Dialect, seconds: float, rate: float) -> list[Figure]:
    """Measure one source at one rate: latencies and CPU time."""
    run = Run(dialect, seconds, rate)
    found = perform(run)
    return figures_of(run, found.stamps) + work_of(run, found.work)


def measure(dialect: Dialect, seconds: float, rate: float) -> list[Figure]:
    """Measure one source: the counted run, then the breakdown."""
    traced = Run(dialect, SHORT_SECONDS, rate, is_traced=True)
    return count(dialect, seconds, rate) + breakdown_of(traced, perform(traced).stamps)


def figures(short: bool = False) -> list[Figure]:
    """Measure both sources."""
    return measure_all(SHORT_SECONDS if short else SECONDS, None, ("sqlite", "mysql"))


def measure_all(seconds: float, rate: float | None, dialects: Sequence[Dialect]) -> list[Figure]:
    """Measure these sources one after another; a signal stops it and cleans up."""
    found: list[Figure] = []
    with stopped_by_signals():
        for dialect in dialects:
            found += measure(dialect, seconds, rate or RATE)
            if rate is None and dialect == "mysql":
                found += count(dialect, seconds, FAST_RATE)
    return found


@click.command()
@click.option("--short", is_flag=True, help=f"Measure for {SHORT_SECONDS:g} seconds.")
@click.option("--seconds", type=float, help=f"Measure for so long; {SECONDS:g} when left out.")
@click.option("--rate", type=float, help="Transactions a second, and no other rate.")
@click.option("--source", "dialect", type=click.Choice(["sqlite", "mysql"]), help="Only this one.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write figures here.")
def main(
    short: bool,
    seconds: float | None,
    rate: float | None,
    dialect: Dialect | None,
    json_file: Path | None,
) -> None:
    """Measure the time from a commit to the consumer's callback, and the CPU time."""
    length_s = seconds or (SHORT_SECONDS if short else SECONDS)
    dialects: tuple[Dialect, ...] = (dialect,) if dialect else ("sqlite", "mysql")
    with Console(stderr=True).status("measuring latency …"):
        found = measure_all(length_s, rate, dialects)
    publish("latency", found, json_file)


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.latency")
