"""A target is the SELECT's answer after every batch, whatever the batch brings."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from databus.client.spark.sql.batches import JoinBatches, UnionBatches
from databus.client.spark.sql.binder import bind, streams_of
from databus.client.spark.sql.job_file import parse_job
from databus.client.spark.sql.join_state import open_join_state
from databus.client.spark.sql.plan import JoinPlan
from databus.client.spark.sql.source_streams import columns_of, in_one_shape
from databus.client.spark.targets.target import Applied, open_target
from databus.schemas.errors import ConsumerError
from tests.client.spark.targets.hand_made import Change, batch_of, row_type

HEAD = "-- target: delta:t\n-- relays: http://r\n-- checkpoint: c\n"
TYPES = {
    "shop.orders": row_type(
        {"id": "int", "customer": "int", "item": "string", "total": "int"}, "id"
    ),
    "shop.customers": row_type({"id": "int", "name": "string", "country": "string"}, "id"),
    "shop.countries": row_type({"code": "string", "name": "string"}, "code"),
}
ORDERS = "shop.orders"


class Job:
    """A job's batch function on targets in a folder, as a run of it has them."""

    def __init__(self, spark: SparkSession, folder: Path, select: str) -> None:
        query = parse_job(HEAD + select).query
        self.spark = spark
        self.streams = streams_of(query)
        rows = {stream: TYPES[stream.source] for stream in self.streams}
        plan = bind(query, {stream: columns_of(row) for stream, row in rows.items()})
        several = not isinstance(plan, JoinPlan) and len(plan.branches) > 1
        self.target = open_target(f"delta:{folder / 'target'}", plan.key, source_column=several)
        self.columns = [*plan.columns, *(["_databus_source"] if several else [])]
        self.batches: UnionBatches | JoinBatches
        if isinstance(plan, JoinPlan):
            self.state = open_join_state(plan.state, rows, folder / "mirrors")
            self.batches = JoinBatches(plan, spark, self.state, self.target, "app")
        else:
            self.batches = UnionBatches(plan, self.target, "app")

    def apply(self, batch_id: int, changes: Iterable[Change]) -> Applied:
        rows = {stream.source: TYPES[stream.source] for stream in self.streams}
        batch = in_one_shape(batch_of(self.spark, rows, changes), self.streams)
        return self.batches.apply(batch, batch_id)

    def rows(self) -> list[tuple[Any, ...]]:
        found = self.target.rows(self.spark).select(*self.columns).collect()
        return sorted((tuple(row) for row in found), key=repr)


def order(
    id_: int, customer: int | None = 1, item: str = "tea", total: int | None = 5
) -> dict[str, Any]:
    return {"id": id_, "customer": customer, "item": item, "total": total}


def test_an_update_moves_a_row_in_within_and_out_of_the_condition(
    spark: SparkSession, tmp_path: Path
) -> None:
    job = Job(
        spark,
        tmp_path,
        "SELECT item, 100 DIV (total - 5) AS share FROM shop.orders WHERE total > 5",
    )
    job.apply(
        0,
        [
            Change(ORDERS, "snapshot", 3, order(1, total=5)),
            Change(ORDERS, "snapshot", 3, order(2, total=7)),
            Change(ORDERS, "snapshot", 3, order(3, total=7)),
            Change(ORDERS, "snapshot", 3, order(4, total=None)),
            Change(ORDERS, "snapshot", 3, order(5, total=7)),
            Change(ORDERS, "snapshot", 3, order(9, total=7)),
            Change(ORDERS, "snapshot_end", 3, index=None),
        ],
    )
    assert job.rows() == [(2, "tea", 50), (3, "tea", 50), (5, "tea", 50), (9, "tea", 50)]
    moves = [
        Change(ORDERS, "update", 4, order(1, total=6), order(1, total=5)),  # in
        Change(ORDERS, "update", 5, order(2, total=25)),  # within, its image not logged
        Change(ORDERS, "update", 6, order(3, total=5)),  # out, its image not logged
        Change(ORDERS, "update", 6, order(4, total=4), order(4, total=None), index=1),  # without
        Change(ORDERS, "delete", 7, order(5, total=7)),
        Change(ORDERS, "delete", 7, order(6, total=1), index=1),  # that was never in
        Change(ORDERS, "insert", 8, order(7, total=None)),  # NULL is not fulfilled
        Change(ORDERS, "insert", 9, order(8, total=105)),
        Change(ORDERS, "update", 10, order(10, total=9), order(9, total=7)),  # another key
    ]
    job.apply(1, moves)
    now = [(1, "tea", 100), (10, "tea", 25), (2, "tea", 5), (8, "tea", 1)]
    assert job.rows() == now
    assert job.apply(1, moves).is_skipped
    job.apply(2, [Change(ORDERS, "update", 11, order(10, total=1), order(11, total=9))])
    job.apply(3, [Change(ORDERS, "insert", 12, order(20, total=7)), Change(ORDERS, "truncate", 13)])
    assert job.rows() == []
    assert job.target.positions() == {"shop": 13}


def test_shards_with_equal_keys_do_not_meet(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(
        spark,
        tmp_path,
        "SELECT 'e' AS shard, id, total FROM east.shop.orders UNION ALL "
        "SELECT 'w', id, CAST(total AS BIGINT) * 2 FROM west.shop.orders WHERE total > 1",
    )

    def change(physical: str, op: str, scn: int, id_: int, total: int) -> Change:
        row = None if op in ("truncate", "snapshot_end") else order(id_, total=total)
        return Change(ORDERS, op, scn, row, physical_source=physical)

    job.apply(
        0,
        [
            change("east", "snapshot", 900, 1, 1),
            change("east", "snapshot", 900, 2, 2),
            change("west", "snapshot", 5, 1, 1),
            change("west", "snapshot", 5, 2, 2),
            change("west", "snapshot", 5, 3, 3),
        ],
    )
    assert job.rows() == [
        ("e", 1, 1, "e"),
        ("e", 2, 2, "e"),
        ("w", 2, 4, "w"),
        ("w", 3, 6, "w"),
    ]
    job.apply(
        1,
        [
            change("west", "delete", 6, 2, 2),
            change("east", "truncate", 901, 0, 0),
            change("east", "insert", 902, 3, 3),
        ],
    )
    assert job.rows() == [("e", 3, 3, "e"), ("w", 3, 6, "w")]
    # A second snapshot of one shard takes away what it did not bring, of that shard alone.
    again = [change("west", "snapshot", 9, 4, 4), change("west", "snapshot_end", 9, 0, 0)]
    job.apply(2, again)
    assert job.rows() == [("e", 3, 3, "e"), ("w", 4, 8, "w")]


# JOIN: what a database answers is what the wide table must be

VIEW = """
SELECT o.id AS id, o.item, c.name AS customer, k.name AS country, o.total * 2 AS twice
FROM shop.orders o
{first} JOIN shop.customers c ON c.id = o.customer AND c.name <> 'nobody'
LEFT JOIN shop.countries k ON k.code = c.country
WHERE {condition}
"""
INNER = VIEW.format(first="INNER", condition="o.total > 2 OR k.name = 'Chad'")
LEFT = VIEW.format(first="LEFT", condition="k.name IS NULL OR k.name <> 'Peru'")
NAMES = ["Ann", "Bob", "nobody"]
COUNTRIES = ["Norway", "Peru", "Chad"]
KEYS: dict[str, list[Any]] = {
    "orders": [*range(12)],
    "customers": [*range(5)],
    "countries": ["no", "pe", "td"],
}


class Shop:
    """The source: SQLite, whose every change is noted as the stream brings it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.database = sqlite3.connect(":memory:")
        self.database.row_factory = sqlite3.Row
        self.database.execute("ATTACH ':memory:' AS shop")
        for source, key in (("orders", "id"), ("customers", "id"), ("countries", "code")):
            fields = TYPES[f"shop.{source}"].fields
            columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in fields)
            self.database.execute(f"CREATE TABLE shop.{source} ({columns}, PRIMARY KEY ({key}))")
        self.scn = 100
        self.changes: list[Change] = []

    def taken(self) -> list[Change]:
        """Return what was noted since the last call, in any order."""
        taken, self.changes = self.changes, []
        self.random.shuffle(taken)
        return taken

    def view(self, select: str) -> list[tuple[Any, ...]]:
        return sorted((tuple(row) for row in self.database.execute(select)), key=repr)

    def change(self) -> None:
        """Change one row at random; now and then all of a table."""
        (table,) = self.random.choices([*KEYS], weights=[5, 3, 2])
        key = self.random.choice(KEYS[table])
        column = "code" if table == "countries" else "id"
        before = self._row(table, column, key)
        self.scn += self.random.randrange(2)  # several changes may be of one window
        action = self.random.random()
        if before is None:
            self._write(table, "insert", self._new(table, key), None)
        elif action < 0.25:
            self.database.execute(f"DELETE FROM shop.{table} WHERE {column} = ?", (key,))
            self._note(table, "delete", before, None)
        elif action < 0.3 and table == "orders" and self._row(table, column, 99) is None:
            self._write(table, "update", {**before, column: 99}, before)
        else:
            self._write(table, "update", self._new(table, key), before)

    def truncate(self, table: str) -> None:
        self.scn += 1
        self.database.execute(f"DELETE FROM shop.{table}")
        self._note(table, "truncate", None, None)

    def snapshot(self, table: str) -> list[Change]:
        """Return the table as a whole snapshot brings it."""
        rows = self.database.execute(f"SELECT * FROM shop.{table}").fetchall()
        source = f"shop.{table}"
        brought = [Change(source, "snapshot", self.scn, dict(row), index=None) for row in rows]
        return [*brought, Change(source, "snapshot_end", self.scn, index=None)]

    def _write(
        self, table: str, op: str, row: Mapping[str, Any], before: Mapping[str, Any] | None
    ) -> None:
        if before is not None:
            column = "code" if table == "countries" else "id"
            self.database.execute(f"DELETE FROM shop.{table} WHERE {column} = ?", (before[column],))
        marks = ", ".join("?" for _ in row)
        self.database.execute(f"INSERT INTO shop.{table} VALUES ({marks})", (*row.values(),))
        self._note(table, op, row, before)

    def _note(
        self,
        table: str,
        op: str,
        row: Mapping[str, Any] | None,
        before: Mapping[str, Any] | None,
    ) -> None:
        index = sum(change.scn == self.scn for change in self.changes)
        self.changes.append(Change(f"shop.{table}", op, self.scn, row, before, index))

    def _row(self, table: str, column: str, key: object) -> dict[str, Any] | None:
        row = self.database.execute(
            f"SELECT * FROM shop.{table} WHERE {column} = ?", (key,)
        ).fetchone()
        return None if row is None else dict(row)

    def _new(self, table: str, key: Any) -> dict[str, Any]:
        choice = self.random.choice
        if table == "orders":
            customer = choice([None, *KEYS["customers"]])
            return order(key, customer, f"item {self.random.random()}", self.random.randrange(6))
        if table == "customers":
            return {"id": key, "name": choice(NAMES), "country": choice([None, *KEYS["countries"]])}
        return {"code": key, "name": choice(COUNTRIES)}


@pytest.mark.parametrize(("select", "seed"), [(INNER, 1), (LEFT, 2)], ids=["inner", "left"])
def test_a_wide_table_equals_the_view_after_every_batch(
    spark: SparkSession, tmp_path: Path, select: str, seed: int
) -> None:
    shop, job = Shop(seed), Job(spark, tmp_path, select)
    for batch_id in range(2):
        for _ in range(60):
            shop.change()
        job.apply(batch_id, shop.taken())
        assert job.rows() == shop.view(select), f"batch {batch_id}"
        assert job.rows()


def test_truncates_and_snapshots_on_either_side_reach_the_wide_table(
    spark: SparkSession, tmp_path: Path
) -> None:
    shop, job = Shop(3), Job(spark, tmp_path, LEFT)
    for _ in range(60):
        shop.change()
    shop.taken()
    snapshot = [change for table in KEYS for change in shop.snapshot(table)]
    job.apply(0, snapshot)
    assert job.rows() == shop.view(LEFT)
    for batch_id, table in enumerate(("countries", "orders"), 1):
        shop.truncate(table)
        for _ in range(10):
            shop.change()
        job.apply(batch_id, shop.taken())
        assert job.rows() == shop.view(LEFT), table
    # What happened meanwhile is only seen by the second snapshot.
    for _ in range(60):
        shop.change()
    shop.taken()
    job.apply(3, [change for table in KEYS for change in shop.snapshot(table)])
    assert job.rows() == shop.view(LEFT)
    assert job.rows()


class CrashError(ConsumerError):
    """The end of a process, between two commits."""


def test_a_batch_that_comes_again_after_a_crash_ends_the_same(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop, job = Shop(4), Job(spark, tmp_path, INNER)
    for _ in range(60):
        shop.change()
    job.apply(0, shop.taken())
    for batch_id, crash_at in enumerate(("customers", "target"), 1):
        for _ in range(20):
            shop.change()
        if crash_at == "target":
            shop.truncate("customers")
        batch = shop.taken()
        victims = {stream.source: kept.target for stream, kept in job.state.items()}
        victim = {"target": job.target}.get(crash_at) or victims[f"shop.{crash_at}"]
        with monkeypatch.context() as patched:
            patched.setattr(victim, "apply", _crash)
            with pytest.raises(CrashError):
                job.apply(batch_id, batch)
        job.apply(batch_id, batch)
        assert job.rows() == shop.view(INNER), crash_at


def _crash(*_: object) -> Applied:
    raise CrashError(0, "the process has ended")
