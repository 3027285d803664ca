"""Stores of an earlier version, whose events had zlib's CRCs and whose schemas had other ids."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from pathlib import Path
from unittest.mock import patch

import pytest

from databus.bootstrap.store import migrations
from databus.bootstrap.store.check import check_store
from databus.bootstrap.store.migrations import MIGRATIONS
from databus.bootstrap.store.store import Store
from databus.schemas.errors import BootstrapError, StoreDamagedError
from tests.bootstrap.filled import FilledStore, put
from tests.schemas.event.former import former_v2

ALL = {
    "snapshot_1": "select id, key, scn, event from snapshot_1 order by id",
    "log_1": "select id, key, scn, event from log_1 order by id",
    "schema_versions": "select src_id, version, digest, text from schema_versions",
    "store": "select scn, timestamp_ns from store",
}


def content(path: Path) -> dict[str, list[object]]:
    with closing(sqlite3.connect(path)) as database:
        return {name: database.execute(sql).fetchall() for name, sql in ALL.items()}


def make_former(path: Path) -> None:
    """Turn a store into what an earlier version wrote."""
    with closing(sqlite3.connect(path)) as database, database:
        database.create_function("former", 1, former_v2)
        for table in ("snapshot_1", "log_1", "snapshot_2", "log_2"):
            database.execute(f"update {table} set event = former(event)")
        database.execute(f"pragma user_version = {len(MIGRATIONS) - 1}")


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
    with pytest.raises(BootstrapError, match="start the producer once"):
        Store.open(path, is_read_only=True)
    with patch.object(migrations, "_AT_A_TIME", at_a_time):
        Store.open(path).close()
    assert content(path) == now
    list(check_store(path))


def test_ids_of_schemas_become_those_of_now(
    former: tuple[Path, dict[str, list[object]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, now = former
    monkeypatch.setattr("databus.schemas.former_ids.schema_id", lambda text: text[:16].encode())
    Store.open(path).close()
    found = content(path)
    assert (
        {digest for _, _, digest, _ in found["schema_versions"]}
        == {  # type: ignore[misc]
            text[:16].encode()
            for *_, text in now["schema_versions"]  # type: ignore[misc]
        }
    )


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
