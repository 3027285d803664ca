"""Rows as of an SCN from the changes after it, as a rule without servers."""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from databus.client.spark.arrow.row_types import arrow_schema, changes_schema
from databus.client.spark.source.as_of import AsOf
from databus.schemas.errors import SettingsError

ROWS = StructType([StructField("k", StringType()), StructField("l", IntegerType()),
                   StructField("v", IntegerType())])  # fmt: skip
SCHEMA = arrow_schema(changes_schema({"shop.t": ROWS}, "columns", True))


def change(op: str, scn: int, index: int, key: tuple[str, int], v: Any, before: Any = None) -> Any:
    k, l_ = key
    told = {"op": op, "scn": scn, "index": index}
    if before is not None:
        told["before"] = {"k": k, "l": l_, "v": before}
    return {"k": k, "l": l_, "v": v, "_databus": told}


def batch(*changes: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(changes), schema=SCHEMA)


def rows(as_of: AsOf, *known: tuple[str, int]) -> list[tuple[Any, ...]]:
    keys = pa.RecordBatch.from_pylist(
        [{"k": k, "l": l_} for k, l_ in known],
        schema=pa.schema([("k", pa.string()), ("l", pa.int32())]),
    )
    found = as_of.rows([keys] if known else [])
    return [] if found is None else sorted(tuple(row.values()) for row in found.to_pylist())


def test_the_first_change_of_each_key_says_what_the_row_was() -> None:
    as_of = AsOf("shop.t", 10, ["k", "l"])
    as_of.add(
        batch(
            change("insert", 11, 0, ("new", 1), 1),
            change("update", 11, 1, ("a", 1), 2, before=1),
            change("delete", 12, 0, ("b", 1), 5),
        )
    )
    as_of.add(
        batch(
            change("delete", 13, 0, ("new", 1), 1),
            change("update", 13, 1, ("a", 1), 3, before=2),
            change("insert", 14, 0, ("b", 1), 6),
            change("update", 15, 0, ("b", 2), 6, before=7),
        )
    )
    assert rows(as_of) == [("a", 1, 1), ("b", 1, 5), ("b", 2, 7)]
    assert rows(as_of, ("b", 1), ("c", 1)) == [("a", 1, 1), ("b", 2, 7)]


def test_the_order_in_which_changes_come_does_not_matter_nor_how_many_they_are() -> None:
    changes = []
    for number in range(9000):
        key = ("k", number)
        changes.append(change("update", 20 + number, 1, key, 2, before=number))
        changes.append(change("update", 20 + number, 2, key, 3, before=-1))
        changes.append(change("delete", 30_000, number, key, 3))
    Random(1).shuffle(changes)
    as_of = AsOf("shop.t", 10, ["k", "l"])
    for begin in range(0, len(changes), 4000):
        as_of.add(batch(*changes[begin : begin + 4000]))
    assert rows(as_of) == [("k", number, number) for number in range(9000)]


def test_nothing_changed_is_no_rows() -> None:
    assert AsOf("shop.t", 10, ["k", "l"]).rows([]) is None
    as_of = AsOf("shop.t", 10, ["k", "l"])
    as_of.add(batch(change("insert", 11, 0, ("new", 1), 1)))
    assert rows(as_of) == []


def test_a_truncate_after_the_scn_is_refused_with_the_scn_to_choose() -> None:
    as_of = AsOf("shop.t", 10, ["k", "l"])
    truncate = {"_databus": {"op": "truncate", "scn": 17}}
    with pytest.raises(
        SettingsError, match=r"as of scn 10: it was truncated at scn 17.* asOf to 17"
    ):
        as_of.add(batch(truncate))


def test_an_update_without_the_row_before_is_refused_unless_an_earlier_change_tells_it() -> None:
    as_of = AsOf("shop.t", 10, ["k", "l"])
    as_of.add(
        batch(
            change("update", 11, 0, ("a", 1), 2, before=1),
            change("update", 12, 0, ("a", 1), 3),
        )
    )
    assert rows(as_of) == [("a", 1, 1)]
    as_of.add(batch(change("update", 13, 0, ("b", 1), 3)))
    with pytest.raises(SettingsError, match=r"updated at scn 13, .* before_images = true"):
        as_of.rows([])
