"""`databus spark sync`: copy a table into a target, then keep the target equal to it."""

from __future__ import annotations

import contextlib

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from databus.client.spark.jobs.sync import SyncProgress, sync as sync_table
from databus.client.spark.monitoring.console import metrics_option, state_words, watching
from databus.client.spark.session import job_session


@click.command()
@click.argument("source")
@click.argument("target")
@click.option("--relay", "relays", multiple=True, required=True, help="A relay's URL; repeatable.")
@click.option(
    "--bootstrap", "bootstraps", multiple=True, help="A bootstrap server's URL; repeatable."
)
@click.option("--checkpoint", required=True, help="A folder for this job's position only.")
@click.option("--available-now", is_flag=True, help="End when all changes up to now are applied.")
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="Seconds from one batch to the next.",
)
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="One more option of format databus, e.g. maxRowsPerTrigger=500000; repeatable.",
)
@metrics_option
def sync(
    source: str,
    target: str,
    relays: tuple[str, ...],
    bootstraps: tuple[str, ...],
    checkpoint: str,
    available_now: bool,
    every_s: float,
    options: tuple[str, ...],
    metrics_port: int | None,
) -> None:
    """Fill TARGET with the table SOURCE, then follow its changes, until Ctrl-C.

    A TARGET is delta:PATH, iceberg:CATALOG.NAMESPACE.TABLE (both also with +spark, to
    merge on the executors) or an SQLAlchemy URL with #TABLE. A target
    that `databus spark load` has filled is followed from the load's SCN. New columns
    are added to the target; while servers are unavailable, the job waits.

    Example: `databus spark sync shop.orders delta:lake/orders --relay http://127.0.0.1:11115
    --bootstrap http://127.0.0.1:11116 --checkpoint checkpoints/orders`
    """
    more = dict(_pair(text) for text in options)
    spark = job_session("databus sync")
    console = Console(stderr=True)
    found = SyncProgress()
    with (
        watching(spark, metrics_port=metrics_port),
        Live(console=console, transient=True, auto_refresh=False) as live,
    ):

        def report(progress: SyncProgress) -> None:
            nonlocal found
            found = progress
            if console.is_terminal:
                live.update(Text(words_of(source, progress)), refresh=True)

        with contextlib.suppress(KeyboardInterrupt):
            sync_table(
                spark,
                source,
                target,
                relays=relays,
                bootstrap_servers=bootstraps,
                checkpoint=checkpoint,
                available_now=available_now,
                every_s=every_s,
                options=more,
                report=report,
            )
    click.echo(words_of(source, found))


def words_of(source: str, progress: SyncProgress) -> str:
    """Return the progress in one line."""
    words = [f"{source}: {progress.rows:,} rows in {progress.batches:,} batches"]
    for physical, scn in progress.scns.items():
        newest = progress.newest_scns.get(physical, scn)
        words.append(f"{physical} at scn {scn}" + (f" of {newest}" if newest > scn else ""))
    for physical, state in progress.stopped.items():
        words.append(f"{physical} is {state_words(state)}: the newest SCN is not known")
    if progress.lag_s is not None:
        words.append(f"{progress.lag_s:.1f} s behind")
    if progress.reload:
        words.append(f"reading all rows again: {progress.reload}")
    if progress.reloads:
        words.append(f"read all rows again {progress.reloads} times")
    if progress.restarts:
        words.append(f"restarted {progress.restarts} times")
    return ", ".join(words)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"--option {text}: must be NAME=VALUE")
    return name, value
