"""The store: what goes in comes out, newer never gives way to older, one transaction at a time."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from unittest.mock import patch

import pytest

from databus.bootstrap.store import (
    file as store_file,
    snapshot_pages,
    source_table,
    store as store_module,
)
from databus.bootstrap.store.log_table import LogRange
from databus.bootstrap.store.migrations import MIGRATIONS
from databus.bootstrap.store.snapshot_pages import needed_rows
from databus.bootstrap.store.store import SourceStatus, Store
from databus.bootstrap.store.values import WHOLE_WINDOW
from databus.daemon.faults import is_transient
from databus.schemas.errors import BootstrapError, StoreDamagedError, UnknownSourceError
from databus.schemas.event.event import Opcode
from databus.schemas.event.metadata import Op, decode_metadata
from databus.schemas.event.v2 import decode
from databus.schemas.filters import ModFilter
from databus.schemas.table import Column
from databus.schemas.table_change import TableChange, shape_id, with_change
from databus.schemas.table_schema import avro_schema
from tests import PATIENCE_S
from tests.bootstrap.filled import (
    ORDERS,
    PERSON,
    SEEDED_SCN,
    SRC_IDS,
    TEXTS,
    FilledStore,
    emptied,
    gone,
    make_filled,
    put,
    stored,
    unpack,
)
from tests.bootstrap.walking import row_of

ALL = 1 << 30


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[FilledStore]:
    made = make_filled(tmp_path / "shop.db", persons=6, orders=2)
    yield made
    made.close()


def rows_of(store: Store, since_scn: int = 0, start_scn: int = ALL) -> dict[int | bytes, str]:
    page = store.snapshot_page(PERSON.source, needed_rows(since_scn, start_scn, 0, None), ALL)
    return {row.key: row_of(decode(row.event)[0])["name"] for row in page.rows}


def log_of(store: Store, after_scn: int = 0) -> list[tuple[int, int, int | bytes]]:
    page = store.log_page(LogRange([1, 2], (after_scn, WHOLE_WINDOW), ALL, {}), ALL)
    return [(row.scn, row.row_index, row.key) for row in page.rows]


# Windows


def test_a_window_is_applied_once(filled: FilledStore) -> None:
    store = filled.store
    assert store.apply_window(110, 5, [put(1, 1, 110, "a")])
    assert not store.apply_window(110, 5, [put(1, 1, 110, "b")])
    assert not store.apply_window(109, 5, [put(1, 2, 109, "b")])
    assert store.position() == (110, 5)
    assert rows_of(store)[1] == "a"
    assert log_of(store) == [(110, 0, 1)]


def test_an_update_keeps_its_row_id_and_so_does_what_comes_after_a_delete(
    filled: FilledStore,
) -> None:
    store = filled.store
    before = store.rows_by_key(PERSON.source, [3])[3].id
    filled.apply(110, put(1, 3, 110))
    filled.apply(111, gone(1, 3, 111))
    assert store.rows_by_key(PERSON.source, [3])[3].is_deleted
    filled.apply(112, put(1, 3, 112))
    row = store.rows_by_key(PERSON.source, [3])[3]
    assert (row.id, row.scn, row.is_deleted) == (before, 112, False)


def test_the_last_event_of_a_key_in_a_window_is_the_row(filled: FilledStore) -> None:
    filled.apply(110, put(1, 3, 110, "a"), gone(1, 3, 110), put(1, 3, 110, "c"), gone(1, 4, 110))
    assert rows_of(filled.store)[3] == "c"
    assert 4 not in rows_of(filled.store)
    assert log_of(filled.store) == [(110, 0, 3), (110, 1, 3), (110, 2, 3), (110, 3, 4)]


def test_a_deleted_row_stays_as_a_tombstone_for_those_who_had_it(filled: FilledStore) -> None:
    filled.apply(110, gone(1, 3, 110))
    page = filled.store.snapshot_page(PERSON.source, needed_rows(SEEDED_SCN, ALL, 0, None), ALL)
    assert [(row.key, row.is_deleted) for row in page.rows] == [(3, True)]
    assert 3 not in rows_of(filled.store)
    assert filled.store.sizes().sources[PERSON.source].tombstones == 1


def test_an_event_of_a_source_that_is_not_kept_is_an_error_and_nothing_is_applied(
    filled: FilledStore,
) -> None:
    position = filled.store.position()
    event = stored(1, 1, 110)
    with pytest.raises(BootstrapError, match=r"window 110 has an event of source 77"):
        filled.store.apply_window(110, 5, [put(1, 1, 110, "lost"), (77, event)])
    assert filled.store.position() == position
    assert rows_of(filled.store)[1] == "old"
    filled.store.add_sources({PERSON.source: 1})  # the other one is not kept any more
    with pytest.raises(BootstrapError, match="source 2"):
        filled.store.apply_window(110, 5, [put(2, 1, 110)])


def test_keys_of_both_kinds_are_told_apart(filled: FilledStore) -> None:
    filled.apply(110, put(1, 7, 110, "long"), put(1, b"7", 110, "bytes"), put(1, b"", 110, "none"))
    filled.apply(111, put(1, -(1 << 63), 111, "least"))
    found = rows_of(filled.store, SEEDED_SCN)
    assert found == {7: "long", b"7": "bytes", b"": "none", -(1 << 63): "least"}


# Pages


def test_pages_of_any_size_have_every_row_once_in_the_order_of_ids(filled: FilledStore) -> None:
    filled.apply(110, *(put(1, key, 110, "x" * key) for key in range(20, 60)))
    for most_bytes in (1, 300, 1000, ALL):
        for since_scn in (0, 105):
            ids, after_id, is_last = [], 0, False
            while not is_last:
                page = filled.store.snapshot_page(
                    PERSON.source, needed_rows(since_scn, ALL, after_id, None), most_bytes
                )
                assert page.rows
                size_bytes = sum(len(row.event) for row in page.rows)
                assert len(page.rows) == 1 or size_bytes <= most_bytes
                ids += [row.id for row in page.rows]
                after_id, is_last = page.last_id, page.is_last
            assert ids == sorted(set(ids))
            assert len(ids) == (40 if since_scn else 46)


def test_many_changed_rows_are_paged_as_few_are(filled: FilledStore) -> None:
    filled.apply(110, *(put(1, key, 110) for key in range(20, 60)), gone(1, 1, 110))
    few = filled.store.snapshot_page(
        PERSON.source, needed_rows(105, ALL, 3, ModFilter(2, 0, 1)), ALL
    )
    with patch.object(snapshot_pages, "FEW_CHANGED", 5):
        many = filled.store.snapshot_page(
            PERSON.source, needed_rows(105, ALL, 3, ModFilter(2, 0, 1)), ALL
        )
    assert few == many
    assert len(few.rows) == 20


def test_log_pages_have_every_event_once_in_the_order_of_commits(filled: FilledStore) -> None:
    for scn in range(110, 130):
        filled.apply(scn, put(1, scn, scn), put(2, 1, scn), put(1, scn + 1, scn), put(2, 2, scn))
    expected = [(scn, index) for scn in range(110, 128) for index in range(4)]
    for most_bytes in (1, 300, 700, ALL):
        found, place, is_last = [], (109, WHOLE_WINDOW), False
        while not is_last:
            page = filled.store.log_page(LogRange([1, 2], place, 127, {}), most_bytes)
            found += [(row.scn, row.row_index) for row in page.rows]
            place, is_last = page.last, page.is_last
            scn, index = found[-1]
            assert page.last in ((scn, index), (scn, WHOLE_WINDOW))
            assert (index == 3) is (page.last[1] == WHOLE_WINDOW)
        assert found == expected


def test_a_log_page_of_one_source_knows_where_its_windows_end(filled: FilledStore) -> None:
    filled.apply(110, put(1, 1, 110), put(2, 1, 110), put(1, 2, 110), put(2, 2, 110))
    filled.apply(111, put(1, 1, 111))
    page = filled.store.log_page(LogRange([1], (109, WHOLE_WINDOW), 111, {}), 1)
    assert (page.last, page.is_last) == ((110, 0), False)
    page = filled.store.log_page(LogRange([1], page.last, 111, {}), 1)
    assert (page.last, page.is_last) == ((110, WHOLE_WINDOW), False)
    page = filled.store.log_page(LogRange([1], page.last, 111, {1: ModFilter(2, 0, 1)}), 1)
    assert (page.rows, page.last, page.is_last) == ([], (111, WHOLE_WINDOW), True)


def test_counting_goes_up_to_its_limit(filled: FilledStore) -> None:
    filled.apply(110, *(put(1, key, 110) for key in range(5)), *(put(2, k, 110) for k in range(5)))
    assert filled.store.count_changed(PERSON.source, 105, 100) == 5
    assert filled.store.count_changed(PERSON.source, 105, 3) == 3
    assert filled.store.count_logged([1, 2], 105, 100) == 10
    assert filled.store.count_logged([1, 2], 105, 7) == 7
    assert filled.store.count_logged([1, 2], 110, 7) == 0


def test_sizes_say_what_is_held(filled: FilledStore) -> None:
    filled.apply(110, put(1, 1, 110), gone(1, 2, 110))
    sizes = filled.store.sizes()
    found = sizes.sources[PERSON.source]
    assert (found.rows, found.tombstones, found.log_rows) == (5, 1, 2)
    assert found.log_bytes == sum(len(change[1].event) for change in (put(1, 1, 9), gone(1, 2, 9)))
    assert sizes.file_bytes > 0


# Sources and schemas


def test_a_source_that_is_listed_again_is_seeded_anew(filled: FilledStore) -> None:
    store = filled.store
    filled.apply(110, put(1, 1, 110))
    store.add_sources({ORDERS.source: 2})
    assert store.source(PERSON.source).status is SourceStatus.INACTIVE
    assert store.source(ORDERS.source).status is SourceStatus.ACTIVE
    filled.apply(120, put(2, 1, 120))
    store.add_sources(SRC_IDS)
    state = store.source(PERSON.source)
    assert (state.status, state.log_floor_scn, state.tombstone_floor_scn) == ("new", 120, 120)
    assert log_of(store) == [(120, 0, 1)]
    assert store.rows_by_key(PERSON.source, [1])


def test_another_id_of_a_source_is_refused_and_so_is_another_source_of_an_id(
    filled: FilledStore,
) -> None:
    with pytest.raises(BootstrapError, match="has src_id 1 here, and the relay says 9"):
        filled.store.add_sources({PERSON.source: 9, ORDERS.source: 2})
    with pytest.raises(BootstrapError, match=r"says 2 is shop\.new"):
        filled.store.add_sources({**SRC_IDS, "shop.new": 2})
    assert [state.src_id for state in filled.store.sources()] == [2, 1]


def test_a_source_that_is_added_later_may_have_any_id_that_is_free(filled: FilledStore) -> None:
    ids = {**SRC_IDS, "shop.late": 9}
    filled.store.add_sources(ids)
    filled.store.add_sources({**ids, "shop.later": 5})
    assert filled.store.source("shop.later").src_id == 5


def test_a_source_that_is_added_later_has_a_log_from_then_on(filled: FilledStore) -> None:
    filled.store.add_sources({**SRC_IDS, "shop.new": 3})
    assert filled.store.source("shop.new").log_floor_scn == SEEDED_SCN + 1
    with pytest.raises(BootstrapError, match="the log begins after scn 101"):
        filled.store.begin_seeding("shop.new", SEEDED_SCN, 0)


def test_an_unknown_source_is_named_with_those_known(filled: FilledStore) -> None:
    with pytest.raises(UnknownSourceError, match=r"shop\.x.*shop\.orders, shop\.person"):
        filled.store.source("shop.x")


def test_a_schema_is_kept_once_and_a_version_that_is_taken_is_counted_on(
    filled: FilledStore,
) -> None:
    store, other = filled.store, TEXTS[2]
    store.add_schemas(1, [(1, TEXTS[1]), (1, other), (5, other)])
    store.add_schemas(1, [(7, TEXTS[1])])
    assert store.schemas([1]) == [(1, 1, TEXTS[1]), (1, 2, other)]
    assert store.schemas([1, 2]) == [(1, 1, TEXTS[1]), (1, 2, other), (2, 1, other)]
    assert store.schemas([]) == []


# Seeding


def test_a_row_that_was_read_gives_way_to_what_the_log_has_after_it(tmp_path: Path) -> None:
    with closing(FilledStore(tmp_path / "shop.db")) as filled:
        store = filled.store
        store.apply_window(105, 1, [put(1, 1, 105, "log"), gone(1, 2, 105), put(1, 3, 105, "log")])
        store.reset_source(PERSON.source)
        store.begin_seeding(PERSON.source, 104, 4)
        read = [stored(1, key, 104, "read") for key in (1, 2, 3, 4)]
        assert store.merge_chunk(PERSON.source, read, "4") == 1
        state = store.source(PERSON.source)
        assert (state.seed_resume, state.seed_rows, state.seed_estimate) == ("4", 4, 4)
        store.end_seeding(PERSON.source, 105)
        assert store.activate_caught_up() == [PERSON.source]
        assert rows_of(store) == {1: "log", 3: "log", 4: "read"}


def test_rows_that_were_not_seen_become_tombstones(filled: FilledStore) -> None:
    store = filled.store
    filled.apply(110, put(1, 1, 110, "later"))
    store.reset_source(PERSON.source)
    store.begin_seeding(PERSON.source, 105, 0)
    store.merge_chunk(PERSON.source, [stored(1, 2, 105, "still")], None)
    with patch.object(store_module, "_LEFTOVER_ROWS", 1):
        store.end_seeding(PERSON.source, 105)
    store.activate_caught_up()
    assert rows_of(store) == {1: "later", 2: "still"}
    row = store.rows_by_key(PERSON.source, [3])[3]
    event, _ = decode(row.event)
    assert (row.scn, row.is_deleted, event.scn, event.key) == (105, True, 105, 3)
    assert event.opcode is Opcode.DELETE
    assert row_of(event) == {"id": 3, "name": "old"}
    assert event.metadata is not None
    assert decode_metadata(event.metadata.data).op is Op.DELETE


def test_a_source_is_served_once_the_log_is_as_far_as_the_reading(tmp_path: Path) -> None:
    with closing(FilledStore(tmp_path / "shop.db")) as filled:
        store = filled.store
        store.begin_seeding(PERSON.source, 100, 0)
        store.end_seeding(PERSON.source, 107)
        store.apply_window(106, 1, [])
        assert store.activate_caught_up() == []
        assert store.source(PERSON.source).status is SourceStatus.SEEDING_CATCH_UP
        store.apply_window(108, 1, [])
        assert store.activate_caught_up() == [PERSON.source]
        state = store.source(PERSON.source)
        assert (state.status, state.floor_scn) == (SourceStatus.ACTIVE, 100)
        assert store.activate_caught_up() == []


def test_a_seeding_whose_log_begins_too_late_is_begun_anew(tmp_path: Path) -> None:
    with closing(Store.open(tmp_path / "shop.db")) as store:
        store.add_sources({PERSON.source: 1})
        store.begin_seeding(PERSON.source, 100, 0)
        store.end_seeding(PERSON.source, 100)
        store.begin_log(105)
        store.apply_window(106, 1, [])
        assert store.activate_caught_up() == []
        state = store.source(PERSON.source)
        assert state.status is SourceStatus.NEW
        assert "the log begins after 105" in state.problem


def altered_unseen(scn: int) -> str:
    """Return the schema of persons after an ALTER that nobody understood."""
    wider = replace(PERSON, columns=(*PERSON.columns, Column("age", "integer", 2)))
    return with_change(avro_schema(wider), TableChange.unknown(scn, shape_id(TEXTS[1])))


def test_a_table_is_read_again_when_the_log_comes_to_an_alter_that_was_known_before(
    filled: FilledStore,
) -> None:
    filled.store.add_schemas(1, [(2, altered_unseen(110))])
    filled.apply(109)
    assert filled.store.source(PERSON.source).status is SourceStatus.ACTIVE
    filled.apply(110)
    state = filled.store.source(PERSON.source)
    assert state.status is SourceStatus.NEW
    assert "altered at scn 110: its rows are read again" in state.problem
    assert filled.store.source(ORDERS.source).status is SourceStatus.ACTIVE


def altered_to_a_value(scn: int) -> str:
    """Return the schema of persons after an ALTER that says what every row has now."""
    wider = replace(PERSON, columns=(*PERSON.columns, Column("age", "integer", 2)))
    change = TableChange(scn, shape_id(TEXTS[1]), added={"age": 7})
    return with_change(avro_schema(wider), change)


@pytest.mark.parametrize("is_known_before", [True, False])
@pytest.mark.parametrize(
    ("made", "scn", "is_seeding", "problem"),
    [
        (altered_unseen, 110, False, "altered at scn 110: its rows are read again, for "),
        (altered_unseen, 110, True, "altered at scn 110 while it was seeded: seeded again"),
        (altered_to_a_value, 110, False, ""),
        (altered_to_a_value, 110, True, "altered at scn 110 while it was seeded: seeded again"),
        (altered_unseen, SEEDED_SCN, False, ""),
        (altered_unseen, 105, True, ""),
        (altered_unseen, 112, False, ""),
    ],
)
def test_a_statement_has_the_same_effect_whenever_its_version_comes_to_be_known(
    filled: FilledStore,
    made: Callable[[int], str],
    scn: int,
    is_seeding: bool,
    problem: str,
    is_known_before: bool,
) -> None:
    store = filled.store
    if is_seeding:
        store.reset_source(PERSON.source)
        store.begin_seeding(PERSON.source, 105, 0)
    before = store.source(PERSON.source).status
    if is_known_before:
        store.add_schemas(1, [(2, made(scn))])
    filled.apply(108)
    filled.apply(111)
    if not is_known_before:
        store.add_schemas(1, [(2, made(scn))])
    state = store.source(PERSON.source)
    assert state.status is (SourceStatus.NEW if problem else before)
    assert state.problem.startswith(problem)
    assert bool(state.problem) == bool(problem)
    assert store.notes == [(PERSON.source, scn, state.problem)] * bool(problem)
    assert store.source(ORDERS.source).status is SourceStatus.ACTIVE


def test_a_seeded_table_is_read_again_only_for_what_came_behind_its_reading(
    filled: FilledStore,
) -> None:
    store = filled.store
    store.reset_source(PERSON.source)
    store.begin_seeding(PERSON.source, 105, 0)
    store.end_seeding(PERSON.source, 109)
    store.add_schemas(1, [(2, altered_to_a_value(110))])
    filled.apply(110)
    assert store.source(PERSON.source).status is SourceStatus.ACTIVE
    for scn, is_read_again in ((105, False), (104, False), (111, True), (111, False)):
        assert store.read_again(PERSON.source, scn, "no version explains it") == is_read_again
    state = store.source(PERSON.source)
    assert (state.status, state.problem) == (SourceStatus.NEW, "no version explains it")
    assert (state.seed_scn, state.floor_scn) == (-1, -1)
    with closing(Store.open(filled.path)) as again:
        assert again.source(PERSON.source) == state
        assert again.source(ORDERS.source).status is SourceStatus.ACTIVE


def test_a_table_that_is_altered_while_it_is_seeded_is_seeded_anew(filled: FilledStore) -> None:
    filled.store.reset_source(PERSON.source)
    filled.store.begin_seeding(PERSON.source, 105, 0)
    filled.store.add_schemas(1, [(2, altered_unseen(110))])
    filled.apply(110)
    state = filled.store.source(PERSON.source)
    assert state.status is SourceStatus.NEW
    assert state.problem == "altered at scn 110 while it was seeded: seeded again"


def test_a_statement_of_a_seeding_that_is_told_of_after_it_lets_it_be_seeded_anew(
    filled: FilledStore,
) -> None:
    filled.store.reset_source(PERSON.source)
    filled.store.begin_seeding(PERSON.source, 105, 0)
    filled.store.end_seeding(PERSON.source, 109)
    filled.apply(110)
    assert filled.store.source(PERSON.source).status is SourceStatus.ACTIVE
    # Of two such statements, rows read behind both have columns that neither version has.
    filled.store.add_schemas(1, [(2, altered_to_a_value(109))])
    state = filled.store.source(PERSON.source)
    assert state.status is SourceStatus.NEW
    assert state.problem == "altered at scn 109 while it was seeded: seeded again"


def test_a_seeding_that_was_begun_anew_meanwhile_does_not_end_as_if_nothing_had_happened(
    filled: FilledStore,
) -> None:
    store = filled.store
    store.reset_source(PERSON.source)
    store.begin_seeding(PERSON.source, 105, 0)

    def reset(_seconds: float) -> None:
        store.reset_source(PERSON.source)

    with (
        patch.object(store_module, "_LEFTOVER_ROWS", 1),
        patch.object(time, "sleep", reset),
        pytest.raises(BootstrapError, match="is new, not seeding"),
    ):
        store.end_seeding(PERSON.source, 105)
    assert store.source(PERSON.source).status is SourceStatus.NEW
    rows = store.rows_by_key(PERSON.source, range(1, 7)).values()
    assert sum(row.is_deleted for row in rows) == 1, "no more of them than before"


def test_what_is_wrong_with_a_source_is_kept_until_all_is_well(filled: FilledStore) -> None:
    filled.store.set_problem(PERSON.source, "its server is down")
    assert filled.store.source(PERSON.source).problem == "its server is down"
    filled.store.set_problem(PERSON.source, "")
    assert filled.store.source(PERSON.source).problem == ""


def test_a_chunk_of_another_scn_or_of_a_source_that_is_not_seeded_is_refused(
    filled: FilledStore,
) -> None:
    with pytest.raises(BootstrapError, match="is active, not seeding"):
        filled.store.merge_chunk(PERSON.source, [], None)
    filled.store.reset_source(PERSON.source)
    filled.store.begin_seeding(PERSON.source, 105, 0)
    with pytest.raises(BootstrapError, match="not as of scn 105"):
        filled.store.merge_chunk(PERSON.source, [stored(1, 1, 104)], None)
    with pytest.raises(BootstrapError, match="is seeding, not new"):
        filled.store.begin_seeding(PERSON.source, 105, 0)


def test_the_oldest_scn_that_no_relay_has_named_is_unknown(filled: FilledStore) -> None:
    filled.store.fall_off(110, -1)
    assert "the oldest held is unknown" in filled.store.source(PERSON.source).problem


def test_falling_off_clears_the_logs_and_keeps_the_rows(filled: FilledStore) -> None:
    store = filled.store
    filled.apply(110, put(1, 1, 110, "known"))
    store.fall_off(110, 150)
    assert store.position() == (-1, 0)
    assert log_of(store) == []
    state = store.source(PERSON.source)
    assert state.status is SourceStatus.FELL_OFF_RELAY
    assert "110" in state.problem
    assert "150" in state.problem
    with pytest.raises(BootstrapError, match="fell_off_relay"):
        store.reset_source(PERSON.source)
    store.begin_log(149)
    store.apply_window(150, 1, [put(1, 9, 150, "came")])
    state = store.source(PERSON.source)
    assert (state.status, state.log_floor_scn, state.tombstone_floor_scn) == ("new", 149, 100)
    assert (state.hole_begin_scn, state.hole_end_scn) == (110, 149)
    assert rows_of(store)[1] == "known"
    store.begin_log(160)  # it has begun
    assert store.source(PERSON.source).log_floor_scn == 149
    # Not served yet, so what it had was not whole: the next hole begins with nothing known.
    store.fall_off(150, 190)
    store.begin_log(189)
    state = store.source(PERSON.source)
    assert (state.hole_begin_scn, state.hole_end_scn) == (0, 189)


# The file


def test_a_store_keeps_its_id_and_all_else_when_it_is_opened_again(filled: FilledStore) -> None:
    store = filled.store
    with closing(Store.open(filled.path)) as again:
        assert again.id == store.id
        assert again.sources() == store.sources()
        assert again.sizes() == store.sizes()


def test_another_store_has_another_id(filled: FilledStore, tmp_path: Path) -> None:
    with closing(Store.open(tmp_path / "other.db")) as other:
        assert other.id != filled.store.id


def test_a_reader_sees_what_is_committed_and_writes_nothing(filled: FilledStore) -> None:
    with closing(Store.open(filled.path, is_read_only=True)) as reader:
        with reader.reading():
            assert reader.position().scn == SEEDED_SCN + 1
            filled.apply(110, put(1, 1, 110))
            assert reader.position().scn == SEEDED_SCN + 1
        assert reader.position().scn == 110
        with pytest.raises(BootstrapError, match=r"readonly|read-only"):
            reader.apply_window(111, 1, [])


def test_reading_a_store_that_was_never_made_makes_none(tmp_path: Path) -> None:
    path = tmp_path / "none.db"
    with pytest.raises(BootstrapError, match=r"none\.db.*unable to open"):
        Store.open(path, is_read_only=True)
    assert not path.exists()


def test_a_store_that_is_being_made_is_new_and_of_no_older_version(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as making:
        making.execute("pragma journal_mode = wal")
        with pytest.raises(BootstrapError, match="is new: its producer makes it"):
            Store.open(path, is_read_only=True)
    Store.open(path).close()
    Store.open(path, is_read_only=True).close()


def test_a_file_of_a_newer_version_is_refused(filled: FilledStore) -> None:
    filled.close()
    with closing(sqlite3.connect(filled.path)) as connection:
        connection.execute(f"pragma user_version = {len(MIGRATIONS) + 1}")
    for is_read_only in (True, False):
        with pytest.raises(BootstrapError, match=r"shop\.db.*made by a newer version"):
            Store.open(filled.path, is_read_only=is_read_only)


def test_a_file_of_an_older_version_is_brought_up_to_date(filled: FilledStore) -> None:
    filled.close()
    with closing(sqlite3.connect(filled.path)) as connection:
        unpack(connection)
        connection.execute("drop index schema_versions_change_scn")
        for table, column in (
            ("sources", "partial_scn"),
            ("sources", "crc"),
            ("store", "crc"),
            ("store", "term"),
            ("schema_versions", "change_scn"),
        ):
            connection.execute(f"alter table {table} drop column {column}")
        connection.execute("pragma user_version = 1")
    with pytest.raises(BootstrapError, match="the producer brings it up to date"):
        Store.open(filled.path, is_read_only=True)
    with closing(Store.open(filled.path)) as store:
        assert {state.partial_scn for state in store.sources()} == {-1}
        assert store.apply_window(1000, 1, [emptied(1, 1000)])


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("create table notes (text)")
        connection.execute("pragma user_version = 1")
    with pytest.raises(BootstrapError, match="no bootstrap store"):
        Store.open(path)
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(StoreDamagedError, match=r"notes\.db.*the file is damaged: move it away"):
        Store.open(path)


@pytest.mark.parametrize("sql", [source_table.SCHEMAS.format("?"), source_table.ALTERED])
def test_no_window_and_no_page_reads_the_schemas_of_all_sources(
    filled: FilledStore, sql: str
) -> None:
    plan = filled.store.file.connection.execute(f"explain query plan {sql}", (1,) * sql.count("?"))
    steps = [row[3] for row in plan]
    assert any("schema_versions" in step for step in steps)
    assert not any(step.startswith("SCAN") for step in steps)


def test_damage_inside_is_told_with_path_and_place(filled: FilledStore) -> None:
    filled.apply(110, *(put(1, key, 110) for key in range(2000)))
    filled.close()
    with closing(sqlite3.connect(filled.path)) as connection:
        (page,) = connection.execute(
            "select rootpage from sqlite_schema where name = 'snapshot_1'"
        ).fetchone()
    with filled.path.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(bytes(4096))
    with (
        pytest.raises(StoreDamagedError, match=r"shop\.db.*111.*the file is damaged"),
        closing(Store.open(filled.path)) as store,
    ):
        store.apply_window(111, 1, [put(1, key, 111) for key in range(2000)])


def test_a_full_disk_is_told_and_the_window_comes_again(filled: FilledStore) -> None:
    connection = filled.store.file.connection
    (pages,) = connection.execute("pragma page_count").fetchone()
    connection.execute(f"pragma max_page_count = {pages}")
    events = [put(1, key, 110, "x" * 500) for key in range(100)]
    with pytest.raises(BootstrapError, match=r"shop\.db.*at scn 110.*disk is full: make room"):
        filled.store.apply_window(110, 1, events)
    assert filled.store.position().scn == SEEDED_SCN + 1
    connection.execute("pragma max_page_count = 1000000")
    assert filled.store.apply_window(110, 1, events)


def test_a_store_that_may_not_be_written_is_told_and_the_window_comes_again(
    filled: FilledStore,
) -> None:
    connection = filled.store.file.connection
    connection.execute("pragma query_only = on")
    with pytest.raises(BootstrapError, match=r"at scn 110.*cannot be written to") as caught:
        filled.store.apply_window(110, 1, [put(1, 1, 110)])
    assert is_transient(caught.value)
    connection.execute("pragma query_only = off")
    assert filled.store.apply_window(110, 1, [put(1, 1, 110)])


def test_a_store_that_somebody_has_locked_is_told(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with (
        patch.object(store_file, "BUSY_S", 0.05),
        closing(Store.open(path)) as store,
        closing(sqlite3.connect(path, isolation_level=None)) as other,
    ):
        other.execute("begin immediate")
        with pytest.raises(
            BootstrapError, match=r"shop\.db.*at scn 5.*another process holds its lock"
        ):
            store.apply_window(5, 1, [])
        other.execute("rollback")
        assert store.apply_window(5, 1, [])


def test_two_may_make_the_same_store_at_once(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with closing(Store.open(path)) as one, closing(Store.open(path)) as other:
        one.add_sources(SRC_IDS)
        assert one.apply_window(5, 1, [put(1, 1, 5)])
        assert not other.apply_window(5, 1, [put(1, 1, 5)])
        assert other.apply_window(6, 1, [put(1, 1, 6)])
        assert one.position().scn == 6


def test_a_window_of_one_row_takes_less_than_a_millisecond(filled: FilledStore) -> None:
    windows = [(scn, [put(1, scn % 300, scn)]) for scn in range(200, 1200)]
    started_s = time.thread_time()
    for scn, events in windows:
        filled.store.apply_window(scn, 1, events)
    assert time.thread_time() - started_s < len(windows) * 0.001


def test_many_may_make_one_store_at_once(tmp_path: Path) -> None:
    makers = 4
    begin = Barrier(makers)

    def make(path: Path) -> str:
        begin.wait(PATIENCE_S)
        with closing(Store.open(path)) as made:
            return made.id

    with ThreadPoolExecutor(makers) as threads:
        for number in range(30):
            made = threads.map(make, [tmp_path / f"{number}.db"] * makers)
            assert len(set(made)) == 1
