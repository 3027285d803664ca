"""Stores: what is saved comes back, and what is broken is said."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from databus.daemon.faults import is_transient
from databus.registry.registry import SchemaRegistry
from databus.registry.store import (
    FileStore,
    LayeredStore,
    MemoryStore,
    SchemaStore,
    SqliteStore,
    StoredVersion,
    open_store,
)
from databus.schemas.errors import SchemaError
from tests.registry.texts import ORDERS_1, ORDERS_2, record

FIRST = StoredVersion("shop.orders", 1, ORDERS_1, 10)
SECOND = StoredVersion("shop.orders", 2, ORDERS_2, 20)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_what_is_saved_comes_back_in_order(kind: str, tmp_path: Path) -> None:
    store: SchemaStore = MemoryStore() if kind == "memory" else SqliteStore(tmp_path / "s.db")
    store.save_sources({"shop.orders": 40})
    for version in (SECOND, FIRST):
        store.save_versions([version])
    assert store.load_sources() == {"shop.orders": 40}
    assert store.load_versions() == [FIRST, SECOND]


def test_an_sqlite_store_never_replaces_a_version(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "s.db")
    store.save_versions([FIRST])
    with pytest.raises(SchemaError, match=r"s\.db.*UNIQUE"):
        store.save_versions([FIRST._replace(text=ORDERS_2)])
    assert store.load_versions() == [FIRST]


def test_an_sqlite_store_never_gives_one_id_to_two_sources(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "s.db")
    store.save_sources({"a": 1})
    with pytest.raises(SchemaError, match="UNIQUE"):
        store.save_sources({"b": 1})
    assert store.load_sources() == {"a": 1}


def test_a_version_is_on_disk_when_it_is_saved(tmp_path: Path) -> None:
    SqliteStore(tmp_path / "s.db").save_versions([FIRST])
    with closing(sqlite3.connect(tmp_path / "s.db")) as other:
        assert other.execute("select source, version from schema_versions").fetchall() == [
            ("shop.orders", 1)
        ]


def test_a_file_that_is_no_database_is_a_schema_error(tmp_path: Path) -> None:
    (tmp_path / "s.db").write_bytes(b"not a database, but long enough to look at" * 40)
    with pytest.raises(SchemaError, match=r"s\.db: file is not a database"):
        SqliteStore(tmp_path / "s.db").load_versions()


def test_a_folder_that_is_missing_is_a_schema_error(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="unable to open"):
        SqliteStore(tmp_path / "nowhere" / "s.db").load_versions()


def test_hand_made_files_are_read_by_their_names(tmp_path: Path) -> None:
    (tmp_path / "shop.orders.1.avsc").write_text(ORDERS_1)
    (tmp_path / "shop.orders.10.avsc").write_text(ORDERS_2)
    (tmp_path / "README").write_text("not a schema")
    assert FileStore(tmp_path).load_versions() == [
        StoredVersion("shop.orders", 1, ORDERS_1, 0),
        StoredVersion("shop.orders", 10, ORDERS_2, 0),
    ]


def test_a_hand_made_file_may_say_where_it_starts(tmp_path: Path) -> None:
    text = record(("id", "long"))[:-1] + ', "startScn": 77}'
    (tmp_path / "shop.orders.1.avsc").write_text(text)
    assert FileStore(tmp_path).load_versions()[0].start_scn == 77


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("orders.avsc", ORDERS_1, "name it <source>.<version>.avsc"),
        ("orders.0.avsc", ORDERS_1, "name it"),
        ("orders.1.avsc", '"long"', "orders.1.avsc: a source's schema is a record"),
        ("orders.1.avsc", ORDERS_1[:-1] + ', "startScn": "x"}', "startScn is 'x'"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, name: str, text: str, problem: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(SchemaError, match=problem):
        FileStore(tmp_path).load_versions()


def test_hand_made_schemas_are_never_written(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"write .*shop\.orders\.1\.avsc yourself"):
        FileStore(tmp_path).save_versions([FIRST])
    assert list(tmp_path.iterdir()) == []


def test_generated_versions_go_on_after_hand_made_ones(tmp_path: Path) -> None:
    made, data = tmp_path / "made", tmp_path / "data"
    made.mkdir()
    data.mkdir()
    (made / "shop.orders.1.avsc").write_text(ORDERS_1)
    registry = SchemaRegistry(open_store(data, made))
    registry.add_source("shop.orders", 40)
    assert registry.register("shop.orders", ORDERS_1, 5).version == 1
    assert registry.register("shop.orders", ORDERS_2, 20).version == 2
    again = SchemaRegistry(open_store(data, made))
    assert [v.text for v in again.versions("shop.orders")] == [ORDERS_1, ORDERS_2]
    assert [v.version for v in SqliteStore(data / "schemas.db").load_versions()] == [2]


def test_a_version_that_is_hand_made_and_generated_differently_is_refused() -> None:
    store = LayeredStore(MemoryStore([FIRST]), MemoryStore([FIRST._replace(text=ORDERS_2)]))
    with pytest.raises(SchemaError, match=r"version 1 of shop\.orders is hand-made and generated"):
        store.load_versions()


def store_of_two(folder: Path) -> SqliteStore:
    store = SqliteStore(folder / "schemas.db")
    store.save_sources({"shop.orders": 40})
    store.save_versions([FIRST])
    store.save_versions([SECOND])
    store.load_versions()
    return store


def flips(whole: bytes, step: int) -> Iterator[bytes]:
    """Yield it with one bit flipped here and there, in the rows and in what SQLite keeps.

    The highest bit, too: it makes a name that is no UTF-8, which SQLite quotes.
    """
    for at in range(0, len(whole), step):
        for bit in {1 << at % 8, 0x80}:
            damaged = bytearray(whole)
            damaged[at] ^= bit
            yield bytes(damaged)


def test_no_flipped_bit_makes_another_schema_and_the_copy_is_put_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = store_of_two(tmp_path)
    whole = store.path.read_bytes()
    repaired = 0
    for damaged in flips(whole, 83):
        store.path.write_bytes(damaged)
        caplog.clear()
        assert store.load_sources() == {"shop.orders": 40}
        assert store.load_versions() == [FIRST, SECOND]
        repaired += "its copy was put back" in caplog.text
    assert repaired > 10


def test_without_a_copy_no_flipped_bit_is_taken_for_a_schema(tmp_path: Path) -> None:
    store = store_of_two(tmp_path)
    whole = store.path.read_bytes()
    refused = 0
    for damaged in flips(whole, 83):
        store.path.write_bytes(damaged)
        store.copy_path.unlink(missing_ok=True)
        try:
            assert store.load_sources() == {"shop.orders": 40}
            assert store.load_versions() == [FIRST, SECOND]
        except SchemaError as error:
            refused += str(store.path) in str(error)
    assert refused > 10


def test_a_damaged_version_is_named_with_its_table_and_scn(tmp_path: Path) -> None:
    store = store_of_two(tmp_path)
    for path in (store.path, store.copy_path):
        path.write_bytes(path.read_bytes().replace(b'"note"', b'"nope"'))
    with pytest.raises(SchemaError, match=r"version 2 of shop.orders, from scn 20 on; put a copy"):
        store.load_versions()


def test_a_version_that_is_gone_is_found(tmp_path: Path) -> None:
    store = store_of_two(tmp_path)
    store.copy_path.unlink()
    with closing(sqlite3.connect(store.path)) as database, database:
        database.execute("delete from schema_versions where version = 2")
    with pytest.raises(SchemaError, match="a row is missing"):
        store.load_versions()


@pytest.mark.parametrize("size", [None, 0, 100, 4096, 5000])
def test_a_file_that_is_gone_or_cut_is_put_back(tmp_path: Path, size: int | None) -> None:
    store = store_of_two(tmp_path)
    if size is None:
        store.path.unlink()
    else:
        os.truncate(store.path, size)
    assert store.load_versions() == [FIRST, SECOND]
    assert store.path.read_bytes() == store.copy_path.read_bytes()


def test_a_file_that_cannot_be_opened_just_now_is_not_taken_for_damaged(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "s.db")
    store.save_versions([FIRST])
    away = store.path.rename(tmp_path / "away")
    store.path.mkdir()  # what SQLite cannot open, whoever runs the test
    with pytest.raises(SchemaError, match="unable to open") as caught:
        store.load_versions()
    assert is_transient(caught.value)
    store.path.rmdir()
    away.rename(store.path)
    assert store.load_versions() == [FIRST]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s.db", "s.db.copy"]


def test_with_a_copy_that_is_of_no_use_the_files_own_error_is_told_with_its_cause(
    tmp_path: Path,
) -> None:
    store = SqliteStore(tmp_path / "s.db")
    store.save_versions([FIRST])
    for path in (store.path, store.copy_path):
        path.write_bytes(b"not a database, but long enough to look at" * 40)
    with pytest.raises(SchemaError, match=r"s\.db: file is not a database") as caught:
        store.load_versions()
    assert isinstance(caught.value.__cause__, sqlite3.Error)


def test_a_copy_that_is_damaged_or_behind_is_made_anew(tmp_path: Path) -> None:
    store = store_of_two(tmp_path)
    for copy in (b"", b"no database", store.copy_path.read_bytes()[:-100]):
        store.copy_path.write_bytes(copy)
        assert store.load_versions() == [FIRST, SECOND]
        assert store.copy_path.read_bytes() == store.path.read_bytes()


def test_a_store_of_before_there_were_checksums_gets_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(sqlite3.connect(tmp_path / "schemas.db")) as old, old:
        old.execute("create table sources (name text primary key, src_id integer) without rowid")
        old.execute(
            "create table schema_versions (source text, version integer, start_scn integer, "
            "text text, primary key (source, version)) without rowid"
        )
        old.execute("insert into sources values ('shop.orders', 40)")
        old.execute("insert into schema_versions values ('shop.orders', 1, 10, ?)", (ORDERS_1,))
    store = SqliteStore(tmp_path / "schemas.db")
    with caplog.at_level("INFO"):
        assert store.load_sources() == {"shop.orders": 40}
        assert store.load_versions() == [FIRST]
    assert caplog.text.count("had no checksums: it has them now") == 1
    store.save_versions([SECOND])
    assert SqliteStore(tmp_path / "schemas.db").load_versions() == [FIRST, SECOND]


def test_rows_that_an_earlier_program_has_added_get_checksums(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = SqliteStore(tmp_path / "schemas.db")
    store.save_sources({"shop.orders": 40})
    store.save_versions([FIRST])
    with closing(sqlite3.connect(store.path)) as old, old:
        columns = "(source, version, text, start_scn)"
        old.execute(f"insert into schema_versions {columns} values (?, ?, ?, ?)", SECOND)
        old.execute("insert into sources (name, src_id) values ('shop.items', 41)")
    with caplog.at_level("INFO"):
        assert store.load_versions() == [FIRST, SECOND]
        assert store.load_sources() == {"shop.items": 41, "shop.orders": 40}
    assert caplog.text.count("has rows of an earlier program") == 1
    assert store.copy_path.read_bytes() == store.path.read_bytes()


def test_a_row_without_a_checksum_does_not_hide_that_another_is_gone(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "schemas.db")
    store.save_versions([FIRST])
    store.copy_path.unlink()
    with closing(sqlite3.connect(store.path)) as old, old:
        columns = "(source, version, text, start_scn)"
        old.execute("delete from schema_versions")
        old.execute(f"insert into schema_versions {columns} values (?, ?, ?, ?)", SECOND)
    with pytest.raises(SchemaError, match="is not as it was written"):
        store.load_versions()


def test_another_relays_store_beside_the_right_copy_is_refused_and_moving_it_away_mends_it(
    tmp_path: Path,
) -> None:
    store = store_of_two(tmp_path)
    (tmp_path / "other").mkdir()
    other = SqliteStore(tmp_path / "other" / "s.db")
    other.save_sources({"shop.orders": 1})
    other.save_versions([FIRST])
    other.path.replace(store.path)
    kept = store.copy_path.read_bytes()
    for load in (store.load_sources, store.load_versions):
        with pytest.raises(SchemaError, match=r"two different relays.*move it away"):
            load()
    assert store.copy_path.read_bytes() == kept
    store.path.unlink()
    assert store.load_sources() == {"shop.orders": 40}


def test_an_older_file_beside_its_copy_gives_way_to_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = SqliteStore(tmp_path / "s.db")
    store.save_sources({"shop.orders": 40})
    store.save_versions([FIRST])
    older = store.path.read_bytes()
    store.save_versions([SECOND])
    store.path.write_bytes(older)
    assert store.load_versions() == [FIRST, SECOND]
    assert "was behind its copy" in caplog.text
    assert store.path.read_bytes() == store.copy_path.read_bytes()


def test_a_copy_that_never_gave_a_version_out_is_made_anew(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "s.db")
    store.save_sources({"shop.orders": 1})
    empty = store.copy_path.read_bytes()
    store.path.unlink()
    store.copy_path.unlink()
    right = store_of_two(tmp_path)
    right.copy_path.write_bytes(empty)
    assert right.load_sources() == {"shop.orders": 40}
    assert right.copy_path.read_bytes() == right.path.read_bytes()


def test_what_is_saved_together_is_saved_whole_or_not_at_all(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "s.db")
    store.save_versions([FIRST, SECOND])
    with pytest.raises(SchemaError):
        store.save_versions([SECOND._replace(version=3), FIRST])
    assert store.load_versions() == SqliteStore(tmp_path / "s.db").load_versions()
    assert store.load_versions() == [FIRST, SECOND]


def test_what_another_process_saves_is_seen(tmp_path: Path) -> None:
    store, other = SqliteStore(tmp_path / "s.db"), SqliteStore(tmp_path / "s.db")
    store.save_versions([FIRST])
    assert other.load_versions() == [FIRST]
    store.save_versions([SECOND])
    assert other.load_versions() == [FIRST, SECOND]
    other.save_versions([SECOND._replace(version=3)])
    assert len(store.load_versions()) == 3
