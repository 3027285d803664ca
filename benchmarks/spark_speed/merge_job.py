"""One driver of the part `merge`: merges changes into tables, and says what it took.

    python -m benchmarks.spark_speed.merge_job PLAN

PLAN is the JSON of a `Plan`. What was measured is written to its `file`. Each form of a
target has a process of its own, so that no driver has the memory of another.
"""

from __future__ import annotations

import gc
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, functions as sf

from benchmarks.spark_speed.merge_rows import (
    DELETED,
    FACTOR,
    FIRST_SCN,
    INSERTED,
    KINDS_OF_CHANGE,
    MIXED,
    MIXED_BY,
    PHYSICAL,
    PRICE,
    PRICES,
    SOURCE,
    STATUSES,
    WARM_UP_ROWS,
    Sums,
    offset_of,
    open_table,
)
from databus.client.spark.consuming.apply import apply_changes
from databus.client.spark.session import job_session
from databus.demo.processes import python_module

APP = "changes"


@dataclass(frozen=True, slots=True)
class Plan:
    """The tables of a process, by their rows, and what it does to them.

    `form`: of the target. `turn`: the number of the batch that is merged into each table, from 1.
    """

    folder: str
    form: str
    rows: tuple[int, ...]
    changes: int
    turn: int
    settings: dict[str, str]

    @property
    def file(self) -> Path:
        """The file that the process writes."""
        return Path(self.folder) / f"{self.form}.json"

    def command(self) -> list[str]:
        """Return the command line of the process."""
        return python_module("benchmarks.spark_speed.merge_job", json.dumps(asdict(self)))

    def results(self) -> list[Merged]:
        """Return what the process has written."""
        told = json.loads(self.file.read_text(encoding="utf-8"))
        return [Merged(**one | {"sums": Sums(*one["sums"])}) for one in told]


@dataclass(frozen=True, slots=True)
class Merged:
    """A merge: its span, in ms of the clock, and the most memory that its driver held."""

    form: str
    rows: int
    began_ms: float
    ended_ms: float
    python_bytes: int
    jvm_bytes: int
    python_before_bytes: int
    sums: Sums


def run(plan: Plan) -> None:
    """Merge one batch into each of the tables, the smallest first."""
    spark = job_session(plan.form, plan.settings)
    spark.sparkContext.setLogLevel("ERROR")
    try:
        # What a driver imports and compiles once does not count.
        _merged(spark, plan, WARM_UP_ROWS)
        found = [_merged(spark, plan, rows) for rows in plan.rows]
        plan.file.write_text(json.dumps([asdict(one) for one in found]), encoding="utf-8")
    finally:
        spark.stop()


def _merged(spark: SparkSession, plan: Plan, rows: int) -> Merged:
    target = open_table(plan.folder, plan.form, rows)
    count = min(plan.changes, rows)
    batch = changes_of_turn(spark, rows, count, plan.turn)
    with _peaks(spark) as peak:
        began = time.time()
        apply_changes(batch, plan.turn, target, app_id=APP)
        ended = time.time()
    sums = _sums(target.rows(spark))
    target.close()
    python, jvm, before = peak
    return Merged(plan.form, rows, began * 1e3, ended * 1e3, python, jvm, before, sums)


def changes_of_turn(spark: SparkSession, rows: int, count: int, turn: int) -> DataFrame:
    """Return a turn's changes of a table: each of another key, spread over all keys."""
    number = sf.col("number")
    key = sf.pmod(number * FACTOR + offset_of(turn), sf.lit(rows))
    kind = number * MIXED % MIXED_BY % KINDS_OF_CHANGE
    is_new = kind == INSERTED
    op = sf.when(is_new, "insert").when(kind == DELETED, "delete").otherwise("update")
    new_key = sf.lit(rows) + turn * count + number
    numbered = spark.range(count).select(sf.col("id").alias("number"))
    told = sf.struct(
        op.alias("op"),
        sf.lit(FIRST_SCN + turn).cast("long").alias("scn"),
        number.cast("int").alias("index"),
        sf.lit(FIRST_SCN + turn).cast("long").alias("as_of"),
        sf.lit(SOURCE).alias("source"),
        sf.lit(PHYSICAL).alias("physical_source"),
    )
    return _row(numbered, sf.when(is_new, new_key).otherwise(key), sf.lit(turn), told)


def _row(frame: DataFrame, key: Column, turn: Column, *more: Column) -> DataFrame:
    names = sf.array(*map(sf.lit, STATUSES))
    row = frame.select(key.alias("id"), *(one.alias("_databus") for one in more))
    return row.select(
        "id",
        (sf.col("id") % 100_003).cast("int").alias("customer"),
        (sf.col("id") * PRICE % PRICES + turn).alias("price"),
        sf.get(names, (sf.col("id") % len(STATUSES)).cast("int")).alias("status"),
        *("_databus" for _ in more),
    )


def _sums(table: DataFrame) -> Sums:
    names = ("id", "price", "_databus_scn")
    found = table.agg(sf.count("*"), *(sf.sum(name) for name in names)).collect()[0]
    return Sums(*found)


@contextmanager
def _peaks(spark: SparkSession) -> Iterator[list[int]]:
    """Give the most memory of this process and of its JVM in a `with`, and that before of this."""
    assert spark._jvm is not None
    jvm = int(spark._jvm.java.lang.ProcessHandle.current().pid())
    spark._jvm.java.lang.System.gc()
    gc.collect()
    pa.default_memory_pool().release_unused()
    pids = (os.getpid(), jvm)
    before = _memory(os.getpid(), "VmRSS")
    for pid in pids:
        # From here on the highest is that since now.
        Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")
    peaks = list[int]()
    yield peaks
    peaks += [*(_memory(pid, "VmHWM") for pid in pids), before]


def _memory(pid: int, name: str) -> int:
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    found = re.search(rf"^{name}:\s+(\d+) kB$", text, re.MULTILINE)
    assert found is not None, text
    return int(found[1]) << 10


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    run(Plan(**given | {"rows": tuple(given["rows"])}))
