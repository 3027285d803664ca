"""The benchmark of merges in its short form: each form makes the right table, at a known cost."""

from __future__ import annotations

from benchmarks.spark_speed.merge import FORMS, SHORT_MERGE, measure_merges
from benchmarks.spark_speed.merge_rows import Sums, expected


def test_what_a_table_should_be_is_counted_change_by_change() -> None:
    # Of 20 changes one deletes and one inserts: as many rows, of which 19 have the turn's SCN.
    first = expected(100, 20, 1)
    assert (first.rows, first.scns) == (100, 81 * 1 + 19 * 11)
    assert expected(100, 20, 0) == Sums(100, 4950, 4950 * 37, 100)


def test_every_form_makes_the_same_table_and_a_larger_one_sends_the_driver_no_more() -> None:
    costs = measure_merges(SHORT_MERGE)
    told = [(cost.merged.form, cost.merged.rows) for cost in costs]
    assert told == [(form, rows) for form in FORMS for rows in SHORT_MERGE.rows]
    for cost in costs:
        print(cost.merged.form, cost.merged.rows, cost.seconds, cost.result_bytes, cost.tasks)
    assert all(cost.is_right for cost in costs)
    for form in ("delta+spark", "iceberg+spark"):
        small, large = (cost.result_bytes for cost in costs if cost.merged.form == form)
        # Some kB of metrics for each task, and the keys of the batch.
        assert 0 < large < 1.5 * small
    on_driver = [cost.result_bytes for cost in costs if cost.merged.form == "delta"]
    assert min(on_driver) > SHORT_MERGE.changes * 8
