"""The tables of packs: what they say of the packs, and which are deleted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from databus.bootstrap.packs.building import PackSizes
from databus.bootstrap.packs.packer import Packer
from databus.bootstrap.store.packs import table
from databus.bootstrap.store.store import Store
from tests.bootstrap.filled import make_filled
from tests.bootstrap.packs.reading import MOST_BYTES

SIZES = PackSizes(most_rows=100, fewest_rows=50)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store with four packs of persons."""
    with closing(make_filled(tmp_path / "shop.db", 450)) as made:
        packer = Packer(made.store, MOST_BYTES, SIZES)
        while packer.step():
            pass
        yield made.store


def places(store: Store) -> list[tuple[int, int]]:
    found, place = [], (0, 0)
    while (pack := table.next_pack(store.file.connection, place)) is not None:
        place = pack.head.src_id, pack.head.until_id
        found.append(place)
    return found


def test_every_pack_is_found_and_those_of_the_highest_ids_are_deleted_first(store: Store) -> None:
    assert places(store) == [(1, 100), (1, 200), (1, 300), (1, 400)]
    with store.file.writing("deleting", stamps=False):
        assert table.delete_last(store.file.connection, 3) == 3
    assert places(store) == [(1, 100)]
    with store.file.reading("checking"):
        table.check_columns_owned(store.file.connection)


def test_a_pack_counts_for_its_columns_and_for_ids_with_gaps(store: Store) -> None:
    connection, sizes, place = store.file.connection, [], (0, 0)
    while (pack := table.next_pack(connection, place)) is not None:
        sizes.append(len(table.frame_of(connection, pack)))
        assert table.size_bytes(pack.head) == sizes[-1]
        place = pack.head.src_id, pack.head.until_id
    assert len(sizes) == 4
    assert sum(sizes) == table.held_bytes(connection)
    pack = table.next_pack(connection, (0, 0))
    assert pack is not None
    assert list(table.ids_of(connection, pack)) == list(range(1, 101))
