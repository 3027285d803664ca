"""Merges on the executors: the same table as by delta-rs, and only small facts on the driver."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession, functions as sf
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from databus.client.spark.arrow.row_types import KEY, changes_schema
from databus.client.spark.consuming.apply import apply_changes
from databus.client.spark.jobs.load import snapshot_meta
from databus.client.spark.targets import delta, executors
from databus.client.spark.targets.delta_files import DeltaFiles
from databus.client.spark.targets.executors import digest_of
from databus.client.spark.targets.target import Target, open_target
from databus.schemas.errors import ConsumerError, SettingsError
from tests.client.spark.changing_source import ChangingSource, change
from tests.client.spark.targets.target_rows import rows_of_target, table_of

pytestmark = pytest.mark.usefixtures("delta_on_executors")

PERSON = StructType(
    [StructField("id", IntegerType(), True, {KEY: 0}), StructField("name", StringType(), True)]
)
APP = "app"


def frame(spark: SparkSession, changes: list[dict[str, Any]]) -> DataFrame:
    return spark.createDataFrame(changes, changes_schema({"shop.person": PERSON}))


def people(*keys: int, scn: int = 1) -> list[dict[str, Any]]:
    return [
        change("insert", scn, {"id": key, "name": f"{key} at {scn}"}, index=n)
        for n, key in enumerate(keys)
    ]


def names(target: Target) -> dict[int, str]:
    return {row["id"]: row["name"] for row in rows_of_target(target)}


def by_key(target: Target) -> list[dict[str, Any]]:
    return sorted(table_of(target).to_pylist(), key=lambda row: int(row["id"]))


def test_a_table_is_the_same_wherever_its_batches_are_merged(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With moves of keys, marks, snapshots of another checkpoint, and files of several parts."""
    monkeypatch.setattr(executors, "PART_ROWS", 10)
    source = ChangingSource("shop.person", "shop", random.Random(11))
    for _ in range(12):
        source.commit()
    window = [row for part in source.log for row in part]
    batches = [("one", window[n : n + 15]) for n in range(0, len(window), 15)]
    snapshot = source.snapshot(0, 20, 9)
    batches += [("two", snapshot), ("two", [source.mark(9), change("truncate", 3)])]
    targets = [open_target(f"{form}:{tmp_path}/{form}") for form in ("delta", "delta+spark")]
    for number, (app, rows) in enumerate(batches):
        batch = frame(spark, rows)
        one, other = (apply_changes(batch, number, target, app_id=app) for target in targets)
        assert one == other
        assert by_key(targets[0]) == by_key(targets[1])
    assert len(DeltaTable(f"{tmp_path}/delta+spark").file_uris()) > 1


def test_the_driver_has_one_row_for_each_kind_of_change(spark: SparkSession) -> None:
    rows = people(*range(500), scn=7)
    marks = [change("truncate", 3, index=2), change("snapshot_end", 5, index=None)]
    digest = digest_of(frame(spark, [*rows, *marks]))
    assert (digest.changes, digest.batch.num_rows) == (502, 3)
    assert digest.batch["id"].null_count == 3


def test_rows_of_a_load_whose_columns_are_never_null_are_merged(
    spark: SparkSession, tmp_path: Path
) -> None:
    told = snapshot_meta(sf.lit(3), 5, "shop", "shop.person").alias("_databus")
    rows = spark.range(4).select("id", sf.lit("x").alias("name"), told)
    target = open_target(f"delta+spark:{tmp_path}", ["id"])
    assert apply_changes(rows, 0, target, app_id=APP).upserts == 4
    assert apply_changes(rows.where("id < 2"), 1, target, app_id=APP).upserts == 2
    assert names(target) == dict.fromkeys(range(4), "x")


def test_files_that_are_written_and_not_committed_are_no_rows(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = open_target(f"delta+spark:{tmp_path}")
    apply_changes(frame(spark, people(1, 2)), 0, target, app_id=APP)

    def end(*_given: object) -> None:
        raise OSError("the end")

    with monkeypatch.context() as patched:
        patched.setattr(DeltaFiles, "commit", end)
        with pytest.raises(OSError, match="the end"):
            apply_changes(frame(spark, people(2, 3, scn=5)), 1, target, app_id=APP)
    seen = open_target(f"delta+spark:{tmp_path}")
    assert (names(seen), seen.applied(APP)) == ({1: "1 at 1", 2: "2 at 1"}, 0)
    for is_skipped in (False, True):
        found = apply_changes(frame(spark, people(2, 3, scn=5)), 1, seen, app_id=APP)
        assert found.is_skipped == is_skipped
        assert names(seen) == {1: "1 at 1", 2: "2 at 5", 3: "3 at 5"}
    assert (seen.applied(APP), seen.positions()) == (1, {"shop": 5})


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_batch_is_merged_again_with_what_another_writer_was_faster_with(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attempts: int
) -> None:
    target = open_target(f"delta+spark:{tmp_path}", attempts=attempts)
    apply_changes(frame(spark, people(1)), 0, target, app_id=APP)
    merge: Callable[..., Any] = executors.merge_files
    others = [9]

    def overtaken(*given: Any, **more: Any) -> Any:
        if others:
            row = {"id": [others.pop()], "name": ["other"], "_databus_scn": [1]}
            schema = table_of(target).schema
            rows = pa.table({**row, "_databus_as_of": [1]}).select(schema.names).cast(schema)
            write_deltalake(str(tmp_path), rows, mode="append")
        return merge(*given, **more)

    monkeypatch.setattr(delta, "merge_files", overtaken)
    batch = frame(spark, people(1, 9, scn=2))
    if attempts == 1:
        with pytest.raises(ConsumerError, match="other writers won 1 times"):
            apply_changes(batch, 1, target, app_id=APP)
    apply_changes(batch, 1, target, app_id=APP)
    assert names(target) == {1: "1 at 2", 9: "9 at 2"}


def test_a_file_of_an_odd_name_is_replaced_and_not_doubled(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "a b"
    target = open_target(f"delta+spark:{folder}")
    apply_changes(frame(spark, people(1, 2)), 0, target, app_id=APP)
    # As another writer may have named it.
    old = next(folder.glob("*.parquet")).name
    (folder / old).rename(folder / "c%20d e.parquet")
    for entry in (folder / "_delta_log").glob("*.json"):
        entry.write_text(entry.read_text().replace(old, "c%2520d%20e.parquet"))
    target = open_target(f"delta+spark:{folder}")
    apply_changes(frame(spark, people(2, scn=4)), 1, target, app_id=APP)
    assert sorted(row["name"] for row in rows_of_target(target)) == ["1 at 1", "2 at 4"]


def test_the_tasks_that_read_a_table_are_fewer_than_its_files(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As each task tells the driver some kB: that must not grow with the table."""
    monkeypatch.setattr(executors, "PART_ROWS", 10)
    target = open_target(f"delta+spark:{tmp_path}/delta")
    apply_changes(frame(spark, people(*range(700))), 0, target, app_id=APP)
    files = len(DeltaTable(f"{tmp_path}/delta").file_uris())
    assert files > 64
    group = "second batch"
    spark.sparkContext.setJobGroup(group, group)
    apply_changes(frame(spark, people(*range(700), scn=2)), 1, target, app_id=APP)
    spark.sparkContext.setJobGroup("others", "others")
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
    assert max(stage.numTasks for stage in stages if stage) <= 32
    assert names(target)[699] == "699 at 2"


def test_a_table_with_partitions_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    rows = pa.table({"id": pa.array([1], pa.int32()), "name": ["x"]})
    write_deltalake(str(tmp_path), rows, partition_by=["name"])
    target = open_target(f"delta+spark:{tmp_path}", ["id"])
    with pytest.raises(SettingsError, match="a table with partition columns or deletion vectors"):
        apply_changes(frame(spark, people(1, scn=4)), 0, target, app_id=APP)
