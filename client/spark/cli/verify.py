"""`databus spark verify`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click
from pyspark.sql import SparkSession
from rich.console import Console

from databus.client.spark.cli.session_options import command_session, spark_options
from databus.client.spark.cli.verify_view import shown, shown_steps
from databus.client.spark.verify.report import Report
from databus.client.spark.verify.source_table import Selection
from databus.client.spark.verify.verify import VerifyOptions, verify as verify_table
from databus.conf.loading import load_settings
from databus.conf.settings import RelaySettings

Command = TypeVar("Command", bound=Callable[..., Any])


def comparing_options(command: Command) -> Command:
    """Add the options for settings, servers and comparison functions."""
    # click applies decorators from the bottom up, so --help lists the last one first.
    for option in (
        click.option(
            "--settle",
            "settle_s",
            type=click.FloatRange(min=0),
            help="Read differing rows again after so many seconds, instead of replaying changes; "
            "for a target that records no position.",
        ),
        click.option(
            "--compare",
            multiple=True,
            metavar="[COLUMN=]MODULE:FUNCTION",
            help="Your own comparison: takes the source's row and the target's, and returns "
            "whether they (or the column) are the same; repeatable.",
        ),
        click.option("--bootstrap", multiple=True, help="URL of a bootstrap server; repeatable."),
        click.option("--relay", multiple=True, help="URL of a relay; repeatable."),
        click.option(
            "--settings",
            "settings_file",
            required=True,
            type=click.Path(path_type=Path, dir_okay=False),
            help="The relay's settings file, with the database's URI and password.",
        ),
    ):
        command = option(command)
    return spark_options(command)


def verify_session() -> SparkSession:
    """Return the session in which tables are compared."""
    return command_session("databus verify")


@click.command()
@click.argument("source")
@click.argument("target")
@comparing_options
@click.option("--columns", default="", help="Compare only these columns, separated by commas.")
@click.option("--where", default="", help="Compare only rows that fulfil this SQL condition.")
@click.option(
    "--chunk-rows",
    type=click.IntRange(min=1),
    default=2000,
    show_default=True,
    help="Rows of a chunk, which are digested together.",
)
@click.option(
    "--through-log",
    is_flag=True,
    help="Compare with checksums of chunks that are written into the source's database, and "
    "arrive in the change stream where they hold.",
)
@click.option(
    "--create-table",
    is_flag=True,
    help="With --through-log: create the table databus_checksums if it is not there.",
)
@click.option(
    "--report",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write every difference to this file, for `databus spark repair`.",
)
@click.option(
    "--examples",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="How many differing rows to show.",
)
@click.option("--json", "is_json", is_flag=True, help="Print the counts as one JSON object.")
def verify(
    source: str,
    target: str,
    settings_file: Path,
    relay: tuple[str, ...],
    bootstrap: tuple[str, ...],
    compare: tuple[str, ...],
    settle_s: float | None,
    columns: str,
    where: str,
    chunk_rows: int,
    through_log: bool,
    create_table: bool,
    report: Path | None,
    examples: int,
    is_json: bool,
) -> None:
    """Compare SOURCE in its database with TARGET, while both are being written.

    Each side digests its rows in chunks, and only rows of differing chunks are
    fetched. Changes on their way to the target do not count as differences. The exit
    status is 1 if rows differ.

    With --through-log the command writes to the source's database: it computes the
    checksum of one chunk after the other, and writes it as a row of the table
    databus_checksums in the same transaction. Meanwhile nobody else can change the
    rows of that chunk, for milliseconds.

    Example: `databus spark verify shop.orders delta:lake/orders --settings relay.toml
    --relay http://127.0.0.1:11115 --report differences.jsonl`
    """
    options = VerifyOptions(
        relays=relay,
        bootstrap_servers=bootstrap,
        selection=Selection(tuple(name for name in columns.split(",") if name), where),
        chunk_rows=chunk_rows,
        compare=compare,
        settle_s=settle_s,
        most_kept=examples,
        through_log=through_log,
        create_table=create_table,
    )
    settings = load_settings(settings_file, RelaySettings)
    with shown_steps() as on_step:
        compare_table = partial(verify_table, source, target, settings, options)
        found = compare_table(report=report, start_spark=verify_session, on_step=on_step)
    _print(found, is_json)
    if not found.is_same:
        sys.exit(1)


def _print(found: Report, is_json: bool) -> None:
    if is_json:
        click.echo(json.dumps(found.totals()))
        return
    console = Console(highlight=False)
    for part in shown(found):
        console.print(part)
