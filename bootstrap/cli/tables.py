"""`databus bootstrap seed` and `databus bootstrap verify`: seed and compare tables by hand."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console

from databus.bootstrap.cli.bootstrap import KIND
from databus.bootstrap.seeder.job import seed as seed_sources
from databus.bootstrap.seeder.rate_limiter import Progress, Report
from databus.bootstrap.store.values import SourceState, SourceStatus
from databus.bootstrap.verify.comparison import Comparison
from databus.bootstrap.verify.report import json_of, shown
from databus.bootstrap.verify.verify import verify as verify_sources
from databus.cli.daemon_options import config_option
from databus.cli.progress_bars import progress_bars
from databus.cli.signals import ended_by_signal
from databus.conf.loading import load_settings
from databus.conf.settings import BootstrapSettings, PhysicalSourceSettings
from databus.schemas.errors import UnknownSourceError

Command = TypeVar("Command", bound=Callable[..., Any])


def source_option(command: Command) -> Command:
    """Add the option that selects tables."""
    return click.option(
        "--source", "sources", multiple=True, help="A source, e.g. shop.orders; repeatable."
    )(command)


@click.command()
@config_option(KIND)
@source_option
def seed(config: Path, sources: tuple[str, ...]) -> None:
    """Read tables from their database into the store, and show the progress.

    Without --source, seeds every table that is not seeded yet. A table named with
    --source is seeded again; the others are served meanwhile. `databus bootstrap run`
    must have been started before; while it runs, it does the work. Ctrl-C stops after
    the current chunk, and the next seeding continues from there. Exits with 1 when a
    table could not be seeded.

    Example: `databus bootstrap seed -c bootstrap.toml --source shop.orders`
    """
    settings = _load(config)
    states: list[SourceState] = []
    with ended_by_signal() as stop, shown_progress() as report:
        for physical, names in _chosen(settings, sources):
            states += seed_sources(settings, physical, names, report, stop)
    for state in states:
        click.echo(_outcome(state))
    if not states:
        click.echo("nothing to seed; name a source with --source to seed it again")
    if any(state.problem or not _is_read(state) for state in states):
        sys.exit(1)


@click.command()
@config_option(KIND)
@source_option
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--examples",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="How many differing rows of each source to show.",
)
def verify(config: Path, sources: tuple[str, ...], is_json: bool, examples: int) -> None:
    """Compare the store's rows with the database's, while both change.

    Counts the rows that differ, rows that are missing in the store, and rows that
    only the store has. Rows that changed in every pass are counted as moving. Of
    tables without a key, distinct rows are compared, not their number. Exits with 1
    when something differs.

    Example: `databus bootstrap verify -c bootstrap.toml --source shop.orders --json`
    """
    settings = _load(config)
    found: list[Comparison] = []
    with ended_by_signal() as stop, shown_progress() as report:
        for physical, names in _chosen(settings, sources):
            found += verify_sources(settings, physical, names, report, stop, examples)
    if is_json:
        click.echo(json_of(found))
    else:
        console = Console(highlight=False)
        for part in shown(found):
            console.print(part)
    if not all(one.is_same for one in found):
        sys.exit(1)


@contextmanager
def shown_progress() -> Iterator[Report]:
    """Show a bar for each source on stderr, if that is a terminal."""
    with progress_bars() as bars:

        def report(progress: Progress) -> None:
            # An estimate that was too low must not show a bar beyond its end.
            total = progress.rows if progress.is_done else max(progress.estimate, progress.rows)
            bars.update(progress.source, words_of(progress), completed=progress.rows, total=total)

        yield report


def words_of(progress: Progress) -> str:
    """Return rows, rate and remaining time as text."""
    words = f"{progress.rows:,} rows, {progress.rows_per_s:,.0f} rows/s"
    left_s = progress.left_s
    if progress.is_done or left_s is None:
        return words
    minutes, seconds = divmod(round(left_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{words}, {hours}:{minutes:02}:{seconds:02} left"


def _load(config: Path) -> BootstrapSettings:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    return load_settings(config, BootstrapSettings)


def _chosen(
    settings: BootstrapSettings, sources: Sequence[str]
) -> list[tuple[PhysicalSourceSettings, Sequence[str] | None]]:
    """Return the chosen sources of each physical source; None = all that need it."""
    listed = {
        name: physical for physical in settings.physical_sources for name in physical.source_names
    }
    for source in sources:
        if source not in listed:
            raise UnknownSourceError(source, sorted(listed))
    if not sources:
        return [(physical, None) for physical in settings.physical_sources]
    return [
        (physical, names)
        for physical in settings.physical_sources
        if (names := [source for source in sources if listed[source] is physical])
    ]


def _is_read(state: SourceState) -> bool:
    return state.status in (SourceStatus.SEEDING_CATCH_UP, SourceStatus.ACTIVE)


def _outcome(state: SourceState) -> str:
    if state.problem:
        return state.problem if state.name in state.problem else f"{state.name}: {state.problem}"
    if state.status is SourceStatus.ACTIVE:
        return f"{state.name}: {state.seed_rows:,} rows, served"
    if state.status is SourceStatus.SEEDING_CATCH_UP:
        rows = f"{state.seed_rows:,} rows"
        return f"{state.name}: {rows}, served when the producer is at scn {state.seed_until_scn}"
    return f"{state.name}: {state.status}, {state.seed_rows:,} rows so far; seed again to go on"
