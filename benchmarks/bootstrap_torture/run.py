"""Kills all processes on schedule while the source is written to; then compares everything.

Progress is a number from 0 to 3: up to 1 the share of rows seeded, up to 2 that
of rows that the client has been given, up to 3 that of the transactions that
are committed once it is live. Kills are due at points of progress: each victim
has work to do then.
"""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from benchmarks.bootstrap_torture.checks import BootstrapFindings, check_log, check_tables
from benchmarks.bootstrap_torture.filling import fill
from benchmarks.bootstrap_torture.log import GuardedLog
from benchmarks.bootstrap_torture.stage import BootstrapStage
from benchmarks.bootstrap_torture.times import Rate, Times
from benchmarks.shared.report import Figure, at_most
from benchmarks.torture.kills import Kill, plan_kills
from benchmarks.torture.run import tell_and_exit
from benchmarks.torture.shared_number import SharedNumber
from benchmarks.torture.workload import SOURCES, TABLES
from databus.demo.databases import Dialect
from databus.demo.processes import (
    Child,
    ChildError,
    check_signals,
    python_module,
    stopped_by_signals,
)

POLL_S = 0.004
STALLED_S = 120.0  # without progress for this time something hangs
SEEDER_REST_S = 0.2  # between two runs of a seeder that ends by itself
MOST_SEEDER_FAILURES = 20
LIVE_S = 4.0  # of transactions, for each kill at least half as many

# Which part of the progress each victim has work in.
SPANS = {
    "relay": (0.0, 3.0),
    "producer": (0.0, 3.0),
    "seeder": (0.0, 1.0),
    "server": (1.0, 2.0),
    "client": (1.0, 3.0),
}
BEST_EFFORT = 0.999  # of a phase, as long as its end is not seen
Tell = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """The options of the command line."""

    dialect: Dialect
    rows: int
    kills: int
    seed: int
    rate: float
    ring_bytes: str = "16MiB"

    @property
    def is_small(self) -> bool:
        """Whether pages and chunks must be small for kills to fall between them."""
        return self.rows <= 100_000

    @property
    def seeding(self) -> dict[str, int]:
        """Settings of the seeder, so that it does not finish a small source at once."""
        if not self.is_small:
            return {}
        return {
            "chunk_rows": max(20, self.rows // 200),
            "most_rows_per_s": max(500, self.rows // 4),
        }

    @property
    def fetch_bytes(self) -> int:
        """The size of the client's pages."""
        return 32 << 10 if self.is_small else 1 << 20

    @property
    def live_transactions(self) -> int:
        """How many transactions are committed after the client went live."""
        return int(self.rate * max(LIVE_S, LIVE_S * self.kills / 2))


@dataclass
class Outcome:
    """The results, for the last lines."""

    times: Times = field(default_factory=Times)
    findings: BootstrapFindings = field(default_factory=BootstrapFindings)
    kills: Counter[str] = field(default_factory=Counter)
    counts: dict[str, int] = field(default_factory=dict)
    rate: str = ""
    seeder_runs: int = 0
    committed: int = 0
    rows: int = 0


class Torture:
    """One run on an open stage."""

    def __init__(self, plan: Plan, stage: BootstrapStage, stack: ExitStack, tell: Tell) -> None:
        self._plan = plan
        self._stage = stage
        self._tell = tell
        self.outcome = Outcome()
        self._writer = stage.child("writer", self._writer_command())
        self._client = stage.child("client", self._client_command())
        numbers = ("rate", "committed", "bootstrapped", "is_live", "applied")
        self._numbers = {
            name: stack.enter_context(SharedNumber(stage.folder / name)) for name in numbers
        }
        self._kills = plan_kills(plan.seed, SPANS, plan.kills)
        self._progress = 0.0
        self._committed_before_live = 0
        self._seeder_failures = 0
        self._seeder_due_s = 0.0
        self._rate: Rate | None = None

    def run(self) -> Outcome:
        """Run the torture; raises ChildError when a process fails or progress stops."""
        times = self.outcome.times
        times.begin("fill")
        fill(self._stage.database, self._plan.seed, self._plan.rows, self._tell_filled)
        times.begin("evict")
        self._start_source()
        times.begin("seed")
        self._start_pair()
        self._advance(1.0, self._seeded_share)
        times.begin("bootstrap")
        self._client.start()
        self._advance(2.0, self._bootstrapped_share)
        times.begin("live")
        self._committed_before_live = self._get("committed")
        self._advance(3.0, self._live_share)
        times.begin("drain")
        self._drain()
        times.begin("compare")
        self._check()
        times.begin("")
        return self.outcome

    # Processes

    def _writer_command(self) -> list[str]:
        return python_module(
            "benchmarks.bootstrap_torture.writer",
            *self._stage.database.arguments(),
            *("--seed", self._plan.seed, "--rows", self._plan.rows),
            *("--folder", self._stage.folder),
        )

    def _client_command(self) -> list[str]:
        return python_module(
            "benchmarks.bootstrap_torture.client",
            *("--relay", self._stage.url, "--bootstrap-server", self._stage.bootstrap_url),
            *("--fetch-bytes", self._plan.fetch_bytes, "--folder", self._stage.folder),
        )

    def _start_source(self) -> None:
        """Start relay and writer, at full speed until the ring has evicted its first windows."""
        self._stage.start_relay()
        self._writer.start()
        first_scn = -1
        while (oldest_scn := self._stage.oldest_scn()) <= first_scn or first_scn < 0:
            first_scn = first_scn if first_scn >= 0 else oldest_scn
            self._look_after()
            time.sleep(0.05)
        self._numbers["rate"].set(int(self._plan.rate))

    def _start_pair(self) -> None:
        self._rate = Rate(self._get("committed"), time.monotonic())
        for child in (self._stage.producer, self._stage.server, self._stage.seeder):
            child.start()
        self.outcome.seeder_runs += 1

    def _look_after(self) -> None:
        """Raise when a process has failed; restart the seeder until it is done."""
        stage = self._stage
        for child in (self._writer, stage.relay, stage.producer, stage.server, self._client):
            child.check()
        check_signals()
        if self._rate is not None:
            self._rate.take(self._get("committed"), time.monotonic())
            self._look_after_seeder()

    def _look_after_seeder(self) -> None:
        seeder = self._stage.seeder
        if seeder.exit_code is None or self._stage.is_read():
            return
        if self._seeder_due_s == 0:
            self._seeder_due_s = time.monotonic() + SEEDER_REST_S
            self._seeder_failures += seeder.exit_code != 0
            if self._seeder_failures > MOST_SEEDER_FAILURES:
                seeder.check()
        elif time.monotonic() >= self._seeder_due_s:
            self._seeder_due_s = 0
            self.outcome.seeder_runs += 1
            seeder.start()

    # Progress

    def _get(self, name: str) -> int:
        return self._numbers[name].get()

    def _tell_filled(self, rows: int) -> None:
        check_signals()
        self._tell("fill", rows / self._plan.rows)

    def _seeded_share(self) -> float:
        if self._stage.is_read():
            return 1.0
        seeded = sum(state.seed_rows for state in self._stage.states())
        return min(BEST_EFFORT, seeded / self._plan.rows)

    def _bootstrapped_share(self) -> float:
        if self._get("is_live"):
            return 1.0
        return min(BEST_EFFORT, self._get("bootstrapped") / self._plan.rows)

    def _live_share(self) -> float:
        committed = self._get("committed") - self._committed_before_live
        return min(1.0, committed / self._plan.live_transactions)

    def _advance(self, end: float, share: Callable[[], float]) -> None:
        """Carry out the due kills until the progress is `end`."""
        since = time.monotonic()
        while self._progress < end:
            now = max(self._progress, end - 1 + share())
            if now > self._progress:
                since = time.monotonic()
            elif time.monotonic() - since > STALLED_S:
                raise ChildError(
                    f"no progress for {STALLED_S:g} s after {now:.3f}\n{self._tails()}"
                )
            self._progress = now
            self._tell(("seed", "bootstrap", "live")[int(end) - 1], now - end + 1)
            self._kill_due(end)
            self._look_after()
            time.sleep(POLL_S)

    def _kill_due(self, end: float) -> None:
        while self._kills and self._kills[0].at <= min(self._progress, end):
            self._kill(self._kills.pop(0), end)

    def _kill(self, kill: Kill, end: float) -> None:
        time.sleep(kill.delay_s)
        victim = self._victim(kill.victim)
        self.outcome.times.note_cpu(victim)
        was_running = victim.exit_code is None
        victim.kill()
        # The schedule has its last kill well before the end of a victim's span.
        if not was_running or self._progress >= end:
            self.outcome.findings.add(f"the kill of the {kill.victim} at {kill.at:.3f} hit nothing")
        else:
            self.outcome.kills[kill.victim] += 1
        self.outcome.seeder_runs += kill.victim == "seeder"
        victim.start()

    def _victim(self, name: str) -> Child:
        found: Child = self._client if name == "client" else getattr(self._stage, name)
        return found

    def _tails(self) -> str:
        children = [child for child in self._stage.children if child.log_tail()]
        return "\n".join(f"--- {child.name}:\n{child.log_tail()}" for child in children)

    # The end

    def _drain(self) -> None:
        """Stop the writer, and wait until the client has the last transaction."""
        assert self._rate is not None
        self._rate.take(self._get("committed"), time.monotonic())
        self.outcome.rate = str(self._rate)
        self.outcome.times.note_cpu(self._writer)
        self._writer.stop(STALLED_S)
        self.outcome.committed = self._get("committed")
        end = time.monotonic() + STALLED_S
        while self._get("applied") < self.outcome.committed or not self._get("is_live"):
            if time.monotonic() > end:
                raise ChildError(
                    f"the client is at transaction {self._get('applied')} of "
                    f"{self.outcome.committed}\n{self._tails()}"
                )
            self._look_after()
            time.sleep(POLL_S)
        stage = self._stage
        for child in (self._client, stage.seeder, stage.server, stage.producer, stage.relay):
            self.outcome.times.note_cpu(child)
            child.stop()
        self.outcome.times.note_servers()

    def _check(self) -> None:
        log = GuardedLog(self._stage.folder / "client.db")
        source = self._stage.database.connect()
        findings = self.outcome.findings
        try:
            check_log(log.deliveries(), self.outcome.committed, findings)
            self.outcome.rows = check_tables(log, source, findings)
            self.outcome.counts = log.counts()
        finally:
            log.close()
            source.close()


def torture(plan: Plan, tell: Tell = lambda *_: None, logs: Path | None = None) -> Outcome:
    """Make a stage, torture it, return the results; only `logs` remain."""
    creates = [table.create(plan.dialect) for table in TABLES]
    made = BootstrapStage(
        plan.dialect, creates, SOURCES, ring_bytes=plan.ring_bytes, seeding=plan.seeding
    )
    with (
        stopped_by_signals(),
        made as stage,
        ExitStack() as stack,
    ):
        if logs is not None:
            stack.callback(_keep_logs, stage.folder, logs)
        return Torture(plan, stage, stack, tell).run()


def _keep_logs(folder: Path, logs: Path) -> None:
    logs.mkdir(parents=True, exist_ok=True)
    for pattern in ("*.log", "*.toml", "client.db*", "checkpoints/*", "bootstrap/*.db*"):
        for file in folder.glob(pattern):
            shutil.copy(file, logs / f"{file.parent.name}-{file.name}")


def last_line(plan: Plan, outcome: Outcome) -> str:
    """Return the counts."""
    found, counts = outcome.findings, outcome.counts
    kills = ", ".join(f"{outcome.kills[victim]} {victim}" for victim in SPANS)
    return (
        f"{plan.dialect}, seed {plan.seed}: {plan.rows} rows, {outcome.committed} transactions "
        f"at {outcome.rate}; kills: {kills}; {outcome.seeder_runs} runs of the seeder; "
        f"{found.runs} runs of the client, {counts.get('bootstrapped', 0)} events in "
        f"{found.pages} pages, {counts.get('deleted_after_it_came', 0)} rows deleted after they "
        f"came, then {counts.get('live', 0)} events in {found.windows} windows, "
        f"{found.redelivered_windows} of them again, {found.rollbacks} rollbacks; "
        f"{outcome.rows} rows compared in {len(TABLES)} tables, "
        f"{outcome.times.total_s:.0f} s: {found.problem_count or 'no'} problems"
    )


def figures(short: bool = False) -> list[Figure]:
    """Torture both sources with a fixed seed; return the number of problems of each."""
    found = []
    dialects: tuple[Dialect, Dialect] = ("sqlite", "mysql")
    for dialect in dialects:
        rows, kills, rate = (5_000, 1, 100) if short else (1_000_000, 10, 300)
        plan = Plan(dialect, rows, kills, 1, rate, "1MiB" if short else "16MiB")
        problems = torture(plan).findings.problem_count
        shape = f"{rows} rows, {len(SPANS) * kills} kills"
        found.append(
            Figure(f"bootstrap torture {dialect} ({shape})", problems, "problems", at_most(0))
        )
    return found


@click.command()
@click.option("--source", "dialect", type=click.Choice(["sqlite", "mysql"]), default="sqlite")
@click.option("--rows", type=click.IntRange(100), default=1_000_000, show_default=True)
@click.option("--kills", type=click.IntRange(0), default=0, help="Of each of the five processes.")
@click.option("--seed", type=int, help="Repeats a plan; drawn when left out.")
@click.option("--rate", type=float, default=300.0, show_default=True, help="Transactions a second.")
@click.option("--ring", "ring_bytes", default="16MiB", show_default=True, help="The relay's ring.")
@click.option("--logs", type=click.Path(path_type=Path), help="Keep the processes' logs here.")
def main(
    dialect: Dialect,
    rows: int,
    kills: int,
    seed: int | None,
    rate: float,
    ring_bytes: str,
    logs: Path | None,
) -> None:
    """Bootstrap a new client from a busy source; print problems, and exit 1 if there are any."""
    chosen = random.randrange(10**6) if seed is None else seed
    plan = Plan(dialect, rows, kills, chosen, rate, ring_bytes)
    click.echo(f"seed {plan.seed}")
    outcome = _torture_with_bar(plan, logs)
    for line in outcome.times.lines():
        click.echo(line)
    click.echo(f"checkpoints: {' -> '.join(outcome.findings.modes)}")
    tell_and_exit(outcome.findings, last_line(plan, outcome))


def _torture_with_bar(plan: Plan, logs: Path | None) -> Outcome:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(
        *columns, TimeElapsedColumn(), console=console, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(plan.dialect, total=1.0)

        def tell(phase: str, share: float) -> None:
            bar.update(task, description=f"{plan.dialect}: {phase}", completed=share)

        return torture(plan, tell, logs)
