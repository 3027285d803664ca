"""Packs whose bytes in the file are not what was written: found by the check, and by readers."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections import deque
from contextlib import closing
from pathlib import Path

import pytest

from databus.bootstrap.packs.building import PackSizes
from databus.bootstrap.packs.packer import Packer
from databus.bootstrap.store.check import check_store
from databus.bootstrap.store.retention import Retention
from databus.bootstrap.store.store import Store
from databus.schemas.errors import StoreDamagedError
from tests.bootstrap.filled import PERSON, gone, make_filled, put
from tests.bootstrap.packs.reading import MOST_BYTES, read_table
from tests.bootstrap.store.test_retention import settings_of

SIZES = PackSizes(most_rows=300, fewest_rows=50, fewest_noted=1)
FLIPS = 40
SEEN = [
    "update pack_columns set data = zeroblob(length(data)) where id = 3",
    "update pack_columns set data = substr(data, 1, 64) where id = 3",
    "update pack_columns set data = cast(data as text) where id = 3",
    "update pack_columns set ids = x'0000000000000000' where id = 3",
    "delete from pack_columns where id = 3",
    "update packs set changed = x'0100000000000000'",
    "update packs set changed = 5",
    "update packs set head = cast(replace(head, '1', '2') as blob)",
    "update packs set head = cast(head as text)",
    "update packs set columns_id = columns_id + 1 where columns_id = 3",
    "update packs set until_id = until_id + 100000 where columns_id = 1",
    "update packs set after_id = after_id + 1",
    "update packs set row_count = row_count - 1",
    "update packs set size_bytes = 0",
    "update packing set scn = scn + 1",
    "update packing set version = version || ' '",
]
UNSEEN = [  # by readers, who do not use it
    "update packs set epoch = 'x' where columns_id = 3",
    "insert into pack_columns (ids, data) values (x'', x'00')",
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with packs, of rows of which some are gone and some have changed."""
    path = tmp_path / "shop.db"
    with closing(make_filled(path, 2000)) as made:
        made.apply(102, gone(1, 1, 102), gone(1, 700, 102))  # so that the ids of packs have gaps
        retention = Retention(made.store, settings_of(deleted_retention_s=1.0), lambda: 1 << 62)
        while retention.step():
            pass
        packer = Packer(made.store, MOST_BYTES, SIZES)
        for scn in (103, 104):
            while packer.step():
                pass
            made.apply(scn, *(put(1, key, scn) for key in range(2, 2000, 50)))
    return path


def check(path: Path) -> None:
    deque(check_store(path), maxlen=0)


def read(path: Path, *, takes_packs: bool = True) -> list[tuple[object, ...]]:
    with closing(Store.open(path)) as store:
        found = read_table(store, PERSON.source, 104, takes_packs=takes_packs)
        assert bool(found.packed) is takes_packs
        return found.rows


def change(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        assert database.execute(statement).rowcount


def test_packs_as_they_were_written_are_sound(path: Path) -> None:
    check(path)
    assert read(path) == read(path, takes_packs=False)


@pytest.mark.parametrize("damage", SEEN)
def test_a_damaged_pack_is_reported_and_no_row_of_it_sent(path: Path, damage: str) -> None:
    change(path, damage)
    with pytest.raises(StoreDamagedError, match="is damaged"):
        read(path)


@pytest.mark.parametrize("damage", SEEN + UNSEEN)
def test_a_damaged_pack_is_found_by_the_check_of_its_store(path: Path, damage: str) -> None:
    change(path, damage)
    with pytest.raises(StoreDamagedError, match="is damaged"):
        check(path)


@pytest.mark.parametrize("column", ["until_id", "after_id", "row_count", "changed"])
def test_a_packer_does_not_go_on_from_a_damaged_pack(path: Path, column: str) -> None:
    change(path, f"update packs set {column} = {column} + 7 where columns_id = 3")
    with closing(Store.open(path)) as store:
        packer = Packer(store, MOST_BYTES, SIZES)
        with pytest.raises(StoreDamagedError, match="is damaged"):
            deque(iter(packer.step, False), maxlen=0)


def test_no_flipped_bit_of_a_pack_is_sent_or_passes_the_check(path: Path, tmp_path: Path) -> None:
    chosen, expected, refused = random.Random(5), read(path), 0
    with closing(sqlite3.connect(path)) as database:
        database.execute("pragma wal_checkpoint(truncate)")
        packed = [data for (data,) in database.execute("select data from pack_columns")]
    whole = path.read_bytes()
    begins = [begin for data in packed if (begin := whole.find(data[:2000])) >= 0]
    assert begins
    places = [chosen.choice(begins) + chosen.randrange(2000) for _ in range(FLIPS)]
    changed = tmp_path / "changed" / "shop.db"
    for at in places:
        changed.parent.mkdir()
        damaged = bytearray(whole)
        damaged[at] ^= 1 << chosen.randrange(8)
        changed.write_bytes(damaged)
        for look in (check, read):
            try:
                assert look(changed) in (None, expected)
            except StoreDamagedError:
                refused += 1
        shutil.rmtree(changed.parent)
    assert refused >= FLIPS
