"""`databus spark sync`: copy tables into targets, then keep the targets equal to them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from databus.client.spark.cli.session_options import command_session, format_options, spark_options
from databus.client.spark.cli.sync_view import words_of, words_of_tables
from databus.client.spark.jobs.sync import sync as sync_table
from databus.client.spark.jobs.sync_tables import sync_tables
from databus.client.spark.jobs.target_template import check_target, is_template, target_of
from databus.client.spark.monitoring.console import metrics_option, watching
from databus.client.spark.targets.target import MODES, check_form


@click.command()
@click.argument("source")
@click.argument("target")
@click.option("--relay", "relays", multiple=True, required=True, help="A relay's URL; repeatable.")
@click.option(
    "--bootstrap", "bootstraps", multiple=True, help="A bootstrap server's URL; repeatable."
)
@click.option("--checkpoint", required=True, help="A folder for this job's position only.")
@click.option(
    "--mode",
    type=click.Choice(MODES),
    help="What TARGET holds: the rows of the table (mirror), a row for each change "
    "(append_history) or for each version of a row (scd2), or also the deleted rows, marked "
    "(soft_delete). Default: what it holds already, mirror for a new one.",
)
@click.option("--available-now", is_flag=True, help="End when all changes up to now are applied.")
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="Seconds from one batch to the next.",
)
@format_options
@click.option(
    "--reload",
    "reloads",
    multiple=True,
    metavar="NAME",
    help="With {table}: a table whose rows are read again first, also one that is set aside; "
    "repeatable, takes patterns.",
)
@click.option(
    "--on-schema-change",
    type=click.Choice(["reload", "aside"]),
    default="reload",
    show_default=True,
    help="With {table}: what to do with a table whose target cannot follow a change of columns.",
)
@metrics_option
@spark_options
def sync(
    source: str,
    target: str,
    relays: tuple[str, ...],
    bootstraps: tuple[str, ...],
    checkpoint: str,
    mode: str | None,
    available_now: bool,
    every_s: float,
    options: dict[str, str],
    reloads: tuple[str, ...],
    on_schema_change: str,
    metrics_port: int | None,
) -> None:
    """Fill TARGET with the table SOURCE, then follow its changes, until Ctrl-C.

    A TARGET is delta:PATH, iceberg:CATALOG.NAMESPACE.TABLE (both also with +spark, to
    merge on the executors) or an SQLAlchemy URL with #TABLE. A target that `databus
    spark load` has filled is followed from the load's SCN. New columns are added to
    the target; while servers are unavailable, the job waits.

    With {table} in TARGET, SOURCE may be several names and patterns, separated by
    commas: each table has a target of its own, and tables that come later are filled
    and followed, too. A table that fails is set aside, and the others go on; the
    command then ends with exit code 1.

    Example: `databus spark sync 'shop.*,!shop.tmp_*' 'delta:lake/{schema}/{table}' --relay
    http://127.0.0.1:11115 --bootstrap http://127.0.0.1:11116 --checkpoint checkpoints/shop`
    """
    given: dict[str, Any] = {
        "relays": relays,
        "bootstrap_servers": bootstraps,
        "checkpoint": checkpoint,
        "mode": mode,
        "available_now": available_now,
        "every_s": every_s,
        "options": options,
    }
    if not is_template(target) and (reloads or on_schema_change != "reload"):
        raise click.UsageError("--reload and --on-schema-change need a TARGET with {table}")
    check_target(target, source)
    check_form(target_of(target, "schema.table") if is_template(target) else target)
    spark = command_session("databus sync")
    with watching(spark, metrics_port=metrics_port):
        if is_template(target):
            names = [name.strip() for name in source.split(",") if name.strip()]
            given |= {"on_schema_change": on_schema_change, "reload": reloads}
            _run(partial(sync_tables, spark, names, target, **given), words_of_tables)
        else:
            _run(partial(sync_table, spark, source, target, **given), partial(words_of, source))


def _run(job: Callable[..., Any], words: Callable[[Any], str]) -> None:
    """Run a job until it ends or Ctrl-C; show its progress, and at the end how far it came."""
    console = Console(stderr=True)
    found: Any = None
    with Live(console=console, transient=True, auto_refresh=False) as live:

        def report(progress: Any) -> None:
            nonlocal found
            found = progress
            if console.is_terminal:
                live.update(Text(words(progress)), refresh=True)

        with contextlib.suppress(KeyboardInterrupt):
            job(report=report)
    if found is not None:
        click.echo(words(found))
        if getattr(found, "aside", None):
            raise SystemExit(1)
