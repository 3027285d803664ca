"""Changes orders, damages the Delta table that follows them; then verify, repair, verify."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console

from benchmarks.shared.report import Figure, at_most
from benchmarks.spark_verify.shop import COLUMNS, CREATE, SOURCE, fill, first_hot
from databus.client.spark import register
from databus.client.spark.consuming.apply import apply_changes
from databus.client.spark.session import job_session
from databus.client.spark.targets.target import open_target
from databus.client.spark.verify.checksums.checksum_table import CREATE as CREATE_CHECKSUMS, NAME
from databus.client.spark.verify.differences import Kind
from databus.client.spark.verify.repair import RepairOptions, repair
from databus.client.spark.verify.report import Report
from databus.client.spark.verify.verify import VerifyOptions, verify
from databus.conf.loading import load_settings
from databus.conf.settings import RelaySettings
from databus.demo.databases import Session
from databus.demo.processes import python_module, stopped_by_signals, wait_until
from databus.demo.stage import Stage
from databus.schemas.scn import BinlogPosition

SEEDED_TIMEOUT_S = 600.0
CAUGHT_UP_TIMEOUT_S = 600.0
DAMAGE = {Kind.MISSING: 3, Kind.EXTRA: 2, Kind.CHANGED: 4}
ATTEMPTS = 20
RING_BYTES = "64MiB"

SPARK = {
    "spark.master": "local[2,4]",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
Keys = dict[Kind, list[int]]


@dataclass(frozen=True, slots=True)
class Plan:
    """The options of the command line."""

    rows: int
    seed: int
    rate: float
    batch_s: float = 5.0
    chunk_rows: int = 2000
    through_log: bool = False


@dataclass
class Outcome:
    """The results, for the last line."""

    problems: list[str] = field(default_factory=list)
    first: Report | None = None
    verify_s: float = 0.0
    repair_s: float = 0.0
    again_s: float = 0.0
    compared_rows: int = 0

    def expect(self, what: str, is_so: bool) -> None:
        """Record a problem unless the condition is true."""
        if not is_so:
            self.problems.append(what)


def run(plan: Plan, spark: SparkSession, tell: Callable[[str], None]) -> Outcome:
    """Run everything and clean up. Raises DatabusError when a part fails."""
    outcome = Outcome()
    with stopped_by_signals(), ExitStack() as stack:
        tell("filling the database")
        creates, sources = [CREATE, CREATE_CHECKSUMS.format(NAME)], [SOURCE, f"shop.{NAME}"]
        stage = stack.enter_context(Stage("mysql", creates, sources, ring_bytes=RING_BYTES))
        session = stack.enter_context(closing(stage.database.connect()))
        fill(session, plan.rows)
        stage.start_relay()
        # A source is known to the pair by its first change.
        session.execute("UPDATE orders SET note = 'first' WHERE id = 1")
        stage.start_bootstrap()
        tell("seeding")
        wait_until(lambda: stage.is_seeded, SEEDED_TIMEOUT_S, "the bootstrap pair")
        path = stage.folder / "orders"
        with _following(plan, stage, path, spark):
            tell("loading the Delta table")
            _wait_for_target(path, stage)
            with _writing(plan, stage):
                tell("verifying")
                _verify_and_repair(plan, stage, session, path, spark, outcome)
            tell("catching up")
            _wait_for_target(path, stage)
        _compare(session, path, outcome)
    return outcome


def _verify_and_repair(
    plan: Plan, stage: Stage, session: Session, path: Path, spark: SparkSession, outcome: Outcome
) -> None:
    target, report = f"delta:{path}", stage.folder / "report.jsonl"
    settings = load_settings(stage.settings_file, RelaySettings)
    options = VerifyOptions(
        (stage.url,), (stage.bootstrap_url,), chunk_rows=plan.chunk_rows, most_kept=100
    )
    # Changes are on their way, before the next batch.
    time.sleep(plan.batch_s / 2)
    damaged = _damage(plan, path)
    begun = time.monotonic()
    looking = replace(options, through_log=plan.through_log)
    first = outcome.first = verify(SOURCE, target, settings, looking, report=report, spark=spark)
    outcome.verify_s = time.monotonic() - begun
    reported: Keys = {
        kind: sorted(one.key[0] for one in first.differences if one.kind is kind) for kind in Kind
    }
    outcome.expect(f"damaged {damaged}, reported {reported}", reported == damaged)
    outcome.expect(
        f"{first.fetched_rows} rows fetched of {first.differing_chunks} chunks of "
        f"{plan.chunk_rows}, {first.differing_rows} rows",
        abs(first.fetched_rows - first.differing_rows) <= plan.rate * outcome.verify_s,
    )
    # Of differing chunks only; the damage is in quiet ones.
    outcome.expect("nothing was on its way", first.moving > 0 or plan.through_log)
    wrong = [one for one in first.chunk_results if not one.is_equal]
    outcome.expect(
        f"chunks {wrong} differ, not all of them have damaged rows",
        sum(one.differing_rows > 0 for one in wrong) == len(wrong),
    )

    # One of them gets a newer value, which the report does not know.
    newer = damaged[Kind.CHANGED][0]
    session.execute("UPDATE orders SET note = 'newer' WHERE id = ?", (newer,))
    begun = time.monotonic()
    done = repair(report, settings, RepairOptions(verify=options), spark=spark)
    outcome.repair_s = time.monotonic() - begun
    outcome.expect(f"repaired {done.keys} rows, some still differ", done.is_same)
    begun = time.monotonic()
    again = verify(SOURCE, target, settings, options, spark=spark)
    outcome.again_s = time.monotonic() - begun
    left = [(one.key, str(one.kind)) for one in again.differences]
    outcome.expect(f"after the repair {left} differ", again.is_same)


def _damage(plan: Plan, path: Path) -> Keys:
    """Damage rows of the Delta table that the writer does not change; return their keys."""
    chance = random.Random(plan.seed)
    missing, changed = DAMAGE[Kind.MISSING], DAMAGE[Kind.CHANGED]
    quiet = chance.sample(range(2, first_hot(plan.rows)), missing + changed)
    keys = {
        Kind.MISSING: sorted(quiet[:missing]),
        Kind.EXTRA: [-number for number in range(DAMAGE[Kind.EXTRA], 0, -1)],
        Kind.CHANGED: sorted(quiet[missing:]),
    }
    _committed(lambda table: table.delete(_are(keys[Kind.MISSING])), path)
    changes = ({"amount": "amount + 1"}, {"note": "'damaged'"}, {"weight": "weight + 1e-9"})
    for number, key in enumerate(keys[Kind.CHANGED]):
        _committed(
            partial(DeltaTable.update, updates=changes[number % 3], predicate=_are([key])), path
        )
    schema = pa.schema(DeltaTable(path).schema().to_arrow())
    extra = pa.Table.from_pylist([{"id": key} for key in keys[Kind.EXTRA]], schema)
    _committed(lambda table: write_deltalake(table, extra, mode="append"), path)
    return keys


def _are(keys: list[int]) -> str:
    return f"id in ({', '.join(map(str, keys))})"


def _committed(change: Callable[[DeltaTable], object], path: Path) -> None:
    """Change the table outside the job, and retry if the job commits in between."""
    for attempt in range(ATTEMPTS):
        try:
            change(DeltaTable(path))
        except CommitFailedError:
            if attempt == ATTEMPTS - 1:
                raise
        else:
            return


@contextmanager
def _following(plan: Plan, stage: Stage, path: Path, spark: SparkSession) -> Iterator[None]:
    """Follow the orders into a Delta table, with a batch every few seconds."""
    register(spark)
    changes = (
        spark.readStream.format("databus")
        .option("mode", "changes")
        .option("relays", stage.url)
        .option("bootstrapServers", stage.bootstrap_url)
        .load(SOURCE)
    )

    def consume(batch: DataFrame, batch_id: int) -> None:
        with closing(open_target(f"delta:{path}")) as target:
            apply_changes(batch, batch_id, target)

    query: StreamingQuery = (
        changes.writeStream.foreachBatch(consume)
        .option("checkpointLocation", str(stage.folder / "checkpoint"))
        .trigger(processingTime=f"{plan.batch_s} seconds")
        .start()
    )
    try:
        yield
        error = query.exception()
        if error is not None:
            raise error
    finally:
        query.stop()


@contextmanager
def _writing(plan: Plan, stage: Stage) -> Iterator[None]:
    words: tuple[Any, ...] = ("--rows", plan.rows, "--seed", plan.seed, "--rate", plan.rate)
    arguments = [*stage.database.arguments(), *words]
    writer = stage.child("writer", python_module("benchmarks.spark_verify.writer", *arguments))
    writer.start()
    try:
        yield
        writer.check()
    finally:
        writer.stop()


def _wait_for_target(path: Path, stage: Stage) -> None:
    """Wait until the Delta table has caught up with the relay."""

    def is_there() -> bool:
        stage.check()
        with closing(open_target(f"delta:{path}")) as target:
            return target.positions().get("shop", -1) >= newest

    newest = _newest_scn(stage)
    wait_until(is_there, CAUGHT_UP_TIMEOUT_S, "the Delta table")


def _newest_scn(stage: Stage) -> int:
    session = stage.database.connect()
    try:
        # Something to wait for: a target's position is that of its rows.
        session.execute("UPDATE orders SET updated_at = NOW(6) WHERE id = 1")
        ((name, offset, *_),) = session.rows("SHOW MASTER STATUS")
    finally:
        session.close()
    return BinlogPosition(0, int(name.rpartition(".")[2]), offset).to_scn()


def _compare(session: Session, path: Path, outcome: Outcome) -> None:
    """Compare every value of both tables, independently of verify."""
    expected = {row[0]: row for row in session.rows(f"SELECT {', '.join(COLUMNS)} FROM orders")}
    outcome.compared_rows = len(expected)
    found = 0
    for batch in DeltaTable(path).to_pyarrow_dataset().to_batches(columns=list(COLUMNS)):
        for row in zip(*(batch.column(name).to_pylist() for name in COLUMNS), strict=True):
            found += 1
            outcome.expect(
                f"the target has {row}, the source {expected.get(row[0])}",
                expected.get(row[0]) == row,
            )
    outcome.expect(
        f"the target has {found} rows, the source {len(expected)}", found == len(expected)
    )


def last_line(plan: Plan, outcome: Outcome) -> str:
    """Return the counts."""
    first = outcome.first
    assert first is not None
    counts = ", ".join(f"{count} {kind}" for kind, count in first.counts.items())
    return (
        f"seed {plan.seed}: {first.rows} rows, {plan.rate:g} changes/s: {counts}, "
        f"{first.moving} moving; {first.differing_chunks} of {first.chunks} chunks differed, "
        f"{first.fetched_rows} rows fetched; verify {outcome.verify_s:.1f} s, repair "
        f"{outcome.repair_s:.1f} s, verify {outcome.again_s:.1f} s; {outcome.compared_rows} rows "
        f"compared in the end: {len(outcome.problems) or 'no'} problems"
    )


def figures(short: bool = False) -> list[Figure]:
    """Run it with a fixed seed; the figure is the number of problems."""
    # The short form has both comparisons: the second one, after the repair, is without checksums.
    small = Plan(5000, 1, 100.0, 1.0, 100, through_log=True)
    plan = small if short else Plan(1_000_000, 1, 200.0)
    problems = run(plan, job_session("databus-benchmark", SPARK), lambda _: None).problems
    name = f"spark verify and repair ({plan.rows} rows)"
    return [Figure(name, len(problems), "problems", at_most(0))]


@click.command()
@click.option("--rows", type=click.IntRange(1000), default=1_000_000, show_default=True)
@click.option("--seed", type=int, help="Repeats the changes and the damage; drawn when left out.")
@click.option("--rate", type=float, default=200.0, show_default=True, help="Changes a second.")
@click.option("--through-log", is_flag=True, help="Compare with checksums in the change stream.")
def main(rows: int, seed: int | None, rate: float, through_log: bool) -> None:
    """Damage a target, verify, repair, verify; print problems, and exit 1 if there are any."""
    drawn = random.randrange(10**6) if seed is None else seed
    small = {} if rows > 100_000 else {"batch_s": 1.0, "chunk_rows": max(10, rows // 50)}
    plan = Plan(rows, drawn, rate, through_log=through_log, **small)  # type: ignore[arg-type]
    click.echo(f"seed {plan.seed}")
    spark = job_session("databus-benchmark", SPARK)
    spark.sparkContext.setLogLevel("ERROR")
    console = Console(stderr=True)
    try:
        with console.status("beginning …") as status:
            outcome = run(plan, spark, lambda words: status.update(f"{words} …"))
    finally:
        spark.stop()
    for problem in outcome.problems[:20]:
        click.echo(f"PROBLEM: {problem}")
    click.echo(last_line(plan, outcome))
    raise SystemExit(1 if outcome.problems else 0)
