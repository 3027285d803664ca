"""The progress of `databus spark sync` in words."""

from __future__ import annotations

from collections.abc import Mapping

from databus.client.spark.jobs.sync import SyncProgress
from databus.client.spark.jobs.sync_tables import TablesProgress
from databus.client.spark.monitoring.console import state_words


def words_of(source: str, progress: SyncProgress) -> str:
    """Return the progress in one line."""
    words = [f"{source}: {progress.rows:,} rows in {progress.batches:,} batches"]
    words += _place_words(progress)
    if progress.reload:
        words.append(f"reading all rows again: {progress.reload}")
    if progress.reloads:
        words.append(f"read all rows again {progress.reloads} times")
    if progress.restarts:
        words.append(f"restarted {progress.restarts} times")
    return ", ".join(words)


def words_of_tables(progress: TablesProgress) -> str:
    """Return the progress of a job of many tables: a line, then one for each table in trouble."""
    words = [
        f"{progress.tables:,} tables: {progress.rows:,} rows in {progress.batches:,} batches",
        *_place_words(progress),
    ]
    if progress.joining:
        words.append(f"reading earlier rows of {', '.join(progress.joining)}")
    if progress.reloads:
        words.append(f"read all rows of a table again {progress.reloads} times")
    if progress.restarts:
        words.append(f"restarted {progress.restarts} times")
    lines = [", ".join(words)]
    lines += _lines("reading all rows again", progress.reloading)
    lines += _lines("not read yet", progress.waiting)
    lines += _lines("tried again", progress.retried)
    lines += _lines("SET ASIDE", progress.aside)
    return "\n".join(lines)


def _place_words(progress: SyncProgress | TablesProgress) -> list[str]:
    """Return how far the job is in each physical source, and how far behind."""
    words = []
    for physical, scn in progress.scns.items():
        newest = progress.newest_scns.get(physical, scn)
        words.append(f"{physical} at scn {scn}" + (f" of {newest}" if newest > scn else ""))
    for physical, state in progress.stopped.items():
        words.append(f"{physical} is {state_words(state)}: the newest SCN is not known")
    if progress.lag_s is not None:
        words.append(f"{progress.lag_s:.1f} s behind")
    return words


def _lines(what: str, by_source: Mapping[str, str]) -> list[str]:
    return [f"{source}: {what}: {why}" for source, why in by_source.items()]
