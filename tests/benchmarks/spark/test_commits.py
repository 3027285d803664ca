"""What the torture of many tables reads in the commits of Delta tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.spark_torture.commits import (
    Batch,
    batches_of,
    torn_transactions,
    twice_committed,
)
from databus.client.spark.targets.changes import changes_of
from databus.client.spark.targets.target import open_target
from tests.client.spark.changing_source import batch_of, change
from tests.client.spark.conftest import delta_runtime

KEYS = ["id"]

__all__ = ["delta_runtime"]


def apply(folder: Path, batch_id: int, *changes: Any) -> None:
    target = open_target(f"delta:{folder}", KEYS)
    target.apply("a query", batch_id, changes_of(batch_of(list(changes)), KEYS))
    target.close()


def test_each_commit_has_the_changes_that_are_new_with_it(
    tmp_path: Path, delta_runtime: None
) -> None:
    apply(tmp_path / "t", 4, change("insert", 10, {"id": 1, "name": "x"}))
    apply(tmp_path / "t", 5, change("insert", 11, {"id": 2, "name": "y"}))
    found = [one for one in batches_of(tmp_path / "t") if one.scns]
    assert [(one.number, one.scns) for one in found] == [(4, frozenset({10})), (5, frozenset({11}))]


def test_a_batch_in_two_commits_is_found() -> None:
    batches = [Batch(1, "q", 4), Batch(2, "q", None), Batch(3, "q", 4)]
    assert twice_committed({"t": batches}) == ["t: batch 4 again in version 3"]
    assert twice_committed({"t": batches[:2]}) == []


def test_a_transaction_in_two_batches_is_found_unless_a_snapshot_had_a_part_of_it() -> None:
    one = [Batch(1, "q", 1, frozenset({7}), snapshot_scn=6), Batch(2, "q", 2, frozenset({9}))]
    same = [Batch(1, "q", 1, frozenset({7})), Batch(2, "q", 2, frozenset({9, 10}))]
    assert torn_transactions({"a": one, "b": same}) == (2, [])
    other = [Batch(1, "q", 1, frozenset({7})), Batch(2, "q", 3, frozenset({9}))]
    checked, torn = torn_transactions({"a": one, "b": other})
    assert (checked, torn) == (2, ["scn 9 is in batches {'a': 2, 'b': 3}"])
    # A later snapshot of a table hides only what that table has.
    late = [Batch(1, "q", 5, frozenset({9}), snapshot_scn=9)]
    assert torn_transactions({"a": one, "b": same, "c": late}) == (2, [])
