"""The torture's job: from nothing into Delta tables, every batch checked before it is applied.

Shared numbers in the folder: `begun`, how often a batch was read; `at_scn`, where
the last batch ended; `is_live`, whether it was one of windows; `applied`, the
transaction that was applied last.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import click
import pyspark
from pyspark.sql import DataFrame, SparkSession, functions as sf
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.shared.load import Stop
from benchmarks.spark_torture.batch_checks import Row, as_read, check_batch
from benchmarks.spark_torture.log import BatchLog, Home
from benchmarks.spark_torture.spans import Span, span_of
from benchmarks.torture.shared_number import SharedNumber
from benchmarks.torture.workload import SOURCES, STAMPS, TABLES
from databus.client.spark import register
from databus.client.spark.consuming.apply import apply_changes, rows_of
from databus.client.spark.session import STACK, job_session
from databus.client.spark.targets.target import open_target

NUMBERS = ("begun", "at_scn", "is_live", "applied")
POLL_S = 1
HTTP_TIMEOUT_S = 10.0
EXECUTOR_MEMORY = "512m"
SPARK = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    # Most of a killed job's life is its start.
    "spark.driver.extraJavaOptions": f"{STACK} -XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # All offsets are read once more in the end.
    "spark.sql.streaming.minBatchesToRetain": "1000000",
}


class Consumer:
    """What foreachBatch calls."""

    def __init__(self, folder: Path, relay_url: str) -> None:
        self._checkpoint = folder / "query"
        self._relay_url = relay_url
        self._log = BatchLog(folder / "batches.db")
        self._targets = {
            table.source: open_target(target_uri(folder, table.name)) for table in TABLES
        }
        self._numbers = {name: SharedNumber(folder / name) for name in NUMBERS}

    def consume(self, batch: DataFrame, batch_id: int) -> None:
        """Check a batch, and apply it to a table for each source."""
        span = span_of(self._checkpoint, batch_id)
        home = self._home(span)
        batch.persist()  # or each action would read it from the servers again
        try:
            self._numbers["begun"].set(self._numbers["begun"].get() + 1)
            rows = stamped_rows(batch)
            span = as_read(span, rows)
            contents = check_batch(span, rows)
            number = self._log.note(batch_id, span, contents, home)
            for source, target in self._targets.items():
                apply_changes(rows_of(batch, source), batch_id, target)
            self._log.note_applied(number)
        finally:
            batch.unpersist()
        self._numbers["at_scn"].set(span.to_scn)
        self._numbers["is_live"].set(span.kind == "windows")
        if contents.last_tx:
            self._numbers["applied"].set(contents.last_tx)

    def close(self) -> None:
        """Close the files."""
        self._log.close()
        for number in self._numbers.values():
            number.close()

    def _home(self, span: Span) -> Home:
        """Return where the windows of the next batch are held."""
        try:
            url = f"{self._relay_url}/bufferInfo/inbound/shop/0"
            with urllib.request.urlopen(url, timeout=HTTP_TIMEOUT_S) as answer:
                oldest_scn = json.loads(answer.read())["minScn"]
        except OSError:  # it was killed just now
            return "unknown"
        return "ring" if oldest_scn <= span.from_scn + 1 else "log"


def target_uri(folder: Path, table: str) -> str:
    """Return the target of a table's rows."""
    return f"delta:{folder / 'delta' / table}"


def stamped_rows(batch: DataFrame) -> list[Row]:
    """Return the checked fields of a batch's rows."""
    meta = [sf.col(f"_databus.{name}") for name in ("scn", "index", "op", "source")]
    stamps = [
        sf.coalesce(*(sf.col(f"`{source}`.{name}") for source in SOURCES)).alias(name)
        for name in STAMPS
    ]
    columns: Sequence[list[object]] = batch.select(*meta, *stamps).toArrow().to_pydict().values()
    return [Row(*values) for values in zip(*columns, strict=True)]


def session(master: str, folder: Path) -> SparkSession:
    """Start Spark; with executors of their own if the master is `local-cluster`."""
    # These two are for the executors that Spark's own small cluster starts.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["SPARK_WORKER_DIR"] = str(folder / "executors")
    os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
    settings = {
        "spark.master": master,
        "spark.executor.memory": EXECUTOR_MEMORY,
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        "spark.local.dir": str(folder / "spark"),
    }
    spark = job_session("torture", SPARK | settings)
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def start(
    spark: SparkSession, consumer: Consumer, folder: Path, options: dict[str, str]
) -> StreamingQuery:
    """Start or continue the query."""
    stream = spark.readStream.format("databus").options(**options).load()
    writer = stream.writeStream.foreachBatch(consumer.consume)
    return writer.option("checkpointLocation", str(folder / "query")).start()


@click.command()
@click.option("--relay", required=True)
@click.option("--bootstrap-server", required=True)
@click.option("--rows-per-batch", required=True)
@click.option("--master", required=True)
@click.option("--folder", type=click.Path(path_type=Path), required=True)
def main(relay: str, bootstrap_server: str, rows_per_batch: str, master: str, folder: Path) -> None:
    """Run as the torture's job, until SIGTERM."""
    stop = Stop()
    spark = session(master, folder)
    register(spark)
    options = {
        "relays": relay,
        "bootstrapServers": bootstrap_server,
        "sources": ",".join(SOURCES),
        "start": "beginning",
        "layout": "structs",
        "maxRowsPerTrigger": rows_per_batch,
        "fetchBytes": str(64 << 10),  # transactions are cut into several answers
    }
    consumer = Consumer(folder, relay)
    query = start(spark, consumer, folder, options)
    while not stop.is_set and not query.awaitTermination(POLL_S):
        pass
    query.stop()
    consumer.close()
    spark.stop()
    sys.exit(0 if stop.is_set else 1)


if __name__ == "__main__":
    main()
