"""What the benchmark of verify writes and says: quiet rows stay quiet, problems are told."""

from __future__ import annotations

import re
from itertools import islice

from benchmarks.spark_verify.run import Outcome, Plan, last_line
from benchmarks.spark_verify.shop import changes, first_hot
from databus.client.spark.verify.report import Compared, Report

ROWS = 5000


def test_changes_are_made_to_hot_rows_only_and_are_the_same_for_a_seed() -> None:
    first, again = (list(islice(changes(ROWS, 7), 500)) for _ in range(2))
    assert first == again
    statements = [statement for transaction in first for statement in transaction]
    keys = [int(found[1]) for s in statements if (found := re.search(r"id = (\d+)$", s))]
    assert len(keys) > 500
    assert min(keys) > first_hot(ROWS)
    assert {statement.split()[0] for statement in statements} == {"INSERT", "DELETE", "UPDATE"}


def test_what_is_off_is_counted_in_the_last_line() -> None:
    outcome = Outcome(first=Report(Compared("shop.orders", "delta:x", "shop", ("id",))))
    outcome.expect("never seen", True)
    assert last_line(Plan(ROWS, 7, 200.0), outcome).endswith("no problems")
    outcome.expect("a row differs", False)
    assert last_line(Plan(ROWS, 7, 200.0), outcome).endswith("1 problems")
