"""`databus spark run job.sql`: keep a table equal to a SELECT."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from databus.cli.signals import ended_by_signal
from databus.client.spark.cli.session_options import command_session, spark_options
from databus.client.spark.monitoring.console import metrics_option, watching
from databus.client.spark.sql.explain import explain as words_of
from databus.client.spark.sql.job_file import SqlJob, read_job
from databus.client.spark.sql.run import BatchDone, RunSummary, run as run_job
from databus.client.spark.targets.target import check_form

PIPE_COLUMNS = 200


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--available-now", is_flag=True, help="End when all changes up to now are applied.")
@click.option("--explain", is_flag=True, help="Print what the job would do, and end.")
@metrics_option
@spark_options
def run(file: Path, available_now: bool, explain: bool, metrics_port: int | None) -> None:
    """Keep a table equal to the SELECT of a job file, until SIGTERM or Ctrl-C.

    A restarted job continues from its checkpoint.

    Example: `databus spark run open_orders.sql`, where the file has

    \b
        -- target: delta:lake/open_orders
        -- relays: http://127.0.0.1:11115
        -- bootstrap_servers: http://127.0.0.1:11116
        -- checkpoint: lake/jobs/open_orders
        SELECT id, customer, total FROM shop.orders WHERE status = 'open'
    """
    job = read_job(file)
    check_form(job.settings.target)
    # Before Spark starts, which takes seconds.
    for line in words_of(job):
        click.echo(line)
    if explain:
        return
    summary = _run_with_progress(job, available_now=available_now, metrics_port=metrics_port)
    click.echo(_outcome(summary))


def _run_with_progress(job: SqlJob, *, available_now: bool, metrics_port: int | None) -> RunSummary:
    console = Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    total = RunSummary()
    with ExitStack() as stack:
        progress = stack.enter_context(Progress(*columns, console=console, transient=True))
        task = progress.add_task("starting Spark", total=None)
        spark = command_session(f"databus {job.name}")
        stack.enter_context(watching(spark, metrics_port=metrics_port))
        # After Spark has started, which installs its own handler for Ctrl-C. A batch that
        # is not finished comes again at the next start.
        stop = stack.enter_context(ended_by_signal())

        def show(done: BatchDone) -> None:
            total.take(done.applied)
            progress.update(
                task,
                description=f"batch {done.batch_id}, at {_listed(total)}: {total.upserts} rows "
                f"written, {total.deletes} removed",
            )

        def show_plan(lines: list[str]) -> None:
            for line in lines:
                console.print(line, markup=False, highlight=False)
            progress.update(task, description="waiting for the first batch")

        return run_job(
            job,
            spark,
            available_now=available_now,
            on_plan=show_plan,
            on_batch=show,
            stop=stop,
        )


def _outcome(summary: RunSummary) -> str:
    if not summary.batches:
        return "no batches: there was nothing new"
    return (
        f"{summary.batches} batches: {summary.upserts} rows written, {summary.deletes} removed; "
        f"applied up to {_listed(summary)}"
    )


def _listed(summary: RunSummary) -> str:
    places = (f"SCN {scn} of {name}" for name, scn in sorted(summary.positions.items()))
    return ", ".join(places) or "the snapshot"
