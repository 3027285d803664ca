"""Kills relay and client on schedule while a writer runs; then compares everything."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)

from benchmarks.shared.report import Figure, at_most
from benchmarks.torture.checks import Findings, check_log, check_rows
from benchmarks.torture.kills import Kill, lead_of, plan_kills
from benchmarks.torture.log import Log
from benchmarks.torture.mix import MIXES, counts_of
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
from databus.demo.stage import Stage

POLL_S = 0.002
STALLED_S = 120.0  # without progress for this time something hangs
DEFAULT_MIXES: dict[Dialect, tuple[str, ...]] = {
    "sqlite": ("plain",),
    "mysql": MIXES,
}
RING_BYTES = "24MiB"  # wraps several times in a long run, and holds several leads


@dataclass(frozen=True, slots=True)
class Plan:
    """The options of the command line."""

    dialect: Dialect
    transactions: int
    kills: int
    seed: int
    rate: float
    mix: tuple[str, ...] = ("plain",)


@dataclass
class Outcome:
    """The results, for the last line."""

    findings: Findings = field(default_factory=Findings)
    relay_kills: int = 0
    client_kills: int = 0
    rolled_back: int = 0
    rows: int = 0
    seconds: float = 0.0


class Torture:
    """One run on an open stage."""

    def __init__(self, plan: Plan, stage: Stage, tell: Callable[[int], None]) -> None:
        self._plan = plan
        self._stage = stage
        self._tell = tell
        self.outcome = Outcome()
        self._writer = stage.child("writer", self._writer_command())
        self.client = stage.child("client", self._client_command())

    def run(self) -> Outcome:
        """Run the torture; raises ChildError when a process fails or progress stops."""
        started = time.monotonic()
        self._stage.start_relay()
        with SharedNumber(self._stage.folder / "applied") as applied:
            self.client.start()
            self._writer.start()
            span = (1.0, float(self._plan.transactions))  # by transactions applied
            spans = {"relay": span, "client": span}
            for kill in plan_kills(self._plan.seed, spans, self._plan.kills):
                self._wait_for(applied, kill.at)
                self._kill(kill, applied)
            self._wait_for(applied, self._plan.transactions)
        self._writer.wait(STALLED_S)
        self._writer.check()
        self.client.stop()
        self._check()
        self.outcome.seconds = time.monotonic() - started
        return self.outcome

    def _writer_command(self) -> list[str]:
        plan = self._plan
        return python_module(
            "benchmarks.torture.writer",
            *self._stage.database.arguments(),
            *("--seed", plan.seed, "--transactions", plan.transactions, "--rate", plan.rate),
            *("--lead", lead_of(plan.transactions, plan.kills), "--folder", self._stage.folder),
            *("--mix", ",".join(plan.mix)),
        )

    def _client_command(self) -> list[str]:
        where = ("--relay", self._stage.url, "--folder", self._stage.folder)
        mix = ("--mix", ",".join(self._plan.mix))
        return python_module("benchmarks.torture.client", *where, *mix)

    def _wait_for(self, applied: SharedNumber, transaction: float) -> None:
        seen, since = -1, time.monotonic()
        while (now := applied.get()) < transaction:
            if now != seen:
                seen, since = now, time.monotonic()
                self._tell(now)
            elif time.monotonic() - since > STALLED_S:
                said = self._stage.relay.log_tail()
                raise ChildError(
                    f"nothing applied for {STALLED_S:g} s after transaction {now}; "
                    f"the relay said:\n{said}"
                )
            for child in (self._writer, self._stage.relay, self.client):
                child.check()
            check_signals()
            time.sleep(POLL_S)
        self._tell(applied.get())

    def _kill(self, kill: Kill, applied: SharedNumber) -> None:
        time.sleep(kill.delay_s)
        victim: Child = self._stage.relay if kill.victim == "relay" else self.client
        was_running = victim.exit_code is None
        victim.kill()
        if not was_running or applied.get() >= self._plan.transactions:
            self.outcome.findings.add(f"the kill of the {kill.victim} at {kill.at:.0f} hit nothing")
        elif kill.victim == "relay":
            self.outcome.relay_kills += 1
        else:
            self.outcome.client_kills += 1
        victim.start()

    def _check(self) -> None:
        log, source = Log(self._stage.folder / "client.db"), self._stage.database.connect()
        try:
            check_log(log.deliveries(), self._plan.transactions, self.outcome.findings)
            for table in TABLES:
                rows = source.rows(table.select())
                self.outcome.rows += len(rows)
                check_rows(table, log.rows(table), rows, self.outcome.findings)
        finally:
            log.close()
            source.close()
        with SharedNumber(self._stage.folder / "rolled_back") as rolled_back:
            self.outcome.rolled_back = rolled_back.get()


def torture(plan: Plan, tell: Callable[[int], None] = lambda _: None) -> Outcome:
    """Make a stage, torture it, clean up, and return the results."""
    creates = [table.create(plan.dialect) for table in TABLES]
    with (
        stopped_by_signals(),
        Stage(plan.dialect, creates, SOURCES, ring_bytes=RING_BYTES) as stage,
    ):
        return Torture(plan, stage, tell).run()


def last_line(plan: Plan, outcome: Outcome) -> str:
    """Return the counts."""
    found = outcome.findings
    return (
        f"{plan.dialect}, seed {plan.seed}: {found.transactions} of {plan.transactions} "
        f"transactions delivered, {outcome.rolled_back} rolled back, "
        f"{outcome.relay_kills} relay kills, {outcome.client_kills} client kills, "
        f"{found.windows} windows, {found.redelivered_windows} of them again, "
        f"{found.events} events, {found.rollbacks} rollbacks, "
        f"{outcome.rows} rows compared in {len(TABLES)} tables, "
        f"{_mix_text(plan)}"
        f"{outcome.seconds:.0f} s: {found.problem_count or 'no'} problems"
    )


def _mix_text(plan: Plan) -> str:
    counts = counts_of(plan.seed, plan.transactions, plan.mix)
    return "".join(f"{count} {name}, " for name, count in counts.items())


def parse_mix(
    _context: click.Context, _parameter: click.Parameter, value: str | None
) -> tuple[str, ...] | None:
    """Read the words of --mix."""
    if value is None:
        return None
    found = tuple(dict.fromkeys(("plain", *(word.strip() for word in value.split(",")))))
    unknown = [word for word in found if word not in MIXES]
    if unknown:
        raise click.BadParameter(f"{', '.join(unknown)}: write {', '.join(MIXES)}")
    return found


def figures(short: bool = False) -> list[Figure]:
    """Torture both sources with a fixed seed; return the number of problems of each."""
    found = []
    dialects: tuple[Dialect, Dialect] = ("sqlite", "mysql")
    for dialect in dialects:
        shape = (400, 3, 1, 150.0) if short else (20_000, 20, 1, 400.0)
        plan = Plan(dialect, *shape, DEFAULT_MIXES[dialect])
        problems = torture(plan).findings.problem_count
        kills = f"{2 * plan.kills} kills, {plan.transactions} transactions"
        found.append(Figure(f"torture {dialect} ({kills})", problems, "problems", at_most(0)))
    return found


@click.command()
@click.option("--source", "dialect", type=click.Choice(["sqlite", "mysql"]), default="sqlite")
@click.option("--transactions", type=click.IntRange(1), default=20_000, show_default=True)
@click.option("--kills", type=click.IntRange(0), default=20, help="Of relay and client each.")
@click.option("--seed", type=int, help="Repeats a run; drawn when left out.")
@click.option("--rate", type=float, default=400.0, help="Most transactions a second.")
@click.option(
    "--mix",
    callback=parse_mix,
    help=f"MySQL: what happens, of {','.join(MIXES)}; "
    f"{','.join(DEFAULT_MIXES['mysql'])} when left out.",
)
def main(
    dialect: Dialect,
    transactions: int,
    kills: int,
    seed: int | None,
    rate: float,
    mix: tuple[str, ...] | None,
) -> None:
    """Kill relay and client repeatedly; print problems, and exit 1 if there are any."""
    if dialect == "sqlite" and mix not in (None, ("plain",)):
        raise click.UsageError("--mix is for --source mysql")
    plan = Plan(
        dialect,
        transactions,
        kills,
        random.randrange(10**6) if seed is None else seed,
        rate,
        mix or DEFAULT_MIXES[dialect],
    )
    click.echo(f"seed {plan.seed}")
    outcome = _torture_with_bar(plan)
    tell_and_exit(outcome.findings, last_line(plan, outcome))


def tell_and_exit(findings: Findings, counts: str) -> NoReturn:
    """Print the problems and then the counts; exit with 1 if there are problems."""
    for problem in findings.problems:
        click.echo(f"PROBLEM: {problem}")
    click.echo(counts)
    raise SystemExit(1 if findings.problem_count else 0)


def _torture_with_bar(plan: Plan) -> Outcome:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, TimeElapsedColumn(), console=console, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(f"torturing {plan.dialect}", total=plan.transactions)
        return torture(plan, lambda now: bar.update(task, completed=now))
