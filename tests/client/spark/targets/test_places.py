"""Targets in folders of any name: what is written can be read, or is refused before."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from databus.client.spark.targets.changes import changes_of
from databus.client.spark.targets.delta import DeltaTarget
from databus.client.spark.targets.places import delta_files
from databus.client.spark.targets.target import Target, open_target
from databus.schemas.errors import SettingsError
from tests.client.spark.changing_source import batch_of, change

pytestmark = pytest.mark.usefixtures("delta_runtime")

NAMES = (" ", "a b", "☃", "{y}", "{a,b}", "q'\"", "a*?", "50%", "a#b", "a:b", "a=b", "end ", "<`~>")
NOT_IN_DELTA = ("%20", "%2F", "[x]", "[", "x^|", "back\\slash", "a\nb")


def fill(target: Target) -> None:
    """Write a batch at a time, so that there are several files."""
    for number in range(3):
        row = {"id": number, "name": "x"}
        rows = batch_of([change("insert", number + 1, row)])
        target.apply("app", number, changes_of(rows, ["id"]))


def counted(target: Target, spark: SparkSession) -> int:
    return target.rows(spark).count()


def test_a_target_in_a_folder_of_any_name_is_read_as_it_was_written(
    tmp_path: Path, spark: SparkSession
) -> None:
    found = {}
    for name in NAMES:
        target = open_target(f"delta:{tmp_path / name / 'person'}", ["id"])
        fill(target)
        found[name] = counted(target, spark)
        assert (tmp_path / name / "person").is_dir()
    assert found == dict.fromkeys(NAMES, 3)


@pytest.mark.parametrize("name", NOT_IN_DELTA)
def test_a_folder_that_delta_cannot_be_in_is_refused_before_anything_is_written(
    name: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match=r"delta-rs cannot read a folder .* of another name"):
        open_target(f"delta:{tmp_path / name / 'person'}", ["id"])
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_spark_cannot_find_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    with pytest.raises(SettingsError, match="Spark cannot read a folder whose path has a colon"):
        open_target(f"delta:{tmp_path}/a:{{b}}", ["id"])
    assert list(tmp_path.iterdir()) == []


def test_a_table_named_by_a_url_and_a_file_with_a_percent_sign_are_read(
    tmp_path: Path, spark: SparkSession
) -> None:
    uri = f"delta:file://{tmp_path}/a%20b"
    fill(DeltaTarget(uri, ["id"]))
    folder = tmp_path / "a b"
    # As another writer may have named it.
    old = next(folder.glob("*.parquet")).name
    (folder / old).rename(folder / "c%20d e.parquet")
    for entry in (folder / "_delta_log").glob("*.json"):
        entry.write_text(entry.read_text().replace(old, "c%2520d%20e.parquet"))
    target = open_target(uri, ["id"])
    assert counted(target, spark) == 3


def test_a_table_elsewhere_keeps_its_url_with_its_path_decoded() -> None:
    files = ["s3://lake/a%20b/c%20d.parquet"]
    assert delta_files("s3://lake/a%20b/", files) == ["s3://lake/a b/c%20d.parquet"]
