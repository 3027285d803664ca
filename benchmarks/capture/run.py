"""Writes each workload once, lets all readers read it in turns, and computes medians and ratios."""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from pymysql.cursors import Cursor
from rich.console import Console

from benchmarks.capture.log import (
    BULK_ROWS,
    NARROW,
    WIDE,
    Kind,
    Metadata,
    MixedTable,
    Stretch,
    begin_stretch,
    end_stretch,
    server_with_log,
    session_of,
    write_bulk,
    write_singles,
)
from benchmarks.capture.readers import (
    Passage,
    WrongCountError,
    peak_resident_bytes,
    read_raw,
    read_with_capture,
    read_with_library,
    settings_of,
)
from benchmarks.shared.report import Figure, as_json, at_least, publish
from databus.conf.units import parse_size_bytes
from databus.demo.private_mariadb import PrivateMariaDB

READERS = ("raw", "library", "capture")
WRITERS: dict[Kind, Callable[[Cursor, MixedTable, int], int]] = {
    "bulk": write_bulk,
    "single": write_singles,
}
PASSAGES = {"raw": 3, "library": 1, "capture": 1}  # in one repeat: the raw stream is read fast
LIBRARY_S = 3.0  # about the time that mysql-replication reads
LIBRARY_PACE = {"bulk": 28_000, "single": 5_500}  # rows a second of the narrow table
SLOW_S = 30.0  # a reader that took longer is not repeated
WIDE_SHARE = 4  # the wide table has this factor fewer rows
RATIO, OF_RAW = at_least(40), at_least(0.25)


@dataclass(frozen=True, slots=True)
class Plan:
    """The options of the command line."""

    rows: int
    transactions: int
    repeats: int
    metadata: Metadata = "FULL"
    ring_bytes: int = 64 << 20

    def count(self, kind: Kind, table: MixedTable) -> int:
        """Return how many rows of a table are written."""
        rows = self.rows if kind == "bulk" else self.transactions
        rows = rows // WIDE_SHARE if table is WIDE else rows
        return max(BULK_ROWS, rows // BULK_ROWS * BULK_ROWS)


@dataclass(frozen=True, slots=True)
class Result:
    """The times of all readers for one workload, in every repeat."""

    kind: Kind
    table: MixedTable
    stretch: Stretch
    passages: dict[str, list[Passage]]

    def rate(self, reader: str) -> float:
        """Return the median of rows a second."""
        return statistics.median(p.rows / p.seconds for p in self.passages[reader])

    def byte_rate(self, reader: str) -> float:
        """Return the median of binlog bytes a second."""
        return statistics.median(p.size_bytes / p.seconds for p in self.passages[reader])

    @property
    def suffix(self) -> str:
        """The suffix of this table's keys."""
        return "_wide" if self.table is WIDE else ""


Tell = Callable[[str], None]


def run(plan: Plan, tell: Tell) -> list[Result]:
    """Measure the four workloads on one server; raises WrongCountError."""
    found = []
    with server_with_log(plan.metadata) as server:
        for table in (NARROW, WIDE):
            for kind, write in WRITERS.items():
                count = plan.count(kind, table)
                tell(f"{kind}, {table.name}: writing {count:,} rows …")
                with session_of(server) as cursor:
                    begun = begin_stretch(cursor, table)
                    transactions = write(cursor, table, count)
                    stretch = end_stretch(cursor, table, begun, count, transactions)
                megabytes = stretch.size_bytes / 1e6
                tell(f"{kind}, {table.name}: {megabytes:,.0f} MB of binlog, reading …")
                found.append(Result(kind, table, stretch, _read(plan, server, kind, stretch)))
    return found


def _read(
    plan: Plan, server: PrivateMariaDB, kind: Kind, stretch: Stretch
) -> dict[str, list[Passage]]:
    passages: dict[str, list[Passage]] = {reader: [] for reader in READERS}
    for _ in range(plan.repeats):
        for reader, earlier in passages.items():
            if not any(passage.seconds > SLOW_S for passage in earlier):
                for _ in range(PASSAGES[reader]):
                    earlier.append(_read_once(plan, server, kind, stretch, reader))
    return passages


def _read_once(
    plan: Plan, server: PrivateMariaDB, kind: Kind, stretch: Stretch, reader: str
) -> Passage:
    if reader == "library":
        return read_with_library(server, stretch, _library_rows(kind, stretch))
    folder = Path(tempfile.mkdtemp(prefix="databus-capture-"))
    try:
        settings = settings_of(server, folder, stretch, plan.ring_bytes)
        if reader == "raw":
            return read_raw(settings.physical_sources[0], stretch)
        return read_with_capture(settings, stretch)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _library_rows(kind: Kind, stretch: Stretch) -> int:
    share = WIDE_SHARE if stretch.table is WIDE else 1
    return min(stretch.rows, int(LIBRARY_PACE[kind] * LIBRARY_S) // share)


def keys_of(results: Sequence[Result]) -> dict[str, float]:
    """Return every number by its JSON key."""
    found: dict[str, float] = {}
    for result in results:
        kind, suffix = result.kind, result.suffix
        found[f"{kind}_ratio{suffix}"] = result.rate("capture") / result.rate("library")
        found[f"{kind}_of_raw{suffix}"] = result.byte_rate("capture") / result.byte_rate("raw")
        for reader in READERS:
            name = f"{kind}_{reader}{suffix}"
            found[f"{name}_rows_per_s"] = result.rate(reader)
            found[f"{name}_bytes_per_s"] = result.byte_rate(reader)
            if kind == "single":
                found[f"{name}_transactions_per_s"] = result.rate(reader)
        found[f"{kind}_rows{suffix}"] = result.stretch.rows
        found[f"{kind}_transactions{suffix}"] = result.stretch.transactions
        found[f"{kind}_binlog_bytes{suffix}"] = result.stretch.size_bytes
    return {**found, "peak_rss_bytes": peak_resident_bytes()}


def table_figures(results: Sequence[Result], keys: dict[str, float]) -> list[Figure]:
    """Return the lines of the table."""
    found = [figure for result in results for figure in _lines(result, keys)]
    peak = Figure("capture: this process's largest resident size", keys["peak_rss_bytes"], "B")
    return [*found, peak]


def _lines(result: Result, keys: dict[str, float]) -> Iterator[Figure]:
    kind, suffix = result.kind, result.suffix
    what = f"{kind}, {result.table.name}"
    unit = "rows/s" if kind == "bulk" else "transactions/s"
    for reader, name in zip(READERS, ("raw stream", "mysql-replication", "capture"), strict=True):
        yield Figure(f"{what}: {name}", result.rate(reader), unit)
        yield Figure(f"{what}: {name}", result.byte_rate(reader) / 1e6, "MB/s")
    # The goals are those of the narrow table.
    ratio, of_raw = (None, None) if suffix else (RATIO, OF_RAW)
    yield Figure(f"{what}: capture / mysql-replication", keys[f"{kind}_ratio{suffix}"], "x", ratio)
    yield Figure(f"{what}: capture / raw stream", keys[f"{kind}_of_raw{suffix}"], "x", of_raw)


def figures(short: bool = False) -> list[Figure]:
    """Measure; the short form writes little and reads once."""
    plan = Plan(40_000, 10_000, 1) if short else Plan(3_000_000, 500_000, 3)
    results = run(plan, lambda _: None)
    return table_figures(results, keys_of(results))


@click.command()
@click.option("--rows", type=click.IntRange(BULK_ROWS), default=3_000_000, show_default=True)
@click.option("--transactions", type=click.IntRange(1000), default=500_000, show_default=True)
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True)
@click.option(
    "--metadata",
    type=click.Choice(["NO_LOG", "MINIMAL", "FULL"]),
    default="FULL",
    show_default=True,
    help="binlog_row_metadata of the server.",
)
@click.option("--ring-bytes", default="64MiB", show_default=True, help="Size of the ring.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write figures here.")
def main(
    rows: int,
    transactions: int,
    repeats: int,
    metadata: Metadata,
    ring_bytes: str,
    json_file: Path | None,
) -> None:
    """Measure capture against mysql-replication and the raw stream of one server.

    --rows of the narrow table go into bulk transactions, --transactions into ones of a single row;
    of the 50-column table there are a quarter. Exit 1 when a row is not captured.
    """
    plan = Plan(rows, transactions, repeats, metadata, parse_size_bytes(ring_bytes))
    console, started = Console(stderr=True, log_path=False), time.monotonic()
    try:
        results = run(plan, lambda text: console.log(text))
    except WrongCountError as error:
        raise click.ClickException(str(error)) from error
    keys = keys_of(results)
    publish("capture", found := table_figures(results, keys))
    click.echo(f"{time.monotonic() - started:.0f} s")
    if json_file is not None:
        told = {**keys, **json.loads(as_json(found))}
        json_file.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
