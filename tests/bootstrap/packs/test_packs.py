"""Packs: which rows come in them, of which types, how much room they take, and when they end."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from databus.bootstrap.packs import thread as thread_module
from databus.bootstrap.packs.building import PackBuilder, PackSizes
from databus.bootstrap.packs.packer import Packer
from databus.bootstrap.packs.thread import PackingThread
from databus.bootstrap.store.retention import Retention
from databus.bootstrap.store.store import Store
from databus.bootstrap.store.values import StoredEvent
from databus.schemas.errors import BootstrapError, StoreDamagedError
from databus.schemas.event.v2 import encode
from tests.bootstrap.filled import PERSON, FilledStore, gone, make_filled, put, stored
from tests.bootstrap.packs.reading import MOST_BYTES, read_table
from tests.bootstrap.serving import pair_settings
from tests.bootstrap.store.test_retention import HOUR_S, NS, settings_of
from tests.client.spark.arrow.made_events import EXTREMES, SOURCE, row_event, version
from tests.promises.running import wait_until

PERSONS = 2000
SIZES = PackSizes(most_rows=300, fewest_rows=50, fewest_noted=10)
IN_PACKS = 1800  # of the rows: the last ones do not fill a pack


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[FilledStore]:
    with closing(make_filled(tmp_path / "shop.db", PERSONS)) as made:
        yield made


def pack(store: Store, most_bytes: int = MOST_BYTES, sizes: PackSizes = SIZES) -> None:
    packer = Packer(store, most_bytes, sizes)
    while packer.step():
        pass


def packed_rows(store: Store, scn: int = 101) -> int:
    """Compare both ways to read persons; return how many rows come in packs."""
    found = read_table(store, PERSON.source, scn, takes_packs=True)
    assert found.rows == read_table(store, PERSON.source, scn, takes_packs=False).rows
    return found.packed


def held_bytes(store: Store) -> int:
    execute = store.file.connection.execute
    return int(
        execute("select coalesce(sum(length(data) + length(ids)), 0) from pack_columns").fetchone()[
            0
        ]
    )


def test_most_rows_come_in_packs_once_they_are_packed(filled: FilledStore) -> None:
    assert packed_rows(filled.store) == 0
    pack(filled.store)
    assert packed_rows(filled.store) == IN_PACKS
    assert filled.store.sizes().packed_bytes == held_bytes(filled.store)
    for part in ((0, 1), (17, 500), (299, 301), (300, 600), (1000, 5000)):
        read = [
            read_table(
                filled.store,
                PERSON.source,
                101,
                takes_packs=takes_packs,
                after_row=part[0],
                until_row=part[1],
            )
            for takes_packs in (True, False)
        ]
        assert read[0].rows == read[1].rows


def test_a_page_has_as_many_packs_as_it_has_room_for_and_no_more_than_four(
    filled: FilledStore,
) -> None:
    pack(filled.store)
    filled.apply(102, put(1, 5, 102), put(1, 305, 102))
    least_bytes = held_bytes(filled.store) // 6 + 1000
    by_rows = read_table(filled.store, PERSON.source, 102, takes_packs=False).rows
    for page_bytes, pages in ((1 << 22, [4, 2, 0]), (least_bytes, [1] * 6 + [0])):
        read = read_table(filled.store, PERSON.source, 102, takes_packs=True, page_bytes=page_bytes)
        assert (read.rows, read.packed) == (by_rows, IN_PACKS - 2)
        assert [number for number in read.pages if number] == [number for number in pages if number]


def test_a_row_that_has_changed_since_comes_as_it_is_and_a_deleted_one_not_at_all(
    filled: FilledStore,
) -> None:
    pack(filled.store)
    filled.apply(102, put(1, 5, 102), gone(1, 6, 102), put(1, 5000, 102))
    assert packed_rows(filled.store, 102) == IN_PACKS - 2
    # As of before, both rows come from the log.
    assert packed_rows(filled.store, 101) == IN_PACKS - 2
    filled.apply(103, *(put(1, key, 103) for key in range(1, 2000, 50)))
    pack(filled.store)
    filled.apply(104, put(1, 7, 104))
    assert packed_rows(filled.store, 104) == IN_PACKS - 39
    filled.apply(105, *(put(1, key, 105) for key in range(1, 301)))
    assert packed_rows(filled.store, 105) == IN_PACKS - 300 - 30
    pack(filled.store)
    assert packed_rows(filled.store, 105) == IN_PACKS - 30


def test_a_row_whose_deletion_is_forgotten_before_the_packer_sees_it_does_not_come_back(
    tmp_path: Path,
) -> None:
    with closing(make_filled(tmp_path / "shop.db", PERSONS)) as made:
        pack(made.store)
        made.apply(102, gone(1, 6, 102))
        settings = settings_of(deleted_retention_s=1.0 * HOUR_S)
        retention = Retention(made.store, settings, lambda: time.time_ns() + 2 * HOUR_S * NS)
        while retention.step():
            pass
        assert made.store.source(PERSON.source).tombstone_floor_scn == 102
        assert packed_rows(made.store, 102) == 0
        pack(made.store)
        assert packed_rows(made.store, 102) == IN_PACKS


def test_values_of_every_type_are_the_same_from_a_pack(tmp_path: Path) -> None:
    for dialect in {dialect for dialect, *_ in EXTREMES}:
        columns = {
            f"c{n}": (sql_type, values)
            for n, (of, sql_type, values) in enumerate(EXTREMES)
            if of == dialect
        }
        schema = version(
            1, {"id": "int"} | {name: of for name, (of, _) in columns.items()}, dialect=dialect
        )
        with closing(Store.open(tmp_path / f"{dialect}.db")) as store:
            store.add_sources({SOURCE: schema.src_id})
            store.add_schemas(schema.src_id, [(1, schema.text)])
            store.begin_log(4)
            events = []
            for key in range(1, 60):
                row = {
                    name: None if key % 7 == 0 else values[key % len(values)]
                    for name, (_, values) in columns.items()
                }
                event = encode(row_event(schema, {"id": key} | row, key=key))
                events.append(StoredEvent(5, key, False, event))
            store.begin_seeding(SOURCE, 5, 1)
            store.merge_chunk(SOURCE, events, None)
            store.end_seeding(SOURCE, 5)
            store.apply_window(6, 6, [])
            store.activate_caught_up()
            pack(store, sizes=PackSizes(most_rows=20, fewest_rows=1))
            read = [read_table(store, SOURCE, 6, takes_packs=packs) for packs in (True, False)]
            assert read[0].rows == read[1].rows
            assert read[0].packed > 30, dialect


def test_packs_keep_to_their_room_and_are_deleted_when_none_is_left(filled: FilledStore) -> None:
    pack(filled.store)
    all_bytes = held_bytes(filled.store)
    pack(filled.store, most_bytes=0)
    assert held_bytes(filled.store) == 0
    assert packed_rows(filled.store) == 0
    pack(filled.store, most_bytes=all_bytes // 2)
    assert 0 < held_bytes(filled.store) <= all_bytes // 2
    assert 0 < packed_rows(filled.store) < IN_PACKS


def test_packs_are_deleted_when_there_are_more_than_may_be(filled: FilledStore) -> None:
    pack(filled.store)
    all_bytes = held_bytes(filled.store)
    pack(filled.store, most_bytes=all_bytes // 2)
    assert held_bytes(filled.store) <= all_bytes // 2
    packed_rows(filled.store)
    pack(filled.store)
    assert held_bytes(filled.store) == all_bytes
    assert packed_rows(filled.store) == IN_PACKS


def test_no_pack_is_made_in_vain_when_there_is_no_room(
    filled: FilledStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, built = PackBuilder.build, []

    def noted(self: PackBuilder, *arguments: Any) -> Any:
        built.append(arguments)
        return build(self, *arguments)

    monkeypatch.setattr(PackBuilder, "build", noted)
    packer = Packer(filled.store, 1, SIZES)
    while packer.step():
        pass
    filled.apply(102, *(put(1, key, 102) for key in range(PERSONS, PERSONS + 500)))
    while packer.step():
        pass
    assert len(built) == 1
    assert held_bytes(filled.store) == 0


def test_a_page_that_has_no_room_for_a_pack_does_not_read_it(filled: FilledStore) -> None:
    pack(filled.store)
    too_few = held_bytes(filled.store) // 6
    statements: list[str] = []
    filled.store.file.connection.set_trace_callback(statements.append)
    read = read_table(filled.store, PERSON.source, 101, takes_packs=True, page_bytes=too_few)
    filled.store.file.connection.set_trace_callback(None)
    assert (len(read.rows), read.packed) == (PERSONS, 0)
    assert any("from packs" in statement for statement in statements)
    assert not [statement for statement in statements if "pack_columns" in statement]


def test_rows_behind_some_that_are_not_worth_a_pack_are_packed(tmp_path: Path) -> None:
    sizes = replace(SIZES, most_event_bytes=40_000)
    with closing(FilledStore(tmp_path / "shop.db")) as made:
        rows = [stored(1, key, 100, "x" * (5000 if key < 90 else 5)) for key in range(1, 900)]
        made.seed(PERSON.source, rows)
        made.apply(101)
        pack(made.store, sizes=sizes)
        assert packed_rows(made.store) >= 500


def test_a_pack_of_many_small_numbers_has_room_in_a_page(tmp_path: Path) -> None:
    """As columns they take more room than as events."""
    schema = version(1, {"id": "int"} | {f"c{n}": "bigint" for n in range(60)})
    with closing(Store.open(tmp_path / "shop.db")) as store:
        store.add_sources({SOURCE: schema.src_id})
        store.add_schemas(schema.src_id, [(1, schema.text)])
        store.begin_log(4)
        row = {f"c{n}": n for n in range(60)}
        events = [
            StoredEvent(5, key, False, encode(row_event(schema, {"id": key} | row, key=key)))
            for key in range(1, 2001)
        ]
        store.begin_seeding(SOURCE, 5, 1)
        store.merge_chunk(SOURCE, events, None)
        store.end_seeding(SOURCE, 5)
        store.apply_window(6, 6, [])
        store.activate_caught_up()
        most = 200_000
        sizes = PackSizes(500, most, most, fewest_rows=50)
        pack(store, sizes=sizes)
        read = read_table(store, SOURCE, 6, takes_packs=True, page_bytes=most + 5000)
        assert read.packed > 1500


def test_a_damaged_event_is_not_packed_but_reported(filled: FilledStore) -> None:
    with closing(sqlite3.connect(filled.path)) as database, database:
        (event,) = database.execute("select event from snapshot_1 where id = 7").fetchone()
        wrong = event[:-2] + bytes([event[-2] ^ 1]) + event[-1:]
        database.execute("update snapshot_1 set event = ? where id = 7", (wrong,))
    with pytest.raises(StoreDamagedError, match="CRC does not match"):
        pack(filled.store)
    assert held_bytes(filled.store) == 0


def test_each_table_gets_its_turn_and_a_step_does_one_piece_of_work(tmp_path: Path) -> None:
    with closing(make_filled(tmp_path / "shop.db", PERSONS, PERSONS)) as made:
        packer = Packer(made.store, MOST_BYTES, SIZES)
        per_table = "select src_id, count(*) from packs group by src_id"
        while packer.step():
            counts = dict(made.store.file.connection.execute(per_table).fetchall())
            assert abs(counts.get(1, 0) - counts.get(2, 0)) <= 1
    assert counts == {1: IN_PACKS // 300, 2: IN_PACKS // 300}


def test_what_is_never_served_again_takes_no_room(filled: FilledStore) -> None:
    pack(filled.store)
    filled.store.reset_source(PERSON.source)
    pack(filled.store)
    assert held_bytes(filled.store) == 0


def test_a_thread_packs_every_table_until_it_is_stopped(tmp_path: Path) -> None:
    settings = pair_settings(tmp_path, packed_bytes=MOST_BYTES)
    physical = settings.physical_sources[0]
    thread = PackingThread(settings, physical)
    thread.start()
    try:
        with closing(make_filled(settings.data_dir / "shop.db", 25_000, 10)) as made:
            wait_until(lambda: packed_rows(made.store) == 20_000, "a pack", lambda: thread.problem)
            thread.pause()
            assert thread.is_paused
            thread.resume()
    finally:
        assert thread.stop(60)


def test_what_keeps_a_thread_from_packing_is_said_once_and_shown_until_it_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(thread_module, "LOOK_S", 0.001)
    settings = pair_settings(tmp_path, packed_bytes=MOST_BYTES)
    make_filled(settings.data_dir / "shop.db").close()
    steps = []

    def fail(self: Packer) -> bool:
        steps.append(self)
        raise BootstrapError("the disk is full")

    thread = PackingThread(settings, settings.physical_sources[0])
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(Packer, "step", fail)
        thread.start()
        try:
            wait_until(lambda: len(steps) > 3, "four tries", lambda: thread.problem)
            assert thread.problem == "the disk is full"
            assert [r.levelname for r in caplog.records if "disk is full" in r.message] == ["ERROR"]
            meanwhile.undo()
            wait_until(lambda: not thread.problem, "an end of it", lambda: thread.problem)
        finally:
            assert thread.stop(60)
