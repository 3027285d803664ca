"""Stores whose file is not what was written: found before anything of it is served."""

from __future__ import annotations

import random
import re
import sqlite3
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from databus.bootstrap.server.reader_pool import OpenStores, Work
from databus.bootstrap.store import reads as store_reading, watch as store_watch
from databus.bootstrap.store.check import check_store
from databus.bootstrap.store.migrations import APPLICATION_ID, MIGRATIONS
from databus.bootstrap.store.store import Store
from databus.bootstrap.store.watch import StoreWatch, file_at
from databus.schemas.errors import BootstrapError, BootstrapTooOldError, StoreDamagedError
from databus.schemas.table_change import TableChange, shape_id, with_change
from tests.bootstrap.filled import (
    ORDERS,
    PERSON,
    TEXTS,
    FilledStore,
    emptied,
    gone,
    make_filled,
    put,
)
from tests.bootstrap.serving import ServedStore
from tests.bootstrap.walking import catch_up_at, snapshot_at
from tests.relay.fakes import wait_until

FLIPS = 60


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with rows, tombstones, a truncated table and byte keys, all in its main file."""
    path = tmp_path / "shop.db"
    filled = make_filled(path, persons=200)
    filled.apply(102, put(1, 7, 102), gone(1, 8, 102), put(2, 3, 102))
    filled.apply(103, put(1, b"\xff\x00 key", 103), put(1, b"12", 103))
    filled.apply(104, emptied(2, 104))
    filled.apply(105, put(2, 9, 105))
    filled.close()
    return path


def check(path: Path) -> None:
    deque(check_store(path), maxlen=0)


def all_of(path: Path) -> list[Any]:
    """Return all that is in a store, but when things were noted."""
    with closing(sqlite3.connect(path)) as database:
        names = "select name from sqlite_master where type = 'table' order by 1"
        tables = [row[0] for row in database.execute(names)]
        found: list[Any] = []
        for table in tables:
            if table.startswith("sqlite_") or table.endswith(("_scn", "_place", "_deleted")):
                continue
            cursor = database.execute(f"select * from {table} order by 1, 2")
            columns = [column[0] for column in cursor.description]
            found += [
                [
                    v
                    for name, v in zip(columns, row, strict=True)
                    if name not in ("at_ns", "deleted_ns")
                ]
                for row in cursor
            ]
    return found


def test_a_store_as_it_was_written_is_sound(path: Path) -> None:
    check(path)


def test_no_flipped_bit_changes_a_store_unnoticed(path: Path) -> None:
    chosen = random.Random(3)
    whole, expected = path.read_bytes(), all_of(path)
    refused = 0
    anywhere = [(chosen.randrange(len(whole)), 1 << chosen.randrange(8)) for _ in range(FLIPS)]
    # SQLite quotes the names of what it stumbles over: here they are no UTF-8.
    names = [(found.start() + 6, 0x80) for found in re.finditer(b"table(?=[a-z])", whole)]
    for at, bit in anywhere + names:
        damaged = bytearray(whole)
        damaged[at] ^= bit
        path.write_bytes(damaged)
        try:
            check(path)
            assert all_of(path) == expected
        except BootstrapError as error:
            refused += str(path) in str(error)
    assert refused > 0


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("update store set scn = 104", "the producer's position"),
        ("update store set log_scn = 104", "the producer's position"),
        ("update sources set floor_scn = 1 where src_id = 2", "state of source shop.orders"),
        ("update sources set log_bytes = log_bytes + 1 where src_id = 1", "not all there"),
        ("update snapshot_1 set number = 77 where id = 3", "row 3 of snapshot_1"),
        ("update snapshot_1 set scn = 99 where id = 3", "its event is of scn 100"),
        ("update snapshot_1 set key = 777, number = 777 where id = 3", "its event is of key"),
        ("update log_1 set event = x'00' where id = 1", "row 1 of log_1"),
        ("update log_1 set event = cast(event as text) where id = 1", "decode.*is damaged"),
        ("delete from log_1 where id = 2", "not all there"),
        ("update schema_versions set text = replace(text, 'long', 'int')", "another digest"),
    ],
)
def test_what_sqlite_takes_for_sound_is_found_by_what_it_says(
    path: Path, statement: str, what: str
) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(statement)
    with pytest.raises(StoreDamagedError, match=what) as caught:
        check(path)
    assert str(path) in str(caught.value)
    assert "seeded again" in str(caught.value)


def test_a_damaged_state_is_not_changed_into_one_that_looks_well(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("update sources set status = 'active', floor_scn = 1 where src_id = 2")
    store = Store.open(path)
    try:
        with pytest.raises(BootstrapError, match=r"state of source shop\.orders"):
            store.set_problem("shop.person", "x")
        with pytest.raises(BootstrapError, match=r"state of source shop\.orders"):
            store.reset_source("shop.orders")
    finally:
        store.close()


def test_a_damaged_state_is_not_made_to_look_well_by_a_window_that_alters_another_source(
    path: Path,
) -> None:
    altered = with_change(TEXTS[1], TableChange.unknown(110, shape_id(TEXTS[1])))
    with closing(Store.open(path)) as store:
        store.add_schemas(1, [(2, altered)])
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("update sources set floor_scn = 1 where src_id = 2")
        store.apply_window(110, 110, [])
        assert store.source(PERSON.source).status == "new"
        with pytest.raises(BootstrapError, match=r"state of source shop\.orders"):
            store.source(ORDERS.source)
    with pytest.raises(BootstrapError, match=r"state of source shop\.orders"):
        check(path)


def test_a_store_of_before_there_were_checksums_gets_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "old.db"
    with closing(sqlite3.connect(path)) as database, database:
        for migration in MIGRATIONS[:2]:
            assert isinstance(migration, str)
            database.executescript(migration)
        database.execute("insert into sources (name, src_id, status) values ('a.b', 7, 'new')")
        database.execute("update store set scn = 55")
        database.execute(f"pragma application_id = {APPLICATION_ID}")
        database.execute("pragma user_version = 2")
    with caplog.at_level("INFO"):
        store = Store.open(path)
    assert "old.db is brought up to date" in caplog.text
    try:
        assert store.position().scn == 55
        assert [state.name for state in store.sources()] == ["a.b"]
    finally:
        store.close()


def test_a_store_that_has_no_index_of_its_changes_yet_passes_them_all_the_same(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("drop index schema_versions_change_scn")
    with closing(Store.open(path)) as store:
        altered = with_change(TEXTS[1], TableChange.unknown(110, shape_id(TEXTS[1])))
        store.add_schemas(1, [(2, altered)])
        store.apply_window(110, 110, [])
        assert store.source(PERSON.source).status == "new"
    check(path)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedStore]:
    made = ServedStore(tmp_path, persons=300)
    yield made
    made.close()


def damage(path: Path) -> None:
    """Change a byte of a row's event in the file, and leave nothing of it in a WAL."""
    with closing(sqlite3.connect(path)) as database:
        database.execute("pragma wal_checkpoint(truncate)")
    data = bytearray(path.read_bytes())
    data[data.rindex(b"old")] ^= 1
    path.write_bytes(data)


def test_nothing_of_a_small_store_is_served_before_it_was_checked(tmp_path: Path) -> None:
    make_filled(tmp_path / "pair" / "shop.db", 300).close()
    path = tmp_path / "pair" / "shop.db"
    damage(path)
    watch = StoreWatch({"shop": path})
    found = file_at(path)
    assert found is not None
    with pytest.raises(BootstrapError, match=r"row \d+ of snapshot_\d.*seeded again"):
        watch.admit("shop", *found)
    assert str(path) in watch.problem("shop")


def test_what_the_slow_look_finds_is_told_by_health_and_not_served(
    served: ServedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = served.pair.paths["shop"]
    assert served.get("/targetSCN", source=PERSON.source).status == 200
    damage(path)
    served.pair.store_watch.watched["shop"].is_checked = False  # as if it were time again
    monkeypatch.setattr(store_watch, "LOOK_S", 0.01)
    wait_until(lambda: str(path) in served.get("/health").body.decode())
    health = served.get("/health")
    assert health.status == 503
    assert str(path) in health.body.decode()
    answer = served.get("/targetSCN", source=ORDERS.source)
    assert answer.status == 500
    assert str(path) in answer.body.decode()
    metrics = served.get("/metrics").body.decode()
    assert "databus_bootstrap_store_checked_bytes" in metrics


PAGES = {
    "a snapshot in one piece": {"checkPoint": snapshot_at(PERSON.source, 102).to_json()},
    "a snapshot row by row": {
        "checkPoint": snapshot_at(PERSON.source, 102).to_json(),
        "output": "json",
    },
    "a catch-up in one piece": {"checkPoint": catch_up_at(101, 102).to_json()},
    "a catch-up row by row": {"checkPoint": catch_up_at(101, 102).to_json(), "output": "json"},
}


@pytest.mark.parametrize(
    "change",
    [
        "event = cast(substr(event, 1, {at}) || x'00' || substr(event, {at} + 2) as blob)",
        "event = substr(event, 1, {at})",
        "event = x''",
        "event = cast(substr(event, 1, 5) as text)",
    ],
)
@pytest.mark.parametrize("page", PAGES)
def test_an_event_that_was_damaged_while_it_is_served_is_never_sent_and_health_says_it_at_once(
    served: ServedStore, page: str, change: str
) -> None:
    served.filled.apply(102, *(put(1, key, 102) for key in range(1, 6)))
    asked = PAGES[page] | {"batchSize": 1_000_000}
    assert served.page(**asked).status == 200
    with closing(sqlite3.connect(served.pair.paths["shop"])) as database, database:
        for table in ("snapshot_1", "log_1"):
            database.execute(
                f"update {table} set {change.format(at=60)} "
                f"where id = (select max(id) from {table} where scn = 102)"
            )
    answer = served.page(**asked)
    assert answer.status == 500
    cause = "com.linkedin.databus.bootstrap.api.BootstrapProcessingException"
    assert answer.headers["x-dbus-error-cause"] == cause
    assert re.search(r"shop\.db.*is damaged.*all is seeded again", answer.body.decode())
    health = served.get("/health")
    assert health.status == 503
    assert "is damaged" in health.body.decode()


def test_a_reader_that_comes_upon_what_nobody_expected_has_the_store_looked_at(
    served: ServedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert served.get("/targetSCN", source=PERSON.source).status == 200
    monkeypatch.setattr(store_watch, "LOOK_S", 0.01)
    wait_until(lambda: served.pair.store_watch.watched["shop"].is_checked)
    with closing(sqlite3.connect(served.pair.paths["shop"])) as database, database:
        database.execute("update log_1 set scn = 'far' where id = 1")
    assert served.pair.store_watch.problem("shop") == ""

    def fail(stores: Any) -> None:
        raise TypeError(stores)

    with pytest.raises(TypeError):
        served.pair.readers.run(fail).result()
    wait_until(lambda: served.get("/health").status == 503)


def test_what_keeps_a_store_from_being_checked_is_told_until_it_passes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locked(store: Path) -> Iterator[int]:
        raise BootstrapError(f"store {store}: checking failed: database is locked")

    watch, found = StoreWatch({"shop": path}), file_at(path)
    assert found is not None
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(store_watch, "check_store", locked)
        with pytest.raises(BootstrapTooOldError, match="database is locked; ask again later"):
            watch.admit("shop", *found)
    assert "database is locked" in watch.problem("shop")
    watch.admit("shop", *found)
    assert watch.problem("shop") == ""


def test_a_large_store_is_not_served_before_it_was_looked_at(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_watch, "SMALL_BYTES", 0)
    watch, found = StoreWatch({"shop": path}), file_at(path)
    assert found is not None
    with pytest.raises(BootstrapTooOldError, match="ask again later"):
        watch.admit("shop", *found)
    watch.start()
    try:
        wait_until(lambda: watch.watched["shop"].is_checked)
        watch.admit("shop", *found)
    finally:
        watch.stop()


def test_a_large_store_that_is_damaged_is_never_served(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_watch, "SMALL_BYTES", 0)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("update snapshot_1 set number = 77 where id = 3")
    watch, found = StoreWatch({"shop": path}), file_at(path)
    assert found is not None
    watch.start()
    try:
        wait_until(lambda: watch.problem("shop") != "")
        with pytest.raises(BootstrapError, match="row 3 of snapshot_1"):
            watch.admit("shop", *found)
    finally:
        watch.stop()


def test_a_read_that_was_given_up_is_no_damage_whatever_source_and_folder_are_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_reading, "STEPS_BETWEEN_LOOKS", 1)
    path = tmp_path / "damaged" / "not a database" / "shop.db"
    with closing(FilledStore(path, {"shop.malformed": 1})) as filled:
        filled.seed_rows("shop.malformed", range(9))
    watch = StoreWatch({"shop": path})
    with closing(OpenStores({"shop": path}, watch)) as stores:
        store = stores.look().open["shop"]
        stores.work = Work()
        stores.work.cancel()
        with pytest.raises(BootstrapError, match=r"of shop\.malformed.*interrupted") as caught:
            store.max_row("shop.malformed")
        stores.note(caught.value)
    assert watch.problem("shop") == ""


def test_what_a_reader_comes_upon_is_remembered_as_damage(path: Path) -> None:
    watch = StoreWatch({"shop": path})
    with closing(OpenStores({"shop": path}, watch)) as stores:
        store = stores.look().open["shop"]
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("update store set scn = 104")
        with pytest.raises(StoreDamagedError, match="the producer's position") as caught:
            store.position()
        stores.note(caught.value)
        assert watch.problem("shop") == str(caught.value)
        assert str(stores.look().problems["shop"]) == str(caught.value)
