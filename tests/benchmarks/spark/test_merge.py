"""The benchmark of merges in its short form: each form makes the right table, at a known cost."""

from __future__ import annotations

from benchmarks.spark_speed.merge import FORMS, SHORT_MERGE, measure_merges
from benchmarks.spark_speed.merge_rows import FIRST_SCN, Sums, expected


def test_the_changes_meet_keys_all_over_the_table_and_are_of_all_kinds() -> None:
    before, after = expected(1000, 200, 0), expected(1000, 200, 1)
    assert before == Sums(1000, 499_500, 499_500 * 37, 1000)
    # A row that is updated or inserted has an SCN that is ten more, and nothing else changes it.
    touched = (after.scns - after.rows) // FIRST_SCN
    assert 200 * 0.9 < touched < 200
    assert 990 < after.rows < 1010
    assert after.keys != before.keys


def test_every_form_makes_the_same_table_and_a_larger_one_sends_the_driver_no_more() -> None:
    forms = FORMS[:3]  # on the driver Iceberg is merged as Delta is
    costs = measure_merges(SHORT_MERGE, forms)
    told = [(cost.merged.form, cost.merged.rows) for cost in costs]
    assert told == [(form, rows) for form in forms for rows in SHORT_MERGE.rows]
    for cost in costs:
        print(cost.merged.form, cost.merged.rows, cost.seconds, cost.result_bytes, cost.tasks)
    assert all(cost.is_right for cost in costs)
    for form in ("delta+spark", "iceberg+spark"):
        small, large = (cost.result_bytes for cost in costs if cost.merged.form == form)
        # Some kB of metrics for each task, and the keys of the batch.
        assert 0 < large < 1.5 * small
    on_driver = [cost.result_bytes for cost in costs if cost.merged.form == "delta"]
    assert min(on_driver) > SHORT_MERGE.changes * 8
