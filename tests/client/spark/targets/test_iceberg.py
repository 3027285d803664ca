"""Iceberg tables: other writers, tables that somebody else made, commits that are atomic."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from databus.client.spark.targets import iceberg
from databus.client.spark.targets.changes import changes_of
from databus.client.spark.targets.iceberg import IcebergTarget
from databus.schemas.errors import ConsumerError, SettingsError
from tests.client.spark.changing_source import ROW, batch_of, change
from tests.client.spark.conftest import TABLE_NUMBERS
from tests.client.spark.targets.target_rows import rows_of_target

pytestmark = pytest.mark.usefixtures("iceberg_catalog")


@pytest.fixture
def uri() -> str:
    return f"iceberg:lake.tests.i{next(TABLE_NUMBERS)}"


def opened(uri: str, **options: Any) -> IcebergTarget:
    return IcebergTarget(uri, ["id"], **options)


def put(target: IcebergTarget, number: int, *rows: dict[str, Any]) -> None:
    """Apply rows as a batch, of the SCN that is its number."""
    changes = [change("insert", number, row, index=n) for n, row in enumerate(rows)]
    target.apply("app", number, changes_of(batch_of(changes), ["id"]))


def names(target: IcebergTarget) -> dict[int, str]:
    return {row["id"]: row["name"] for row in rows_of_target(target)}


def test_a_catalog_that_nothing_describes_is_refused_with_where_to_describe_it() -> None:
    with pytest.raises(SettingsError, match=r"no catalog 'nowhere': .*PYICEBERG_CATALOG__NOWHERE"):
        IcebergTarget("iceberg:nowhere.tests.t", ["id"])


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_batch_is_merged_again_with_what_another_writer_was_faster_with(
    uri: str, monkeypatch: pytest.MonkeyPatch, attempts: int
) -> None:
    target, other = opened(uri, attempts=attempts), opened(uri)
    put(target, 1, {"id": 1, "name": "first"})
    replace_files, others = iceberg._replace_files, [2]

    def overtaken(*given: Any) -> None:
        if others:
            number = others.pop()
            # A commit without a row, too, must not be lost: its position is in a property.
            put(other, number, {"id": 9, "name": "other"})
            nothing = changes_of(batch_of([]), ["id"])
            other.apply("note", 7, replace(nothing, positions={"elsewhere": 0}))
        replace_files(*given)

    monkeypatch.setattr(iceberg, "_replace_files", overtaken)
    if attempts == 1:
        with pytest.raises(ConsumerError, match="other writers won 1 times"):
            put(target, 3, {"id": 1, "name": "later"}, {"id": 9, "name": "later"})
    put(target, 3, {"id": 1, "name": "later"}, {"id": 9, "name": "later"})
    assert names(target) == {1: "later", 9: "later"}
    assert (target.applied("app"), target.applied("note")) == (3, 7)
    target.close()
    other.close()


def test_an_end_before_the_commit_leaves_neither_rows_nor_their_number(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = opened(uri)
    put(target, 1, {"id": 1, "name": "first"})

    def end(*_given: object, **_named: object) -> None:
        raise OSError("the end")

    with monkeypatch.context() as patched:
        patched.setattr("pyiceberg.table.Table._do_commit", end)
        with pytest.raises(OSError, match="the end"):
            put(target, 2, {"id": 1, "name": "second"}, {"id": 2, "name": "second"})
    assert (names(target), target.applied("app")) == ({1: "first"}, 1)
    put(target, 2, {"id": 1, "name": "second"}, {"id": 2, "name": "second"})
    assert (names(target), target.applied("app")) == ({1: "second", 2: "second"}, 2)
    target.close()


def test_a_table_that_somebody_else_made_and_renamed_columns_of_is_followed(uri: str) -> None:
    target = opened(uri)
    rows = pa.Table.from_pylist(
        [{"id": 1, "old": "a"}, {"id": 2, "old": "b"}],
        pa.schema([("id", pa.int32()), ("old", pa.string())]),
    )
    target._catalog.create_namespace_if_not_exists("tests")
    table = target._catalog.create_table(target._name, rows.schema)
    table.append(rows)
    with table.update_schema() as update:
        update.rename_column("old", "name")
    put(target, 3, {"id": 2, "name": "new"}, {"id": 3, "name": "new"})
    assert names(target) == {1: "a", 2: "new", 3: "new"}
    target.close()


def test_a_table_with_partitions_and_a_uri_without_namespace_are_refused(uri: str) -> None:
    target = opened(uri)
    target._catalog.create_namespace_if_not_exists("tests")
    table = target._catalog.create_table(target._name, pa.schema(list(ROW)))
    with table.update_spec() as update:
        update.add_identity("name")
    with pytest.raises(SettingsError, match=r"a table with partitions, or with delete files"):
        put(target, 3, {"id": 2, "name": "new"})
    target.close()
    with pytest.raises(SettingsError, match=r"give iceberg:<catalog>\.<namespace>"):
        opened("iceberg:orders")


@pytest.mark.usefixtures("iceberg_on_executors")
def test_many_files_are_read_by_fewer_tasks(spark: SparkSession, uri: str) -> None:
    target = opened(uri)
    for number in range(20):
        put(target, number + 1, {"id": number, "name": "x"})
    rows = target.rows(spark)
    assert rows.rdd.getNumPartitions() == 16
    assert sorted(row.id for row in rows.collect()) == list(range(20))
