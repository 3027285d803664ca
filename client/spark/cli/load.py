"""`databus spark load`: copy tables, or a query over them, into targets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from databus.cli.progress_bars import progress_bars
from databus.client.spark.cli.session_options import command_session, format_options, spark_options
from databus.client.spark.jobs.load import (
    CHUNK_ROWS,
    Loaded,
    LoadProgress,
    Report,
    load as load_table,
)
from databus.client.spark.jobs.load_query import load_query
from databus.client.spark.targets.target import MODES, check_form


@click.command()
@click.argument("places", metavar="SOURCE TARGET [SOURCE TARGET]...", nargs=-1, required=True)
@click.option(
    "--bootstrap", "bootstraps", multiple=True, help="A bootstrap server's URL; repeatable."
)
@click.option(
    "--columns", default="", help="Columns to copy, separated by commas, including the key."
)
@click.option("--where", default="", help="Copy only rows that fulfil this Spark SQL condition.")
@click.option("--as-of", type=click.IntRange(min=0), help="The SCN; default: the newest.")
@click.option("--partitions", type=click.IntRange(min=1), help="Number of reading tasks.")
@click.option(
    "--chunk-rows",
    type=click.IntRange(min=1),
    default=CHUNK_ROWS,
    show_default=True,
    help="Rows written in one commit; the driver holds them in memory.",
)
@click.option("--from-database", is_flag=True, help="Read the database; needs --settings.")
@click.option(
    "--settings",
    type=click.Path(path_type=Path),
    help="A relay's settings file, for --from-database.",
)
@click.option("--sql", help="A SELECT over sources; then TARGET is the only argument.")
@click.option("--keys", default="", help="With --sql: the columns that make a row unique.")
@click.option(
    "--mode",
    type=click.Choice(MODES),
    help="What TARGET holds, as of sync. Default: what it holds already, mirror for a new one.",
)
@click.option("--again", is_flag=True, help="Start over, instead of resuming a killed load.")
@format_options
@spark_options
def load(
    places: tuple[str, ...],
    bootstraps: tuple[str, ...],
    columns: str,
    where: str,
    as_of: int | None,
    partitions: int | None,
    chunk_rows: int,
    from_database: bool,
    settings: Path | None,
    sql: str | None,
    keys: str,
    mode: str | None,
    again: bool,
    options: dict[str, str],
) -> None:
    """Copy tables into targets, as of an SCN; a killed load is resumed.

    A TARGET is delta:PATH, iceberg:CATALOG.NAMESPACE.TABLE (both also with +spark, to
    merge on the executors) or an SQLAlchemy URL with #TABLE. Rows of
    the target that the table does not have are removed.

    Example: `databus spark load shop.orders delta:lake/orders --bootstrap http://127.0.0.1:11116`
    """
    if from_database != (settings is not None):
        raise click.UsageError("--from-database and --settings go together")
    common: dict[str, Any] = {
        "bootstrap_servers": bootstraps,
        "as_of": as_of,
        "partitions": partitions,
    }
    if sql is not None:
        if len(places) != 1 or columns or where or from_database or options or mode:
            raise click.UsageError(
                "with --sql give TARGET alone; columns and conditions are in the SELECT, and "
                "there is no --option"
            )
        check_form(places[0])
        spark = command_session("databus load")
        click.echo(_outcome(load_query(spark, sql, places[0], keys=_names(keys), **common)))
        return
    rows: dict[str, Any] = {
        "columns": _names(columns),
        "where": where,
        "settings": settings,
        "options": options,
        "mode": mode,
    }
    _load_tables(places, chunk_rows=chunk_rows, again=again, **common, **rows)


def _load_tables(places: Sequence[str], **how: Any) -> None:
    if len(places) % 2:
        raise click.UsageError("give a TARGET for each SOURCE")
    for target in places[1::2]:
        check_form(target)
    spark = command_session("databus load")
    with shown_progress() as report:
        for source, target in zip(places[::2], places[1::2], strict=True):
            click.echo(_outcome(load_table(spark, source, target, report=report, **how)))


@contextmanager
def shown_progress() -> Iterator[Report]:
    """Show a bar for each table on stderr, if that is a terminal."""
    with progress_bars() as bars:

        def report(progress: LoadProgress) -> None:
            words = f"{progress.rows:,} rows, {progress.rows_per_s:,.0f} rows/s, "
            words += f"chunk {progress.chunk} of {progress.chunks}"
            # Without an estimate the bar has no end.
            total = progress.estimate or None
            bars.update(progress.source, words, completed=progress.rows, total=total)

        yield report


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _outcome(loaded: Loaded) -> str:
    rest = (
        f", {loaded.skipped} of {loaded.chunks} chunks were already written"
        if loaded.skipped
        else ""
    )
    if loaded.only_there:
        rest += (
            f"; as it was, since {loaded.source} has no such column: {', '.join(loaded.only_there)}"
        )
    return f"{loaded.source} → {loaded.target}: {loaded.rows} rows as of scn {loaded.scn}{rest}"
