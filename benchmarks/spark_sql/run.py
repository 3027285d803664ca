"""Changes two shops, follows them with three jobs that are stopped and restarted, and compares."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import click
from pyspark.sql import SparkSession
from rich.console import Console

from benchmarks.shared.report import Figure, at_most
from benchmarks.spark_sql.jobs import JOBS, expected, in_order, make_view, write_jobs
from benchmarks.spark_sql.shop import SOURCES, Shop, Sizes, create
from databus.client.spark.session import job_session
from databus.client.spark.sql.job_file import SqlJob, read_job
from databus.client.spark.sql.run import RunSummary, run
from databus.client.spark.targets.target import open_target
from databus.demo.databases import Dialect
from databus.demo.processes import stopped_by_signals, wait_until
from databus.demo.stage import Stage

SEEDED_TIMEOUT_S = 60.0
BEGUN_TIMEOUT_S = 300.0
MOST_PROBLEMS_SHOWN = 20

SPARK = {
    "spark.master": "local[2,4]",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


@dataclass(frozen=True, slots=True)
class Plan:
    """The options of the command line."""

    dialect: Dialect
    changes: int
    seed: int

    @property
    def orders(self) -> int:
        """The number of facts at the start."""
        return max(60, self.changes // 5)

    @property
    def rows_per_batch(self) -> int:
        """The rows of a batch, small enough that load and changes take several batches."""
        return max(50, self.changes // 8)


@dataclass
class Outcome:
    """The results, for the last line."""

    changes: int = 0
    transactions: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    batches: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    problem_count: int = 0
    total_s: float = 0.0

    def add(self, problem: str) -> None:
        """Count a problem, and store it if there are few so far."""
        self.problem_count += 1
        if len(self.problems) < MOST_PROBLEMS_SHOWN:
            self.problems.append(problem)


class Following:
    """A job that runs on a thread until it is stopped."""

    def __init__(self, name: str, job: SqlJob, spark: SparkSession) -> None:
        self.name = name
        self._stop = threading.Event()
        self._batches = 0
        self.summary = RunSummary()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(job, spark), name=name)

    def start(self) -> None:
        """Start the job."""
        self._thread.start()

    @property
    def has_begun(self) -> bool:
        """Whether a batch was applied; raises the job's error."""
        if self._error is not None:
            raise self._error
        return self._batches > 0

    def stop(self) -> RunSummary:
        """Stop the job, within a batch or between two; raises its earlier error."""
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self.summary

    def _run(self, job: SqlJob, spark: SparkSession) -> None:
        try:
            self.summary = run(job, spark, stop=self._stop, on_batch=self._count)
        except BaseException as error:  # raised again by whoever waits for it
            self._error = error

    def _count(self, _: object) -> None:
        self._batches += 1


def compare(plan: Plan, spark: SparkSession) -> Outcome:
    """Run everything and clean up. Raises DatabusError when a part fails."""
    began = time.monotonic()
    outcome = Outcome()
    statements = create(plan.dialect)
    with stopped_by_signals(), ExitStack() as stack:
        stages = [
            stack.enter_context(Stage(plan.dialect, statements, SOURCES, physical_source=name))
            for name in ("east", "west")
        ]
        shops = [
            Shop(stage.database, plan.seed + number, Sizes.of(plan.orders))
            for number, stage in enumerate(stages)
        ]
        for stage, shop in zip(stages, shops, strict=True):
            _prepare(stage, shop)
        east, west = shops
        make_view(east)
        folder = stages[0].folder
        files = write_jobs(folder, stages[0], stages[1], plan.rows_per_batch)
        jobs = {name: read_job(file) for name, file in files.items()}
        _follow(jobs, spark, shops, plan.changes, outcome)
        for name, job in jobs.items():
            _check(name, job, spark, expected(name, east, west), outcome)
    outcome.total_s = time.monotonic() - began
    return outcome


def _prepare(stage: Stage, shop: Shop) -> None:
    shop.fill()
    stage.start_relay()
    shop.touch()
    stage.start_bootstrap()
    wait_until(lambda: stage.is_seeded, SEEDED_TIMEOUT_S, "the bootstrap pair")


def _follow(
    jobs: dict[str, SqlJob], spark: SparkSession, shops: list[Shop], changes: int, outcome: Outcome
) -> None:
    """Run the jobs during the changes; stop them half-way, and let them catch up at the end."""
    writer = _written(shops, changes)
    for share in (1, 2):
        following = [Following(name, job, spark) for name, job in jobs.items()]
        started = []
        try:
            for one in following:  # each alone, for starting is all the CPU's work
                started.append(one)
                one.start()
                wait_until(partial(_has_begun, one), BEGUN_TIMEOUT_S, "a batch")
            while outcome.changes < changes * share // 2:
                outcome.changes += next(writer)
                outcome.transactions += 1
        finally:
            for one in started:
                outcome.batches[one.name] += one.stop().batches
    for name, job in jobs.items():
        outcome.batches[name] += run(job, spark, available_now=True).batches


def _has_begun(following: Following) -> bool:
    return following.has_begun


def _written(shops: list[Shop], changes: int) -> Iterator[int]:
    """Commit in both shops in turns, four times as often in the first."""
    east, west = (shop.transactions(changes) for shop in shops)
    while True:
        for _ in range(4):
            yield next(east)
        yield next(west)


def _check(
    name: str, job: SqlJob, spark: SparkSession, rows: list[tuple[Any, ...]], outcome: Outcome
) -> None:
    target = open_target(job.settings.target)
    held = target.rows(spark)
    columns = [column for column in held.columns if not column.startswith("_databus")]
    found = in_order(held.select(*columns).collect())
    outcome.rows[name] = len(found)
    missing, extra = Counter(rows) - Counter(found), Counter(found) - Counter(rows)
    for row in missing.elements():
        outcome.add(f"{name}: the database has {row}, the target has not")
    for row in extra.elements():
        outcome.add(f"{name}: the target has {row}, the database has not")
    if not rows:
        outcome.add(f"{name}: there was nothing to compare")


def last_line(plan: Plan, outcome: Outcome) -> str:
    """Return the counts."""
    rows = ", ".join(
        f"{name} {outcome.rows[name]} rows in {outcome.batches[name]} batches" for name in JOBS
    )
    return (
        f"{plan.dialect}, seed {plan.seed}: {outcome.changes} changes in {outcome.transactions} "
        f"transactions over {plan.orders} orders a shard; {rows}; jobs stopped twice; "
        f"{outcome.total_s:.0f} s: {outcome.problem_count or 'no'} problems"
    )


def figures(short: bool = False) -> list[Figure]:
    """Run all jobs with a fixed seed; the figure is the number of wrong rows."""
    plan = Plan("sqlite", 200, 1) if short else Plan("mysql", 10_000, 1)
    spark = job_session("databus-benchmark", SPARK)
    problems = compare(plan, spark).problem_count
    name = f"spark SQL jobs {plan.dialect} ({plan.changes} changes)"
    return [Figure(name, problems, "problems", at_most(0))]


@click.command()
@click.option("--source", "dialect", type=click.Choice(["sqlite", "mysql"]), default="mysql")
@click.option("--changes", type=click.IntRange(20), default=10_000, show_default=True)
@click.option("--seed", type=int, help="Repeats the changes; drawn when left out.")
def main(dialect: Dialect, changes: int, seed: int | None) -> None:
    """Follow random changes with three SQL jobs; print wrong rows, and exit 1 if there are any."""
    plan = Plan(dialect, changes, random.randrange(10**6) if seed is None else seed)
    click.echo(f"seed {plan.seed}")
    spark = job_session("databus-benchmark", SPARK)
    spark.sparkContext.setLogLevel("ERROR")
    console = Console(stderr=True)
    try:
        with console.status("following …"):
            outcome = compare(plan, spark)
    finally:
        spark.stop()
    for problem in outcome.problems:
        click.echo(f"PROBLEM: {problem}")
    click.echo(last_line(plan, outcome))
    raise SystemExit(1 if outcome.problem_count else 0)
