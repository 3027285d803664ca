"""Kills all processes on schedule while the source is written to; then compares everything."""

from __future__ import annotations

import random
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import click
from deltalake import DeltaTable
from rich.console import Console

from benchmarks.bootstrap_torture.filling import fill
from benchmarks.bootstrap_torture.stage import BootstrapStage
from benchmarks.bootstrap_torture.times import Times
from benchmarks.shared.report import Figure, at_most
from benchmarks.spark_torture.checks import JobFindings, check_readings, plain_rows
from benchmarks.spark_torture.job import NUMBERS, target_uri
from benchmarks.spark_torture.kills import Kill, plan_kills
from benchmarks.spark_torture.log import BatchLog
from benchmarks.spark_torture.many_tables import FORMS, TablesPlan, drawn, torture_tables
from benchmarks.spark_torture.processes import kill_tree, task_processes
from benchmarks.torture.checks import check_rows
from benchmarks.torture.run import tell_and_exit
from benchmarks.torture.shared_number import SharedNumber
from benchmarks.torture.workload import SOURCES, TABLES
from databus.demo.processes import (
    Child,
    ChildError,
    check_signals,
    python_module,
    stopped_by_signals,
)

POLL_S = 0.02
STALLED_S = 240.0  # without a batch for this time something hangs
STOP_S = 60.0
LIVE_BATCHES = 2  # at least, after the last kill
SNAPSHOT_BATCHES = 8
LEAST_ROWS_PER_BATCH = 1000
FORGETFUL_LOG_S = 1
REUSED_KEYS = 0.3  # of new rows: keys come back
# A column that is added in mid-stream: older rows have its default.
GROWING = TABLES[-1]
COLUMN = "score"
GROW = (
    f"ALTER TABLE {GROWING.name} ADD COLUMN {COLUMN} BIGINT",
    f"ALTER TABLE {GROWING.name} ALTER COLUMN {COLUMN} SET DEFAULT 7",
)
NEW_COLUMN = b"the query was started without it"
WORKERS, EXECUTORS = "local[2,4]", "local-cluster[2,1,1024]"
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """The options of the command line. `log_s`: how long the bootstrap pair keeps changes."""

    rows: int
    kills: int
    seed: int
    rate: float
    master: str
    ring_bytes: str = "1MiB"
    log_s: int = 600
    falls_off: bool = True

    @property
    def rows_per_batch(self) -> int:
        """The rows of a batch, so that a snapshot takes several."""
        return max(LEAST_ROWS_PER_BATCH, self.rows // SNAPSHOT_BATCHES)

    @property
    def settings(self) -> dict[str, int]:
        """Settings of the bootstrap pair."""
        return {"log_retention_s": self.log_s, "retention_every_s": 1}


@dataclass
class Outcome:
    """The results, for the last line."""

    findings: JobFindings = field(default_factory=JobFindings)
    kills: Counter[str] = field(default_factory=Counter)
    times: Times = field(default_factory=Times)
    column_restarts: int = 0
    committed: int = 0
    rows: int = 0


class Torture:
    """One run on an open stage."""

    def __init__(self, plan: Plan, stage: BootstrapStage, stack: ExitStack, tell: Tell) -> None:
        self._plan = plan
        self._stage = stage
        self.outcome = Outcome()
        self._show = tell
        self._writer = stage.child("writer", self._writer_command())
        self._job = stage.child("job", self._job_command())
        self._numbers = {
            name: stack.enter_context(SharedNumber(stage.folder / name))
            for name in ("rate", "committed", *NUMBERS)
        }
        self._random = random.Random(f"executors {plan.seed}")
        self._log_bytes = 0  # of the job, before it was started last
        self._is_job_away = True

    def run(self) -> Outcome:
        """Run the torture; raises ChildError when a process fails or progress stops."""
        self._tell("fill")
        fill(self._stage.database, self._plan.seed, self._plan.rows, lambda _: check_signals())
        self._start_servers()
        self._start_job()
        try:
            self._tell("kill")
            for number, kill in enumerate(plan_kills(self._plan.seed, self._plan.kills)):
                self._show(f"kill {number + 1} of {self._plan.kills}")
                if number == self._plan.kills // 2:
                    self._grow()
                self._wait_for_batches(kill.batches)
                self._kill(kill)
            if self._plan.falls_off:
                self._tell("fall off")
                self._fall_off()
            self._tell("drain")
            self._drain()
        finally:
            kill_tree(self._job)
        self._tell("compare")
        self._check()
        self.outcome.times.begin("")
        return self.outcome

    def _tell(self, phase: str) -> None:
        self._show(phase)
        self.outcome.times.begin(phase)

    # Processes

    def _writer_command(self) -> list[str]:
        return python_module(
            "benchmarks.bootstrap_torture.writer",
            *self._stage.database.arguments(),
            *("--seed", self._plan.seed, "--rows", self._plan.rows),
            *("--folder", self._stage.folder, "--reused-keys", REUSED_KEYS),
        )

    def _job_command(self) -> list[str]:
        return python_module(
            "benchmarks.spark_torture.job",
            *("--relay", self._stage.url, "--bootstrap-server", self._stage.bootstrap_url),
            *("--rows-per-batch", self._plan.rows_per_batch, "--master", self._plan.master),
            *("--folder", self._stage.folder),
        )

    def _start_servers(self) -> None:
        """Start all but the job; the writer runs at full speed until the ring evicts windows."""
        stage = self._stage
        self._tell("evict")
        stage.start_relay()
        self._writer.start()
        first_scn = -1

        def has_evicted() -> bool:
            nonlocal first_scn
            oldest_scn = stage.oldest_scn()
            if first_scn < 0:
                first_scn = oldest_scn
            return 0 <= first_scn < oldest_scn

        self._wait(has_evicted, "the ring to be full")
        self._numbers["rate"].set(int(self._plan.rate))
        self._tell("seed")
        for child in (stage.producer, stage.server, stage.seeder):
            child.start()
        self._wait(self._is_seeded, "the bootstrap pair")

    def _is_seeded(self) -> bool:
        stage = self._stage
        if stage.is_active():
            return True
        # It ends by itself when the producer has not begun yet.
        if stage.seeder.exit_code is not None and not stage.is_read():
            stage.seeder.start()
        return False

    def _look_after(self) -> None:
        stage = self._stage
        for child in (self._writer, stage.relay, stage.producer, stage.server):
            child.check()
        self._look_after_job()
        check_signals()

    def _start_job(self) -> None:
        log = self._job.log
        self._log_bytes = log.stat().st_size if log.exists() else 0
        self._job.start()
        self._is_job_away = False

    def _kill_job(self) -> None:
        self._is_job_away = True
        kill_tree(self._job)

    def _look_after_job(self) -> None:
        """Restart the job if it ended because of the new column, as its error demands."""
        if self._is_job_away or not self._job.exit_code:
            return
        if NEW_COLUMN not in self._job.log.read_bytes()[self._log_bytes :]:
            self._job.check()
        self._kill_job()
        self.outcome.column_restarts += 1
        self._start_job()

    def _grow(self) -> None:
        session = self._stage.database.connect()
        try:
            for statement in GROW:
                session.execute(statement)
        finally:
            session.close()

    # Progress

    def _get(self, name: str) -> int:
        return self._numbers[name].get()

    def _wait(self, is_so: Callable[[], bool], what: str) -> None:
        """Wait for a condition; raises ChildError if no batch begins for long."""
        seen, since = -1, time.monotonic()
        while not is_so():
            self._look_after()
            if (begun := self._get("begun")) != seen:
                seen, since = begun, time.monotonic()
            elif time.monotonic() - since > STALLED_S:
                raise ChildError(f"waited {STALLED_S:g} s in vain for {what}\n{self._tails()}")
            time.sleep(POLL_S)

    def _wait_for_batches(self, count: int) -> None:
        wanted = self._get("begun") + count
        self._wait(lambda: self._get("begun") >= wanted, "a batch")

    def _kill(self, kill: Kill) -> None:
        time.sleep(kill.delay_s)
        if kill.victim == "driver":
            self._look_after_job()
            self._kill_job()
            self._start_job()
        elif kill.victim == "executor":
            self._wait(lambda: bool(task_processes(self._job)), "an executor")
            self._random.choice(task_processes(self._job)).kill()
        else:
            victim: Child = getattr(self._stage, kill.victim)
            victim.check()
            victim.kill()
            victim.start()
        self.outcome.kills[kill.victim] += 1

    def _fall_off(self) -> None:
        """Keep the job stopped until no log reaches back to its planned batch."""
        self._wait(lambda: bool(self._get("is_live")), "the stream")
        self._kill_job()
        position = self._get("at_scn")
        self._set_log_s(FORGETFUL_LOG_S)
        self._wait(lambda: self._log_floor_scn() > position, "the log to forget")
        self._set_log_s(self._plan.log_s)
        self._numbers["is_live"].set(0)
        self._start_job()

    def _set_log_s(self, seconds: int) -> None:
        """Set how long the bootstrap pair keeps changes."""
        producer, file = self._stage.producer, self._stage.folder / "bootstrap.toml"
        producer.check()
        producer.kill()
        text = file.read_text(encoding="utf-8")
        setting = f"log_retention_s = {seconds}"
        file.write_text(re.sub(r"log_retention_s = \d+", setting, text), encoding="utf-8")
        producer.start()

    def _log_floor_scn(self) -> int:
        return min(state.log_floor_scn for state in self._stage.states())

    def _tails(self) -> str:
        children = [child for child in self._stage.children if child.log_tail()]
        return "\n".join(f"--- {child.name}:\n{child.log_tail()}" for child in children)

    # The end

    def _drain(self) -> None:
        """Stop the writer once the job streams, and wait for the last transaction."""
        self._wait(lambda: bool(self._get("is_live")), "the stream")
        self._wait_for_batches(LIVE_BATCHES)
        self._writer.stop(STOP_S)
        self.outcome.committed = self._get("committed")
        self._wait(lambda: self._get("applied") >= self.outcome.committed, "the last transaction")
        self._job.stop(STOP_S)
        self._job.check()

    def _check(self) -> None:
        findings = self.outcome.findings
        log = BatchLog(self._stage.folder / "batches.db")
        source = self._stage.database.connect()
        grown = replace(GROWING, columns={**GROWING.columns, COLUMN: "int"})
        try:
            check_readings(log.readings(), self.outcome.committed, self._plan.falls_off, findings)
            for table in (*TABLES[:-1], grown if self._plan.kills else GROWING):
                rows = source.rows(table.select())
                path = target_uri(self._stage.folder, table.name).removeprefix("delta:")
                held = DeltaTable(path).to_pyarrow_table(columns=list(table.columns))
                applied = plain_rows([column.to_pylist() for column in held.columns])
                if len(applied) != len(rows):
                    findings.add(f"{table.name}: {len(applied)} rows instead of {len(rows)}")
                check_rows(table, applied, rows, findings)
                self.outcome.rows += len(rows)
        finally:
            log.close()
            source.close()


def torture(plan: Plan, tell: Tell = lambda _: None, logs: Path | None = None) -> Outcome:
    """Make a stage, torture it, return the results; only `logs` remain."""
    creates = [table.create("mysql") for table in TABLES]
    made = BootstrapStage(
        "mysql", creates, SOURCES, ring_bytes=plan.ring_bytes, seeding=plan.settings
    )
    with stopped_by_signals(), made as stage, ExitStack() as stack:
        if logs is not None:
            stack.callback(_keep_logs, stage.folder, logs)
        return Torture(plan, stage, stack, tell).run()


def _keep_logs(folder: Path, logs: Path) -> None:
    logs.mkdir(parents=True, exist_ok=True)
    for pattern in ("*.log", "*.toml", "batches.db*", "query/offsets/*"):
        for file in folder.glob(pattern):
            shutil.copy(file, logs / f"{file.parent.name}-{file.name}")


def last_line(plan: Plan, outcome: Outcome) -> str:
    """Return the counts."""
    found = outcome.findings
    kills = ", ".join(f"{count} {victim}" for victim, count in sorted(outcome.kills.items()))
    homes = ", ".join(f"{found.homes[home]} {home}" for home in ("ring", "log", "unknown"))
    return (
        f"{plan.master}, seed {plan.seed}: {plan.rows} rows, {outcome.committed} transactions; "
        f"kills: {kills or 'none'}; {found.runs} runs of the job, "
        f"{outcome.column_restarts} for a new column; {found.batches} batches, "
        f"{found.replayed} read again; {len(found.whole_snapshots)} whole and "
        f"{len(found.partial_snapshots)} partial snapshots of {found.rows['snapshot']} rows; "
        f"{found.windows} windows of {found.rows['windows']} rows in batches from: {homes}; "
        f"{outcome.rows} rows compared in {len(TABLES)} tables, "
        f"{outcome.times.total_s:.0f} s: {found.problem_count or 'no'} problems"
    )


def figures(short: bool = False) -> list[Figure]:
    """Torture a job with a fixed seed; the figure is the number of problems."""
    plan = Plan(200_000, 8, 1, 200, EXECUTORS)
    if short:
        plan = Plan(4_000, 2, 1, 50, WORKERS, falls_off=False)
    problems = torture(plan).findings.problem_count
    name = f"spark torture ({plan.rows} rows, {plan.kills} kills)"
    return [Figure(name, problems, "problems", at_most(0))]


def _torture_tables(plan: TablesPlan) -> None:
    """Torture many tables in one job; exit 1 and print problems if there are any."""
    click.echo(f"seed {plan.seed}")
    outcome = torture_tables(plan)
    for problem in outcome.problems:
        click.echo(problem)
    click.echo(outcome.line(plan))
    sys.exit(bool(outcome.problems))


@click.command()
@click.option("--rows", type=click.IntRange(100), default=200_000, show_default=True)
@click.option("--kills", type=click.IntRange(0), default=8, show_default=True, help="In all.")
@click.option("--seed", type=int, help="Repeats a plan; drawn when left out.")
@click.option("--rate", type=float, default=200.0, show_default=True, help="Transactions a second.")
@click.option("--ring", "ring_bytes", default="4MiB", show_default=True, help="The relay's ring.")
@click.option("--log-s", default=600, show_default=True, help="Kept in the bootstrap log.")
@click.option(
    "--falls-off/--holds-on",
    default=True,
    show_default=True,
    help="Whether the job is once away for longer than the bootstrap log reaches back.",
)
@click.option(
    "--master",
    default=EXECUTORS,
    show_default=True,
    help=f"Spark's: with executors of their own, or {WORKERS}, which has Python workers to kill.",
)
@click.option(
    "--tables",
    type=click.IntRange(0),
    default=0,
    help="Torture `databus spark sync` of so many tables instead.",
)
@click.option("--ddl", default=30, show_default=True, help="With --tables: statements of DDL.")
@click.option(
    "--cluster",
    type=click.Choice(["standalone", "local"]),
    default="standalone",
    show_default=True,
    help="With --tables: two workers as processes of their own, or this machine.",
)
@click.option(
    "--target", type=click.Choice(FORMS), default="delta", help="With --tables: of which form."
)
@click.option("--logs", type=click.Path(path_type=Path), help="Keep the processes' logs here.")
def main(
    rows: int,
    kills: int,
    seed: int | None,
    rate: float,
    ring_bytes: str,
    log_s: int,
    falls_off: bool,
    master: str,
    tables: int,
    ddl: int,
    cluster: str,
    target: str,
    logs: Path | None,
) -> None:
    """Follow a busy source into Delta tables despite kills; exit 1 and print problems if any."""
    if tables:
        _torture_tables(TablesPlan(tables, kills, ddl, drawn(seed), target, cluster != "local"))
        return
    plan = Plan(rows, kills, drawn(seed), rate, master, ring_bytes, log_s, falls_off)
    click.echo(f"seed {plan.seed}")
    console = Console(stderr=True)
    with console.status("start") as status:
        outcome = torture(plan, lambda text: status.update(text), logs)
    for line in outcome.times.lines()[:1]:
        click.echo(line)
    tell_and_exit(outcome.findings, last_line(plan, outcome))
