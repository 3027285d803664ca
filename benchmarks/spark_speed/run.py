"""Measures each pair in turns in one Spark session; results are medians of the ratios."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import click
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress

from benchmarks.shared.report import Figure, at_least, at_most, publish, seconds
from benchmarks.spark_speed.merge import SHORT_MERGE, MergeSize, merge_figures
from benchmarks.spark_speed.rows import SOURCE
from benchmarks.spark_speed.serving import archived, bootstrap_of, relay_of
from benchmarks.spark_speed.sources import (
    PARTITIONS,
    MadeRows,
    ParquetRows,
    write_batch,
    write_parquet,
)
from databus.client.spark import register
from databus.client.spark.arrow.row_types import arrow_schema
from databus.client.spark.planning.ranges import LogRange, range_to_text
from databus.client.spark.session import job_session
from databus.client.spark.source.change_stream import changes_type, read_changes
from databus.client.spark.source.range_reader import close_readers
from databus.demo.processes import child_environment, wait_until
from tools.repository import ROOT

BATCH_ROWS = 20_000  # of an Arrow batch, on both sides
FEW_ROWS_RATE = 100.0  # windows a second, so that every micro-batch has one or more
QUERY_S = 300
PAIRS = ("stream", "table", "few", "archive")
MERGE = "merge"  # minutes, and GBs of disk: only if it is named
SPARK = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
    # Its own is 15 s, in which a busy machine may not get both ends of it to run.
    "spark.python.authenticate.socketTimeout": "120s",
}


@dataclass(frozen=True, slots=True)
class Size:
    """The amount that is read in a turn, and the number of turns."""

    rows: int
    rows_per_batch: int
    turns: int
    few_batches: int  # micro-batches of few rows in a turn


LONG = Size(1_600_000, 400_000, 5, 40)
SHORT = Size(120_000, 40_000, 1, 8)
Sides = list[tuple[float, float]]


class Measuring:
    """Measures in one session and one folder."""

    def __init__(self, spark: SparkSession, folder: Path, size: Size) -> None:
        self._spark = spark
        self._folder = folder
        self._size = size
        self._numbers = count()

    def pairs(self, names: Collection[str]) -> list[Figure]:
        """Measure the named pairs of PAIRS."""
        found: list[Figure] = []
        if "archive" in names:
            found += self._archive()
        if not {"stream", "table", "few"} & set(names):
            return found
        with relay_of(self._folder / "relay", self._size.rows) as url:
            batch = self._write_made(url)
            if "stream" in names:
                found += self._streaming(url, batch)
            if "table" in names:
                found += self._reading(url)
        if "few" in names:
            with relay_of(self._folder / "ticking", 0, FEW_ROWS_RATE) as url:
                found += self._few_rows(url, batch)
        return found

    # The stream

    def _streaming(self, url: str, batch: Path) -> list[Figure]:
        size = self._size
        limits = {"maxRowsPerTrigger": str(size.rows_per_batch)}
        made = {"rows": str(size.rows), "batch": str(size.rows_per_batch)}

        def databus() -> float:
            return self._rate(self._changes(url, limits))

        def best() -> float:
            return self._rate(self._made(batch, made))

        sides = self._turns(databus, best)
        return _ratio("stream source", "Arrow batches from memory", sides, least=0.7)

    def _rate(self, stream: DataFrame) -> float:
        """Return rows/s of a query that reads everything, without its first batch."""
        with self._checkpoint() as place:
            writer = stream.writeStream.format("noop").trigger(availableNow=True)
            query = writer.option("checkpointLocation", place).start()
            query.awaitTermination(QUERY_S)
            progress = [p for p in query.recentProgress if p.numInputRows][1:]
        return sum(p.numInputRows for p in progress) * 1e3 / sum(map(_trigger_ms, progress))

    # Micro-batches of few rows

    def _few_rows(self, url: str, batch: Path) -> list[Figure]:
        def databus() -> float:
            return self._trigger(self._changes(url, {"start": "latest"}))

        def best() -> float:
            return self._trigger(self._made(batch, {"batch": str(PARTITIONS)}))

        sides = self._turns(databus, best)
        more = statistics.median(ours - theirs for ours, theirs in sides)
        return [
            Figure("micro-batch of few rows", statistics.median(s[0] for s in sides), "ms"),
            Figure(
                "micro-batch of a source without I/O", statistics.median(s[1] for s in sides), "ms"
            ),
            Figure("micro-batch: extra time", more, "ms", at_most(50)),
        ]

    def _trigger(self, stream: DataFrame) -> float:
        """Return the median time in ms of micro-batches that follow each other without a pause."""
        wanted = self._size.few_batches
        with self._checkpoint() as place:
            query = stream.writeStream.format("noop").option("checkpointLocation", place).start()

            def with_rows() -> list[StreamingQueryProgress]:
                return [p for p in query.recentProgress if p.numInputRows][2:]

            try:
                wait_until(lambda: len(with_rows()) >= wanted, QUERY_S, "micro-batches", 0.2)
                return statistics.median(map(_trigger_ms, with_rows()))
            finally:
                query.stop()

    # The table

    def _reading(self, relay_url: str) -> list[Figure]:
        rows = self._size.rows
        with bootstrap_of(self._folder / "bootstrap", rows, relay_url) as url:
            options = {
                "bootstrapServers": url,
                "mode": "table",
                "partitions": str(PARTITIONS),
                "batchRows": str(BATCH_ROWS),
            }
            table = self._spark.read.format("databus").options(**options).load(SOURCE)
            files = self._folder / "parquet"
            write_parquet(files, table)
            parquet = (
                self._spark.read.format(ParquetRows.name())
                .option("batch", BATCH_ROWS)
                .load(str(files))
            )

            def databus() -> float:
                return rows / _read_s(table)

            def best() -> float:
                return rows / _read_s(parquet)

            return _ratio(
                "table reader", "Parquet through Python", self._turns(databus, best), least=0.8
            )

    # The archive

    def _archive(self) -> list[Figure]:
        uri, newest_scn = archived(self._folder / "archived", self._size.rows)
        options = {"archive": uri, "mode": "changes", "after": "1", "until": str(newest_scn)}
        changes = self._spark.read.format("databus").options(**options).load(SOURCE)
        rows, files = changes.count(), str(self._folder / "changes")
        changes.coalesce(PARTITIONS).write.parquet(files)
        parquet = self._spark.read.parquet(files)

        def databus() -> float:
            return rows / _read_s(changes)

        def best() -> float:
            return rows / _read_s(parquet)

        return _ratio("archive reader", "Spark's Parquet", self._turns(databus, best), least=0.5)

    # What both sides share

    def _turns(self, databus: Callable[[], float], best: Callable[[], float]) -> Sides:
        """Measure both in turns, after one turn that does not count."""
        databus(), best()
        return [(databus(), best()) for _ in range(self._size.turns)]

    def _changes(self, url: str, options: dict[str, str]) -> DataFrame:
        given = {"relays": url, "start": "earliest", "batchRows": str(BATCH_ROWS)} | options
        return self._spark.readStream.format("databus").options(**given).load(SOURCE)

    def _made(self, batch: Path, options: dict[str, str]) -> DataFrame:
        return self._spark.readStream.format(MadeRows.name()).options(**options).load(str(batch))

    def _write_made(self, url: str) -> Path:
        """Write one Arrow batch of the relay's rows, for the source that yields it repeatedly."""
        options = {"relays": url, "sources": SOURCE, "batchRows": str(BATCH_ROWS)}
        schema = changes_type(options)
        windows = LogRange("shop", (SOURCE,), 0, self._size.rows // 10)
        batches = read_changes(options, schema, range_to_text(windows))
        path = self._folder / "made.arrow"
        write_batch(path, next(batches))
        close_readers()
        assert arrow_schema(schema).equals(arrow_schema(self._made(path, {"batch": "1"}).schema))
        return path

    @contextmanager
    def _checkpoint(self) -> Iterator[str]:
        place = self._folder / f"checkpoint-{next(self._numbers)}"
        try:
            yield str(place)
        finally:
            shutil.rmtree(place, ignore_errors=True)


def _trigger_ms(progress: StreamingQueryProgress) -> int:
    return int(progress.durationMs["triggerExecution"])


def _read_s(frame: DataFrame) -> float:
    return seconds(lambda: frame.write.format("noop").mode("overwrite").save())


def _ratio(name: str, beside: str, sides: Sides, least: float) -> list[Figure]:
    ratio = statistics.median(ours / theirs for ours, theirs in sides)
    return [
        Figure(name, statistics.median(s[0] for s in sides), "rows/s"),
        Figure(f"{beside}, {name}", statistics.median(s[1] for s in sides), "rows/s"),
        Figure(f"{name} / {beside}", ratio, "x", at_least(least)),
    ]


def measure(size: Size, names: Collection[str] = PAIRS) -> list[Figure]:
    """Start servers and Spark, measure, and clean up."""
    # Spark's workers find the sources of the other side there.
    os.environ["PYTHONPATH"] = f"{child_environment()['PYTHONPATH']}{os.pathsep}{ROOT}"
    folder = Path(tempfile.mkdtemp(prefix="databus-spark-"))
    spark = job_session("speed", SPARK | {"spark.local.dir": str(folder / "spark")})
    try:
        spark.sparkContext.setLogLevel("ERROR")
        register(spark)
        for source in (MadeRows, ParquetRows):
            spark.dataSource.register(source)
        return Measuring(spark, folder, size).pairs(names)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


def figures(short: bool = False) -> list[Figure]:
    """Measure all of them."""
    return measure(SHORT if short else LONG)


@click.command()
@click.argument("names", nargs=-1, type=click.Choice((*PAIRS, MERGE)))
@click.option("--rows", type=click.IntRange(1000), help="Read in a turn.")
@click.option("--turns", type=click.IntRange(1), help="Of each side.")
@click.option(
    "--target-rows",
    type=click.IntRange(1000),
    multiple=True,
    help="merge: the rows of a table; may be given repeatedly.",
)
@click.option("--changes", type=click.IntRange(20), help="merge: the changes of a batch.")
@click.option("--short", is_flag=True, help="Trade precision for seconds.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write figures here.")
def main(
    names: tuple[str, ...],
    rows: int | None,
    turns: int | None,
    target_rows: tuple[int, ...],
    changes: int | None,
    short: bool,
    json_file: Path | None,
) -> None:
    """Compare the Spark sources with the best possible result: NAMES, or all but merge."""
    found: list[Figure] = []
    if pairs := [name for name in names or PAIRS if name in PAIRS]:
        size = SHORT if short else LONG
        wanted = rows or size.rows
        batch = min(size.rows_per_batch, wanted // 3)
        found += measure(Size(wanted, batch, turns or size.turns, size.few_batches), pairs)
    if MERGE in names:
        known = SHORT_MERGE if short else MergeSize()
        sizes = tuple(sorted(set(target_rows))) or known.rows
        found += merge_figures(MergeSize(sizes, changes or known.changes, known.executor_mb))
    publish("spark", found, json_file)
