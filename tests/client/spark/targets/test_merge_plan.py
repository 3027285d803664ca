"""What a merge without a MERGE of the format's own does to rows."""

from __future__ import annotations

import pyarrow as pa
import pytest

from databus.client.spark.targets.changes import AS_OF, SCN, changes_of
from databus.client.spark.targets.merge_plan import merged
from tests.client.spark.changing_source import META_ALONE, batch_of, change

SHAPE = pa.schema([("id", pa.int64()), ("note", pa.string()), ("_databus", META_ALONE)])


def held(*rows: tuple[int, str, int]) -> pa.Table:
    """Return rows (id, note, SCN) of a target."""
    ids, notes, scns = zip(*rows, strict=True)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "note": pa.array(notes, pa.string()),
            SCN: pa.array(scns, pa.int64()),
            AS_OF: pa.nulls(len(rows), pa.int64()),
        }
    )


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    ("op", "scn", "left"),
    [("delete", 9, ["other"]), ("update", 9, ["new", "other"]), ("delete", 5, ["a", "b", "other"])],
)
def test_a_change_finds_all_rows_of_its_key_unless_one_is_newer(
    op: str, scn: int, left: list[str], order: int
) -> None:
    """Several rows of a key are of a writer other than databus."""
    table = held((1, "a", 3), (1, "b", 6), (2, "other", 4)).take([0, 1, 2][::order])
    changes = changes_of(batch_of([change(op, scn, {"id": 1, "note": "new"})], SHAPE), ["id"])
    after, written, removed = merged(table, changes)
    assert sorted(after["note"].to_pylist()) == left
    assert (written, removed) == {"update": (1, 0), "delete": (0, 3 - len(left))}[op]
