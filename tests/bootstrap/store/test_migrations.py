"""Stores of earlier versions: of other CRCs, other ids of schemas, and other packs."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from hashlib import md5
from pathlib import Path
from unittest.mock import patch

import pytest

from databus.bootstrap.packs.packer import Packer
from databus.bootstrap.store import migrations
from databus.bootstrap.store.check import check_store
from databus.bootstrap.store.store import Store
from databus.schemas.errors import BootstrapError, StoreDamagedError
from databus.schemas.event.v2 import decode
from tests.bootstrap.filled import PERSON, FilledStore, make_filled, put, unpack, unprove
from tests.bootstrap.packs.reading import FEW, MOST_BYTES, read_table
from tests.registry.former_texts import former_text
from tests.schemas.event.former import former_v2

ALL = {
    "snapshot_1": "select id, key, scn, event from snapshot_1 order by id",
    "log_1": "select id, key, scn, event from log_1 order by id",
    "schema_versions": "select src_id, version, digest, text from schema_versions",
    "store": "select scn, timestamp_ns from store",
}


MAKE_FORMER = """
update schema_versions set text = ?, digest = ? where src_id = ? and version = ?
"""


def content(path: Path) -> dict[str, list[object]]:
    with closing(sqlite3.connect(path)) as database:
        return {name: database.execute(sql).fetchall() for name, sql in ALL.items()}


def make_former(path: Path) -> None:
    """Turn a store into what an earlier version wrote."""
    with closing(sqlite3.connect(path)) as database, database:
        rows = database.execute("select src_id, version, digest, text from schema_versions")
        ids = {}
        for src_id, version, digest, text in rows.fetchall():
            former = former_text(text)
            ids[digest] = md5(former.encode()).digest()
            change = (
                "update schema_versions set text = ?, digest = ? where src_id = ? and version = ?"
            )
            database.execute(change, (former, ids[digest], src_id, version))
        database.create_function("former", 1, lambda event: _former_event(event, ids))
        for table in ("snapshot_1", "log_1", "snapshot_2", "log_2"):
            database.execute(f"update {table} set event = former(event)")
        unpack(database)
        database.execute("alter table store drop column term")
        database.execute("pragma user_version = 4")


def _former_event(data: bytes, ids: Mapping[bytes, bytes]) -> bytes:
    event, _ = decode(data)
    if event.payload is not None:
        digest = ids[event.payload.digest]
        event = event._replace(payload=event.payload._replace(digest=digest))
    return former_v2(event)


@pytest.fixture
def former(tmp_path: Path) -> tuple[Path, dict[str, list[object]]]:
    """A store of an earlier version, and what it is to hold now."""
    filled = FilledStore(tmp_path / "shop.db")
    try:
        filled.seed_rows("shop.person", range(50))
        filled.apply(110, *(put(1, key, 110) for key in range(40, 90)))
    finally:
        filled.close()
    now = content(filled.path)
    make_former(filled.path)
    assert content(filled.path) != now
    return filled.path, now


@pytest.mark.parametrize("at_a_time", [1, 7, 20_000])
def test_every_event_is_brought_up_to_date(
    former: tuple[Path, dict[str, list[object]]], at_a_time: int
) -> None:
    path, now = former
    with pytest.raises(BootstrapError, match="the producer brings it up to date"):
        Store.open(path, is_read_only=True)
    with patch.object(migrations, "_AT_A_TIME", at_a_time):
        Store.open(path).close()
    assert content(path) == now
    list(check_store(path))


def test_schemas_and_their_ids_become_those_of_now(
    former: tuple[Path, dict[str, list[object]]],
) -> None:
    path, now = former
    assert content(path)["schema_versions"] != now["schema_versions"]
    Store.open(path).close()
    found = content(path)
    assert found["schema_versions"] == now["schema_versions"]
    assert found["log_1"] == now["log_1"]


def test_texts_that_an_earlier_relay_sends_are_those_that_are_known(
    former: tuple[Path, dict[str, list[object]]],
) -> None:
    path, _ = former
    with closing(Store.open(path)) as store:
        known = store.schemas([1])
        store.add_schemas(1, [(version, former_text(text)) for _, version, text in known])
        assert store.schemas([1]) == known


def test_a_migration_that_is_cut_short_leaves_the_store_as_it_was(
    former: tuple[Path, dict[str, list[object]]],
) -> None:
    path, now = former
    before = content(path)
    with (
        patch.object(migrations._Restamping, "_report", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        Store.open(path)
    assert content(path) == before
    Store.open(path).close()
    assert content(path) == now


def test_a_damaged_event_stays_damaged_and_is_told(
    former: tuple[Path, dict[str, list[object]]], caplog: pytest.LogCaptureFixture
) -> None:
    path, now = former
    with closing(sqlite3.connect(path)) as database, database:
        (event,) = database.execute("select event from snapshot_1 where key = 7").fetchone()
        damaged = event[:-1] + bytes([event[-1] ^ 1])
        database.execute("update snapshot_1 set event = ? where key = 7", (damaged,))
    with caplog.at_level(logging.WARNING):
        Store.open(path).close()
        assert "1 of 140 stored events are damaged" in caplog.text
        with pytest.raises(StoreDamagedError, match="header CRC does not match"):
            list(check_store(path))
    found = content(path)
    assert len(set(map(str, found["snapshot_1"])) - set(map(str, now["snapshot_1"]))) == 1


def test_progress_is_told(
    former: tuple[Path, dict[str, list[object]]],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(migrations, "_REPORT_S", 0.0)
    with caplog.at_level(logging.INFO):
        Store.open(former[0]).close()
    assert "stored events have new CRCs; now table snapshot_1" in caplog.text
    assert "shop.db is brought up to date" in caplog.text


def test_packs_of_an_earlier_version_are_made_anew(tmp_path: Path) -> None:
    with closing(make_filled(tmp_path / "shop.db", 450)) as made:
        packer = Packer(made.store, MOST_BYTES, FEW)
        while packer.step():
            pass
        execute = made.store.file.connection.execute
        assert execute("select count(*) from packs").fetchone() == (4,)
    with closing(sqlite3.connect(made.path)) as database, database:
        unprove(database)
        database.execute("update packs set head = 'another format'")
        database.execute("pragma user_version = 7")
    with closing(Store.open(made.path)) as store:
        assert store.sizes().packed_bytes == 0
        packer = Packer(store, MOST_BYTES, FEW)
        while packer.step():
            pass
        assert read_table(store, PERSON.source, 101, takes_packs=True).packed == 400
    list(check_store(made.path))
