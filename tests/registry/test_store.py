"""Stores: what is saved comes back, and what is broken is said."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

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
    store.save_source("shop.orders", 40)
    for version in (SECOND, FIRST):
        store.save_version(version)
    assert store.load_sources() == {"shop.orders": 40}
    assert store.load_versions() == [FIRST, SECOND]


def test_an_sqlite_store_never_replaces_a_version(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "s.db")
    store.save_version(FIRST)
    with pytest.raises(SchemaError, match=r"s\.db: UNIQUE"):
        store.save_version(FIRST._replace(text=ORDERS_2))
    assert store.load_versions() == [FIRST]


def test_an_sqlite_store_never_gives_one_id_to_two_sources(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "s.db")
    store.save_source("a", 1)
    with pytest.raises(SchemaError, match="UNIQUE"):
        store.save_source("b", 1)
    assert store.load_sources() == {"a": 1}


def test_a_version_is_on_disk_when_it_is_saved(tmp_path: Path) -> None:
    SqliteStore(tmp_path / "s.db").save_version(FIRST)
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
        FileStore(tmp_path).save_version(FIRST)
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
