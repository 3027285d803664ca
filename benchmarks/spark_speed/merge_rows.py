"""The tables of the part `merge`: their rows, their files, and what batches make of them.

    python -m benchmarks.spark_speed.merge_rows FOLDER ROWS…

makes tables of so many rows, of each kind.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable
from pyiceberg.catalog import load_catalog

from databus.client.spark.targets.changes import AS_OF, DELETE, SCN, Changes
from databus.client.spark.targets.delta_files import DeltaFiles
from databus.client.spark.targets.executors import PART_ROWS, FileChange
from databus.client.spark.targets.iceberg import _replace_files
from databus.client.spark.targets.iceberg_files import IcebergFiles, Storage
from databus.client.spark.targets.target import Target, open_target

PHYSICAL, SOURCE = "shop", "shop.orders"
KINDS = ("delta", "iceberg")
WARM_UP_ROWS = 2_000
FIRST_SCN = 10

STATUSES = ("new", "open", "paid", "sent")
PRICE, PRICES = 37, 1_000_003
# A prime above every number of rows: changes of different numbers have different keys.
FACTOR = 2_654_435_761
# Of so many kinds one deletes, one inserts, and the others update. The kind is mixed from the
# change's number, so that each kind meets keys of all files.
KINDS_OF_CHANGE, DELETED, INSERTED = 20, 0, 1
MIXED, MIXED_BY = 7919, 1009


class Sums(NamedTuple):
    """The number of a table's rows, and sums over its columns."""

    rows: int
    keys: int
    prices: int
    scns: int


def offset_of(turn: int) -> int:
    """Return where the keys of a turn begin."""
    return turn * 7919


def open_table(folder: str, form: str, rows: int) -> Target:
    """Open a table with so many rows at first."""
    if form.startswith("iceberg"):
        return open_target(f"{form}:lake.{_table(rows)}", ["id"], catalog=_catalog(folder))
    return open_target(f"{form}:{folder}/delta/orders_{rows}", ["id"])


def fill(folder: str, kind: str, rows: int) -> None:
    """Make a table of a kind: the first part through the target, then the other files at once.

    The files are the target's own, of the size that it gives them. The keys of a file are
    spread over all keys, as they are in a table that was merged.
    """
    parts = -(-rows // PART_ROWS)
    target = open_table(folder, kind, rows)
    first = _part(rows, 0, parts)
    gone = pa.array(np.zeros(first.num_rows, dtype=bool))
    changes = Changes(first.append_column(DELETE, gone), ("id",), (), {PHYSICAL: FIRST_SCN})
    target.apply("fill", 0, changes)
    others = (_part(rows, part, parts) for part in range(1, parts))
    if kind == "delta":
        table = DeltaTable(f"{folder}/delta/orders_{rows}")
        files = DeltaFiles(table, first.schema, None)
        write = files.writer()
        files.commit(FileChange((), tuple(map(write, others)), 0, 0), CommitProperties())
    else:
        lake = load_catalog("lake", **_catalog(folder)).load_table(_table(rows))
        storage = Storage.of(lake)
        added = tuple(map(storage.write, others))
        with lake.transaction() as transaction:
            held = IcebergFiles(lake, storage, target.uri)
            _replace_files(transaction, lake, held, FileChange((), added, 0, 0))
    target.close()


def _part(rows: int, part: int, parts: int) -> pa.Table:
    """Return the rows of each key that a part has."""
    keys = np.arange(part, rows, parts)
    names = pa.array(STATUSES)
    return pa.table(
        {
            "id": keys,
            "customer": (keys % 100_003).astype(np.int32),
            "price": keys * PRICE % PRICES,
            "status": names.take(pa.array(keys % len(STATUSES))),
            SCN: np.ones(len(keys), dtype=np.int64),
            AS_OF: np.full(len(keys), FIRST_SCN),
        }
    )


def _catalog(folder: str) -> dict[str, str]:
    lake = Path(folder) / "lake"
    lake.mkdir(exist_ok=True)
    uri, warehouse = f"sqlite:///{lake}/catalog.db", lake.as_uri()
    return {"type": "sql", "uri": uri, "warehouse": warehouse}


def _table(rows: int) -> str:
    return f"shop.orders_{rows}"


def expected(rows: int, changes: int, turns: int) -> Sums:
    """Return the sums of a table of so many rows after some turns of changes."""
    count = min(changes, rows)
    keys = np.arange(rows + (turns + 1) * count)
    is_there = keys < rows
    scns, prices = np.ones(len(keys), dtype=np.int64), keys * PRICE % PRICES
    numbers = np.arange(count)
    kind = numbers * MIXED % MIXED_BY % KINDS_OF_CHANGE
    for turn in range(1, turns + 1):
        key = (numbers * FACTOR + offset_of(turn)) % rows
        key = np.where(kind == INSERTED, rows + turn * count + numbers, key)
        is_there[key] = kind != DELETED
        scns[key] = FIRST_SCN + turn
        prices[key] = keys[key] * PRICE % PRICES + turn
    return Sums(
        int(is_there.sum()),
        int(keys[is_there].sum()),
        int(prices[is_there].sum()),
        int(scns[is_there].sum()),
    )


if __name__ == "__main__":
    for kind in KINDS:
        for count in sys.argv[2:]:
            fill(sys.argv[1], kind, int(count))
