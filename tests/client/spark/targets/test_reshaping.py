"""The plan that takes a target's table to the columns of a later schema version."""

from __future__ import annotations

import pyarrow as pa

from databus.client.spark.targets.reshaping import NewColumn, Reshaping


def test_a_plan_says_what_is_done_to_the_columns_and_nothing_of_the_others() -> None:
    held = pa.schema([("id", pa.int32()), ("city", pa.string()), ("old", pa.string())])
    plan = Reshaping(
        (
            NewColumn("id", pa.int64(), "id"),
            NewColumn("town", pa.string(), "city"),
            NewColumn("vip", pa.int32(), None, 7),
        ),
        ("id",),
    )
    assert plan.in_words(held) == (
        "id int32 becomes int64; city is renamed to town; vip int32 is added, 7 in all rows; "
        "old is replaced"
    )
    same = Reshaping((NewColumn("id", pa.int32(), "id"),), ("id",), is_emptied=True)
    assert same.in_words(held.remove(2).remove(1)) == "all rows are removed"
