"""The four orders in which a batch of changes can be consumed.

| mode | what is ordered | what may run in parallel |
|---|---|---|
| `transaction` | transactions | physical sources |
| `single-table` | transactions of several tables, which stay whole | tables, between those |
| `table` | the changes of a table | tables |
| `row` | the changes of a key | everything else |

A group starts when the one before it is done; the DataFrames of one group may be
processed in parallel. Within a DataFrame, the rows of a partition are in order, and
partitions may be processed in parallel:

    def consume(batch, batch_id):
        for group in ordered_groups(batch, "table"):
            with ThreadPoolExecutor(len(group)) as pool:
                list(pool.map(lambda part: part.foreachPartition(write), group))

    # transaction: one DataFrame per physical source, of one partition
    # [[shop, billing]]
    # single-table: [[orders, person], [a transaction of both], [orders]]
    # table: [[orders, person]]
    # row: [[all rows, partitioned by key]], with truncates in a group of their own

`part.toLocalIterator()` and `part.foreachPartition(function)` iterate over the rows
of a partition in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise, zip_longest
from typing import Any, Final, Literal, get_args

from pyspark.sql import Column, DataFrame, functions as sf

from databus.client.spark.arrow.row_keys import at, key_paths, meta_type, split_moves
from databus.client.spark.arrow.row_types import CHANGE_COLUMN
from databus.client.spark.session import parallelism
from databus.client.spark.targets.changes import LOG_OPS, MARK_OPS
from databus.schemas.errors import SettingsError

Mode = Literal["transaction", "single-table", "table", "row"]
Group = list[DataFrame]
# A place in the log of a physical source: SCN, and index in its window.
Place = tuple[int, int]

_LAST_INDEX: Final = 2**31 - 1
_FIRST: Final[Place] = (-1, -1)
_LAST: Final[Place] = (2**63 - 1, _LAST_INDEX)


def ordered_groups(
    batch: DataFrame, mode: Mode, keys: Sequence[str] | None = None
) -> Iterator[Group]:
    """Split a batch into groups, each a list of DataFrames that may be processed in parallel.

    `batch`: changes in either layout. `keys`: for mode `row` in layout
    `columns`, instead of the primary key. The batch stays in Spark's cache from the
    first group to the end of the iteration, so it is read once.

    In mode `row` an update that changes the key becomes a delete of the old key and an
    insert of the new one, each in its own key's order.

    Raises SettingsError for an unknown mode, and in mode `row` without keys.
    """
    if mode not in get_args(Mode):
        raise SettingsError(f"mode {mode!r} is not one of {', '.join(get_args(Mode))}")
    meta_type(batch)
    if mode == "row":
        paths = key_paths(batch, keys)
        by_key = [sf.col(f"{CHANGE_COLUMN}.source"), *map(at, paths)]
        return _cached(split_moves(batch, paths, as_inserts=True), mode, by_key)
    return _cached(batch, mode, [])


def _cached(batch: DataFrame, mode: Mode, by_key: Sequence[Column]) -> Iterator[Group]:
    """Split a batch, which is cached until the iteration ends or is abandoned."""
    # The caller's own cache stays: it is the caller who unpersists it.
    is_mine = not (batch.storageLevel.useMemory or batch.storageLevel.useDisk)
    held = batch.persist() if is_mine else batch
    try:
        if mode == "transaction":
            yield _each(held, "physical_source")
        elif mode == "table":
            yield _each(held, "source")
        elif mode == "single-table":
            yield from _between_transactions_of_several(held)
        else:
            yield from _between_marks(held, by_key)
    finally:
        if is_mine:
            held.unpersist()


def _each(batch: DataFrame, field: str) -> Group:
    """Return an ordered DataFrame for each physical source, or each source."""
    name = sf.col(f"{CHANGE_COLUMN}.{field}")
    found = sorted(row[0] for row in batch.select(name).distinct().collect())
    return [_ordered(batch.where(name == value)) for value in found]


def _between_transactions_of_several(batch: DataFrame) -> Iterator[Group]:
    """Split where transactions of several tables begin and end."""
    meta = sf.col(CHANGE_COLUMN)
    of_log = sf.when(meta["op"].isin(*LOG_OPS), meta["source"])
    grouped = batch.groupBy(meta["physical_source"].alias("physical"), meta["scn"].alias("scn"))
    summary = grouped.agg(
        sf.collect_set(meta["source"]).alias("sources"), sf.count_distinct(of_log).alias("of_log")
    )
    windows = summary.orderBy("physical", "scn").toArrow().to_pylist()
    runs = [
        _runs(batch, physical, list(found))
        for physical, found in groupby(windows, key=lambda window: window["physical"])
    ]
    # Physical sources have no common order, so their n-th groups run side by side.
    for parts in zip_longest(*runs, fillvalue=()):
        yield [part for group in parts for part in group]


def _runs(batch: DataFrame, physical: str, windows: list[dict[str, Any]]) -> list[Group]:
    """Return the groups of one physical source; `windows` are its windows in order."""
    found: list[Group] = []
    for is_several, same_kind in groupby(windows, key=lambda window: window["of_log"] > 1):
        run = list(same_kind)
        after, last = (run[0]["scn"] - 1, _LAST_INDEX), (run[-1]["scn"], _LAST_INDEX)
        rows = _between(batch, physical, after, last)
        if is_several:
            found.append([_ordered(rows)])
            continue
        source = sf.col(f"{CHANGE_COLUMN}.source")
        names = sorted({name for window in run for name in window["sources"]})
        found.append([_ordered(rows.where(source == name)) for name in names])
    return found


def _between_marks(batch: DataFrame, by_key: Sequence[Column]) -> Iterator[Group]:
    """Split at truncates and ends of snapshots, which concern all keys."""
    meta = sf.col(CHANGE_COLUMN)
    names = ("op", "physical_source", "scn", "index")
    marks = batch.where(meta["op"].isin(*MARK_OPS)).select(*(meta[name] for name in names))
    places: dict[str, list[Place]] = {}
    for _op, physical, scn, index in marks.distinct().collect():
        place = (scn, _LAST_INDEX if index is None else index)
        places.setdefault(physical, []).append(place)
    if not places:
        yield [_by_key(batch, by_key)]
        return
    physical_source = meta["physical_source"]
    # Rows of physical sources without a mark need no splitting: they are in the first group.
    rest = batch.where(~physical_source.isin(*places))
    runs = [
        [
            group
            for after, mark in pairwise([_FIRST, *sorted(set(found)), _LAST])
            for group in _around(batch, by_key, physical, after, mark)
        ]
        for physical, found in sorted(places.items())
    ]
    for parts in zip_longest([[_by_key(rest, by_key)]], *runs, fillvalue=()):
        yield [part for group in parts for part in group]


def _around(
    batch: DataFrame, by_key: Sequence[Column], physical: str, after: Place, mark: Place
) -> list[Group]:
    """Return the group of the rows up to a mark, by key, and the group of the mark."""
    run = _between(batch, physical, after, mark)
    is_mark = sf.col(f"{CHANGE_COLUMN}.op").isin(*MARK_OPS)
    rows: Group = [_by_key(run.where(~is_mark), by_key)]
    return [rows] if mark == _LAST else [rows, [_ordered(run.where(is_mark))]]


def _between(batch: DataFrame, physical: str, after: Place, last: Place) -> DataFrame:
    """Return a physical source's rows in (after, last]."""
    scn, index = _place()
    (first_scn, first_index), (last_scn, last_index) = after, last
    is_after = (scn > first_scn) | ((scn == first_scn) & (index > first_index))
    is_until = (scn < last_scn) | ((scn == last_scn) & (index <= last_index))
    mine = sf.col(f"{CHANGE_COLUMN}.physical_source") == physical
    return batch.where(mine & is_after & is_until)


def _ordered(rows: DataFrame) -> DataFrame:
    """Return rows as one partition, in the order of the log."""
    return rows.coalesce(1).sortWithinPartitions(*_place())


def _by_key(rows: DataFrame, by_key: Sequence[Column]) -> DataFrame:
    """Return rows in partitions by key, each in the order of the log."""
    # With an explicit number Spark does not merge small partitions.
    count = parallelism(rows.sparkSession)
    return rows.repartition(count, *by_key).sortWithinPartitions(*_place())


def _place() -> tuple[Column, Column]:
    meta = sf.col(CHANGE_COLUMN)
    return meta["scn"], sf.coalesce(meta["index"], sf.lit(_LAST_INDEX))
