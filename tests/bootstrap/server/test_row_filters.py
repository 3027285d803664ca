"""Partition filters by columns, in the reads of a store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from databus.bootstrap.server.row_filters import filter_of_rows
from databus.bootstrap.store.filter_sql import StoredFilter
from databus.bootstrap.store.log_table import LogRange
from databus.bootstrap.store.snapshot_pages import needed_rows
from databus.bootstrap.store.values import WHOLE_WINDOW
from databus.schemas.errors import InvalidParameterError
from databus.schemas.filters import PartitionFilter
from databus.schemas.partitions.row_hashes import hash_of_columns
from tests.bootstrap.filled import PERSON, FilledStore, emptied, gone, make_filled, put

NAMES = [f"name {number}" for number in range(12)]
MOST = 1 << 20


def partition_of(name: str) -> int:
    return hash_of_columns(PERSON.source, ("name",), {"name": name}) % 3


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[FilledStore]:
    """Return a store: person n was put at SCN 110 + n, and 3 deleted at 130."""
    with closing(make_filled(tmp_path / "shop.db", persons=0)) as made:
        for number, name in enumerate(NAMES):
            made.apply(110 + number, put(1, number, 110 + number, name))
        made.apply(130, gone(1, 3, 130))
        yield made


def wanted_rows(filled: FilledStore, partition: int, by: str = "name") -> StoredFilter | None:
    now = filled.store.rows_now([1])
    wanted = PartitionFilter(3, frozenset((partition,)), (by,))
    return filter_of_rows(wanted, 1, now, now.renew)


@pytest.mark.parametrize("partition", range(3))
def test_a_snapshot_has_the_rows_of_the_partition_and_what_has_changed_since(
    filled: FilledStore, partition: int
) -> None:
    own = [n for n, name in enumerate(NAMES) if partition_of(name) == partition and n != 3]
    assert own
    read = filled.store.snapshot_page
    whole = read(PERSON.source, needed_rows(0, 200, 0, wanted_rows(filled, partition)), MOST)
    assert [row.key for row in whole.rows] == own
    later = needed_rows(0, 200, 0, wanted_rows(filled, partition), seen_scn=117)
    changed = [3, 8, 9, 10, 11]
    found = read(PERSON.source, later, MOST).rows
    assert [row.key for row in found] == sorted({*own, *changed})
    body = filled.store.snapshot_body(PERSON.source, later, MOST)
    assert body.measure.rows == len(found)
    measured = filled.store.measure_snapshot(PERSON.source, later, 1000, MOST)
    assert measured.rows == len(found)


def test_the_log_has_the_changes_of_the_partition_and_every_truncate(filled: FilledStore) -> None:
    filled.apply(140, emptied(1, 140))
    for partition in range(3):
        wanted = wanted_rows(filled, partition)
        assert wanted is not None
        log_range = LogRange([1], (100, WHOLE_WINDOW), 200, {1: wanted})
        own = [n for n, name in enumerate(NAMES) if partition_of(name) == partition]
        gone_too = [3] if partition == partition_of("new") else []
        found = [row.key for row in filled.store.log_page(log_range, MOST).rows]
        assert found == [*own, *gone_too, b""]
        assert filled.store.measure_log(log_range, 1000, MOST).rows == len(found)


def test_a_column_that_the_table_has_not_is_named(filled: FilledStore) -> None:
    wanted = wanted_rows(filled, 0, "town")
    assert wanted is not None
    with pytest.raises(InvalidParameterError, match="no such column; it has id, name"):
        filled.store.snapshot_page(PERSON.source, needed_rows(0, 200, 0, wanted), MOST)
    with pytest.raises(InvalidParameterError, match="no such column"):
        filled.store.log_page(LogRange([1], (100, WHOLE_WINDOW), 200, {1: wanted}), MOST)
