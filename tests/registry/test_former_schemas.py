"""Schemas that earlier versions wrote, and their ids, in the form of now."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from databus.registry.former_schemas import former_schema_id, ids_of_now, rewritten
from databus.registry.registry import SchemaRegistry
from databus.registry.store import FileStore, LayeredStore, MemoryStore, SqliteStore
from databus.registry.version import StoredVersion
from databus.schemas.avro_rows import schema_id
from databus.schemas.errors import SchemaError
from databus.schemas.table import Column, Table
from databus.schemas.table_change import TableChange, change_of, shape_id, step, with_change
from databus.schemas.table_schema import avro_schema
from tests.registry.former_texts import former_shape, former_text
from tests.schemas import avro_java
from tests.schemas.table_schemas import table_schemas

# The schemas of the 200 tables as the last version before wrote them.
FORMER = [
    json.loads(line)
    for line in (Path(avro_java.HERE) / "former_tables.jsonl").read_text("utf-8").splitlines()
]
# Written by hand, or by LinkedIn's relay: nothing of them is ours.
FOREIGN = [
    *(answer.text for answer in avro_java.read(avro_java.RECORDED)),
    '{"type":"record","name":"R","fields":[{"name":"f","type":"int"}]}',
    '{"type":"record","name":"R","fields":[{"name":"f","type":"int","meta":{"owner":"me"}}],'
    '"meta":{"source":"R"}}',
    '{"type":"record","name":"R","fields":[],"meta":"source=R;owner=me;"}',
    "not a schema",
]


def test_former_texts_become_those_that_are_made_now() -> None:
    assert rewritten(FORMER) == table_schemas()


def test_texts_of_now_are_left_alone() -> None:
    assert rewritten(table_schemas()) == table_schemas()


def test_texts_that_are_not_ours_are_left_alone() -> None:
    assert rewritten(FOREIGN) == FOREIGN


def test_the_earlier_ids_follow_from_the_texts_of_now() -> None:
    ids = ids_of_now(rewritten(FORMER))
    for earlier, now in zip(FORMER, table_schemas(), strict=True):
        assert ids[former_schema_id(earlier)] == schema_id(now)


def test_the_earlier_id_of_a_foreign_text_is_that_of_itself() -> None:
    ids = ids_of_now(FOREIGN)
    for text in FOREIGN:
        assert ids.get(former_schema_id(text), former_schema_id(text)) == schema_id(text)


@pytest.mark.parametrize("count", [2, 3])
def test_a_chain_of_changes_is_whole_after_renewal(count: int) -> None:
    """A version names the one before by its id, which is another one now."""
    earlier, now = _history(count)
    renewed_texts = rewritten(earlier)
    assert renewed_texts == now
    for before, after in pairwise(renewed_texts):
        assert not step(before, after).needs_reload
    ids = ids_of_now(renewed_texts)
    assert [ids[former_schema_id(text)] for text in earlier] == [schema_id(text) for text in now]


def test_a_change_of_a_version_that_is_not_there_keeps_its_id() -> None:
    earlier, now = _history(2)
    change = change_of(rewritten(earlier[1:])[0])
    assert change is not None
    assert change.before == former_schema_id(earlier[0]).hex() != shape_id(now[0])
    assert ids_of_now(rewritten(earlier[1:]))[former_schema_id(earlier[1])]


def _history(count: int) -> tuple[list[str], list[str]]:
    """Return versions of a table that columns are added to, of then and of now."""
    earlier: list[str] = []
    now: list[str] = []
    for number in range(count):
        columns = [
            Column(f"c{n}", "decimal(5,2)", n, key_position=0 if n == 0 else None)
            for n in range(number + 1)
        ]
        text = avro_schema(Table("shop.t", tuple(columns)))
        was = former_text(text, None)
        if number:
            change = TableChange(100 + number, shape_id(now[-1]), added={f"c{number}": None})
            text = with_change(text, change)
            was = former_text(text, former_shape(earlier[-1]))
        earlier.append(was)
        now.append(text)
    return earlier, now


def _former_store(path: Path, *, changes: str = "") -> SqliteStore:
    """Return a store as a former version left it; `changes` is SQL to run on both files."""
    store = SqliteStore(path)
    former, _ = _history(3)
    store.save_sources({"shop.t": 7})
    for number, text in enumerate(former, 1):
        store.save_versions([StoredVersion("shop.t", number, text, number - 1)])
    for file in (path, store.copy_path):
        with closing(sqlite3.connect(file)) as database, database:
            database.executescript(f"pragma user_version = 1; {changes}")
    return store


def test_a_store_of_a_former_version_is_rewritten_when_it_is_opened(tmp_path: Path) -> None:
    store = _former_store(tmp_path / "schemas.db")
    _, now = _history(3)
    registry = SchemaRegistry(store)
    assert [(v.version, v.text) for v in registry.versions("shop.t")] == [*enumerate(now, 1)]
    assert registry.sources() == {"shop.t": 7}
    for file in (store.path, store.copy_path):
        with closing(sqlite3.connect(file)) as database:
            assert database.execute("pragma user_version").fetchone() == (2,)
            rows = database.execute("select text from schema_versions order by version")
            assert [text for (text,) in rows] == now
    assert [v.text for v in SqliteStore(store.path).load_versions()] == now


def test_a_table_has_the_version_that_it_had_before_the_upgrade(tmp_path: Path) -> None:
    registry = SchemaRegistry(_former_store(tmp_path / "schemas.db"))
    _, now = _history(3)
    assert registry.register("shop.t", now[-1], 9).version == 3


def test_a_kill_between_the_file_and_its_copy_ends_in_two_equal_files(tmp_path: Path) -> None:
    store = _former_store(tmp_path / "schemas.db")
    former_copy = store.copy_path.read_bytes()
    _, now = _history(3)
    store.load_versions()
    store.copy_path.write_bytes(former_copy)
    assert [v.text for v in store.load_versions()] == now
    store.path.unlink()
    assert [v.text for v in store.load_versions()] == now


def test_a_damaged_store_of_a_former_version_is_not_rewritten(tmp_path: Path) -> None:
    damage = "update schema_versions set start_scn = 8 where version = 3"
    store = _former_store(tmp_path / "schemas.db", changes=damage)
    with pytest.raises(SchemaError, match="not as it was written"):
        store.load_versions()
    with closing(sqlite3.connect(store.path)) as database:
        assert database.execute("pragma user_version").fetchone() == (1,)


def test_a_copy_of_a_generated_schema_in_a_folder_stays_equal_to_it(tmp_path: Path) -> None:
    former, now = _history(1)
    (tmp_path / "shop.t.1.avsc").write_text(former[0], encoding="utf-8")
    generated = MemoryStore([StoredVersion("shop.t", 1, now[0], 0)])
    layered = LayeredStore(FileStore(tmp_path), generated)
    assert [version.text for version in layered.load_versions()] == now
