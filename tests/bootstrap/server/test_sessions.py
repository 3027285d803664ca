"""What a store answers to a consumer at a checkpoint: the rules, without HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from databus.bootstrap.server.pages import Page, find_start, find_target, read_page
from databus.bootstrap.server.parameters import (
    PageRequest,
    parse_page_request,
    parse_start_request,
)
from databus.bootstrap.server.reader_pool import StoreReaders
from databus.bootstrap.server.source_lookup import Stores
from databus.bootstrap.store.snapshot_pages import SnapshotRange
from databus.bootstrap.store.values import SnapshotPage, SourceStatus, StoredEvent
from databus.conf.settings import HttpSettings
from databus.schemas.avro_rows import row_codec, schema_id
from databus.schemas.checkpoint import Checkpoint, ConsumptionMode
from databus.schemas.errors import (
    BootstrapError,
    BootstrapTooOldError,
    BootstrapTooYoungError,
    InvalidParameterError,
    OtherLogError,
    UnknownSourceError,
)
from databus.schemas.event.event import Event, Opcode, Part
from databus.schemas.event.metadata import (
    EventMetadata,
    Op,
    decode_metadata,
    encode_metadata,
    metadata_part,
)
from databus.schemas.event.v2 import decode, encode
from databus.schemas.table import Column
from databus.schemas.table_change import TableChange, shape_id, with_change
from databus.schemas.table_schema import avro_schema
from tests import PATIENCE_S
from tests.bootstrap.filled import (
    ORDERS,
    PERSON,
    SRC_IDS,
    TEXTS,
    FilledStore,
    gone,
    make_filled,
    put,
    stored,
)
from tests.bootstrap.walking import catch_up_at, row_of, snapshot_at, split

LIMITS = HttpSettings(max_response_bytes=1 << 20)
LISTED = {"shop": [PERSON.source, ORDERS.source], "crm": ["crm.contact"]}
MOD = '{"1":{"partitionType":"MOD","filters":[{"numBuckets":2,"bktRange":{"start":0,"end":1}}]}}'


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[FilledStore]:
    made = make_filled(tmp_path / "shop.db")
    yield made
    made.close()


def start(
    filled: FilledStore,
    since_scn: int = 0,
    sources: str = PERSON.source,
    mark: tuple[int, int] | None = None,
    log_window: tuple[int, int, str] | None = None,
) -> int:
    checkpoint = Checkpoint(ConsumptionMode.SNAPSHOT, bootstrap_since_scn=since_scn)
    proved = checkpoint.with_mark(mark).with_log_window(log_window)
    request = parse_start_request({"sources": sources, "checkPoint": proved.to_json()})
    return find_start(request, stores(filled), LISTED).scn


def stores(filled: FilledStore) -> Stores:
    return Stores({"shop": filled.store})


def request(checkpoint: Checkpoint, **changes: Any) -> PageRequest:
    asked = {"sources": "1,2", "checkPoint": checkpoint.to_json(), "batchSize": "100000"}
    return parse_page_request(asked | {"maxev": "2"} | changes, LIMITS)


def page(filled: FilledStore, checkpoint: Checkpoint, **changes: Any) -> Page:
    return read_page(request(checkpoint, **changes), stores(filled), LISTED)


def names(page: Page) -> dict[int | bytes, str]:
    return {event.key: row_of(event)["name"] for event in split(page.body)[0]}


def test_a_consumer_with_rows_of_another_log_is_not_given_a_start(filled: FilledStore) -> None:
    for scn in (110, 120, 130):
        filled.apply(scn, put(1, 2, scn))
    assert find_target(PERSON.source, stores(filled), LISTED).mark == (130, 1300)
    # Where the log does not reach back so far, or has not come so far, nothing is proved.
    for mark in (None, (120, 1200), (90, 1), (140, 1)):
        assert start(filled, 100, mark=mark)
    for mark in ((120, 1201), (119, 1190), (121, 1210)):
        with pytest.raises(OtherLogError, match=f"rows of window {mark[0]}, committed at"):
            start(filled, 100, mark=mark)


def test_a_window_of_any_source_that_the_store_follows_proves_its_log(
    filled: FilledStore,
) -> None:
    filled.apply(110, put(1, 2, 110))
    filled.apply(120, put(2, 2, 120))
    names = PERSON.source, ORDERS.source
    for window in ((110, 1100, names[0]), (120, 1200, names[1]), (120, 1, "shop.unknown")):
        assert start(filled, 100, log_window=window)
    for window in ((120, 1201, names[1]), (119, 1190, names[1]), (111, 1110, names[0])):
        with pytest.raises(OtherLogError, match=f"rows of window {window[0]}, committed at"):
            start(filled, 100, log_window=window)


def test_a_page_of_the_log_is_not_given_to_who_has_windows_of_another_log(
    filled: FilledStore,
) -> None:
    filled.apply(110, put(1, 2, 110))
    filled.apply(120, put(2, 2, 120))
    at = catch_up_at(115, 120)
    for mark in ((110, 1100), (120, 1)):  # or one that is still to come
        assert page(filled, at.with_mark(mark)).rows == 1
    for other in (
        at.with_mark((110, 1101)),
        at.with_log_window((109, 1090, PERSON.source)),
    ):
        with pytest.raises(OtherLogError, match="rows of window 1"):
            page(filled, other)
    # Of one source after another the mark is that of them all.
    one = replace(at, catchup_source=ORDERS.source, catchup_source_index=1)
    assert page(filled, one.with_mark((110, 1101)), sources="2").rows == 1


def test_a_snapshot_has_the_rows_as_they_stand_at_the_start_scn(filled: FilledStore) -> None:
    filled.apply(110, put(1, 2, 110), put(1, 77, 110))
    start_scn = start(filled)
    filled.apply(120, put(1, 3, 120))
    found = page(filled, snapshot_at(PERSON.source, start_scn))
    # Row 3 changed after the start: the catch-up has it.
    assert start_scn == 110
    assert names(found) == dict.fromkeys((1, 4, 5, 6, 7, 8, 9, 10), "old") | {2: "new", 77: "new"}
    assert found.is_phase_over
    assert found.checkpoint.snapshot_offset == -1


@pytest.mark.parametrize("form", [{}, {"output": "json"}])
def test_a_page_reads_the_schemas_once(
    filled: FilledStore, monkeypatch: pytest.MonkeyPatch, form: dict[str, str]
) -> None:
    filled.apply(110, put(1, 2, 110))
    read: list[list[int]] = []
    schemas = filled.store.schemas

    def noted(src_ids: list[int]) -> list[tuple[int, int, str]]:
        read.append(src_ids)
        return schemas(src_ids)

    monkeypatch.setattr(filled.store, "schemas", noted)
    page(filled, catch_up_at(101, 110), **form)
    assert read == [[1, 2]]


def test_an_altered_table_takes_the_fast_way_from_no_other(
    filled: FilledStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    altered = with_change(TEXTS[1], TableChange(110, shape_id(TEXTS[1])))
    filled.store.add_schemas(1, [(2, altered)])
    filled.apply(110)
    slow: list[str] = []
    snapshot_page = filled.store.snapshot_page

    def noted(name: str, snapshot_range: SnapshotRange, most_bytes: int) -> SnapshotPage:
        slow.append(name)
        return snapshot_page(name, snapshot_range, most_bytes)

    monkeypatch.setattr(filled.store, "snapshot_page", noted)
    for source in (PERSON.source, ORDERS.source):
        assert names(page(filled, snapshot_at(source, 110)))
    assert slow == [PERSON.source]


def test_a_consumer_with_nothing_is_not_told_of_deleted_rows(filled: FilledStore) -> None:
    filled.apply(110, gone(1, 2, 110))
    assert 2 not in names(page(filled, snapshot_at(PERSON.source, 110)))


def test_one_that_begins_anew_is_told_of_the_rows_deleted_since_its_first_attempt(
    filled: FilledStore,
) -> None:
    filled.apply(110, gone(1, 2, 110))
    filled.apply(120, gone(1, 3, 120))
    again = replace(snapshot_at(PERSON.source, 120), seen_scn=115)
    events, _ = split(page(filled, again).body)
    assert [e.key for e in events if e.opcode is Opcode.DELETE] == [3]
    assert sorted(e.key for e in events) == [1, 3, 4, 5, 6, 7, 8, 9, 10]


def test_a_consumer_with_something_is_told_what_changed_and_what_is_gone(
    filled: FilledStore,
) -> None:
    filled.apply(110, gone(1, 2, 110), put(1, 3, 110))
    events, _ = split(page(filled, snapshot_at(PERSON.source, 110, since_scn=105)).body)
    assert {(e.key, e.opcode) for e in events} == {(2, Opcode.DELETE), (3, Opcode.UPSERT)}


def test_a_page_goes_on_after_the_last_row_and_names_the_store(filled: FilledStore) -> None:
    first = page(filled, snapshot_at(PERSON.source, 101), batchSize="1200")
    assert not first.is_phase_over
    assert len(first.body) <= 1200
    assert first.checkpoint.extra["bootstrap_store_id"] == filled.store.id
    second = page(filled, first.checkpoint)
    assert second.is_phase_over
    assert sorted([*names(first), *names(second)]) == list(range(1, 11))


def test_a_catch_up_has_every_change_in_order_up_to_the_target(filled: FilledStore) -> None:
    filled.apply(110, put(1, 1, 110), put(2, 1, 110))
    filled.apply(120, put(1, 1, 120))
    filled.apply(130, put(1, 1, 130))
    found = page(filled, catch_up_at(101, 120))
    events, checkpoint = split(found.body)
    assert [(e.scn, e.src_id) for e in events] == [(110, 1), (110, 2), (120, 1)]
    assert found.is_phase_over
    assert (checkpoint.window_scn, checkpoint.window_offset) == (120, -1)
    assert checkpoint.prev_scn == 120


def test_a_window_larger_than_a_page_is_continued_at_its_offset(filled: FilledStore) -> None:
    filled.apply(110, *(put(1 + n % 2, n, 110) for n in range(40)))
    at = catch_up_at(101, 110)
    keys: list[int | bytes] = []
    is_over = False
    pages = 0
    while not is_over:
        found = page(filled, at, sources="2", batchSize="1200")
        events, at = split(found.body)
        keys += [event.key for event in events]
        is_over = found.is_phase_over
        # Counted in events of the sources asked for, whatever else is in the window.
        assert at.window_offset == (-1 if is_over else len(keys))
        pages += 1
    assert keys == list(range(1, 40, 2))
    assert pages > 2


def test_an_offset_counts_what_the_filter_leaves_out(filled: FilledStore) -> None:
    filled.apply(110, *(put(1, n, 110) for n in range(40)))
    first = page(filled, catch_up_at(101, 110), sources="1", batchSize="1500", filter=MOD)
    events, at = split(first.body)
    assert [e.key for e in events] == [2 * n for n in range(len(events))]
    assert at.window_offset == events[-1].key + 1  # type: ignore[operator]
    rest, _ = split(page(filled, at, sources="1").body)
    assert [e.key for e in rest] == list(range(at.window_offset, 40))


def test_an_offset_beyond_the_window_is_not_taken_for_its_end(filled: FilledStore) -> None:
    filled.apply(110, put(1, 1, 110))
    with pytest.raises(BootstrapTooYoungError, match="has no 2 events"):
        page(filled, catch_up_at(110, 110, offset=2))


@pytest.mark.parametrize("filter", [MOD, MOD[5:-1]])
def test_a_filter_is_one_for_each_source_or_one_for_all(filled: FilledStore, filter: str) -> None:
    found = page(filled, snapshot_at(PERSON.source, 101), filter=filter)
    assert sorted(names(found)) == [2, 4, 6, 8, 10]


def test_the_first_event_larger_than_a_page_is_told_by_its_size(filled: FilledStore) -> None:
    filled.apply(110, put(1, 1, 110, "x" * 5000))
    found = page(filled, catch_up_at(101, 110), batchSize="2000")
    assert found.body == b""
    assert found.pending_event_bytes is not None
    assert found.pending_event_bytes > 5000
    enough = page(filled, catch_up_at(101, 110), batchSize=str(found.pending_event_bytes))
    assert len(names(enough)) == 1


@pytest.mark.parametrize("output", ["json", "json_plain_value"])
def test_rows_can_be_looked_at_as_json(filled: FilledStore, output: str) -> None:
    found = page(filled, snapshot_at(PERSON.source, 101), output=output, batchSize="2000")
    lines = found.body.decode().splitlines()
    assert len(found.body) <= 2000
    assert len(lines) > 1
    assert not found.is_phase_over


class TestTheShorterWay:
    def test_the_log_alone_is_taken_when_it_is_no_longer(self, filled: FilledStore) -> None:
        filled.apply(110, put(1, 1, 110), put(2, 2, 110))
        filled.apply(120, put(1, 3, 120))
        assert start(filled, since_scn=105, sources="1,2") == 105
        assert names(page(filled, snapshot_at(PERSON.source, 105, since_scn=105))) == {}
        assert set(names(page(filled, catch_up_at(105, 120)))) == {1, 2, 3}

    def test_a_row_that_changed_often_is_sent_once(self, filled: FilledStore) -> None:
        for scn in range(110, 120):
            filled.apply(scn, put(1, 1, scn))
        assert start(filled, since_scn=105) == 119

    def test_a_consumer_with_nothing_gets_the_snapshot(self, filled: FilledStore) -> None:
        assert start(filled) == 101

    def test_a_consumer_older_than_the_log_gets_the_snapshot(self, filled: FilledStore) -> None:
        filled.store.reset_source(PERSON.source)
        filled.seed(PERSON.source, [stored(1, 1, 101)], scn=101)
        assert start(filled, since_scn=100) == 101


class TestRefusals:
    def test_a_source_that_is_being_seeded_is_not_served_yet(self, filled: FilledStore) -> None:
        filled.store.reset_source(PERSON.source)
        with pytest.raises(BootstrapTooOldError, match=r"shop\.person is new; ask again later"):
            start(filled)
        filled.store.begin_seeding(PERSON.source, 101, 10)
        filled.store.merge_chunk(PERSON.source, [stored(1, 1, 101), stored(1, 2, 101)], "2")
        with pytest.raises(BootstrapTooOldError, match=r"seeding, 2 rows \(20 %\)"):
            page(filled, snapshot_at(PERSON.source, 101))
        filled.store.end_seeding(PERSON.source, 150)
        with pytest.raises(BootstrapTooOldError, match="seeding catch up, until scn 150"):
            find_target(PERSON.source, stores(filled), LISTED)
        # The other one is.
        assert start(filled, sources=ORDERS.source) == 101

    def test_a_consumer_that_is_ahead_waits(self, filled: FilledStore) -> None:
        with pytest.raises(BootstrapTooOldError, match=r"producer is at scn 101 .* at scn 500"):
            start(filled, since_scn=500)
        with pytest.raises(BootstrapTooOldError, match="target scn 500 is newer than scn 101"):
            page(filled, catch_up_at(101, 500))
        with pytest.raises(BootstrapTooOldError, match="start scn 500 is newer than scn 101"):
            page(filled, snapshot_at(PERSON.source, 500))

    def test_a_start_older_than_the_seeding_is_too_old_to_go_on_with(
        self, filled: FilledStore
    ) -> None:
        with pytest.raises(BootstrapTooYoungError, match="start scn 99 is older than scn 100"):
            page(filled, snapshot_at(PERSON.source, 99))

    def test_a_place_before_the_log_is_refused(self, filled: FilledStore) -> None:
        with pytest.raises(BootstrapTooYoungError, match="the log goes back to scn 100"):
            page(filled, catch_up_at(99, 101))
        with pytest.raises(BootstrapTooYoungError, match="the log goes back to scn 100"):
            page(filled, catch_up_at(100, 101, offset=1))

    def test_who_may_have_missed_a_delete_must_begin_with_nothing(
        self, filled: FilledStore
    ) -> None:
        with pytest.raises(BootstrapTooYoungError, match=r"known from scn 100 .*windowScn 0"):
            start(filled, since_scn=50)

    def test_after_a_hole_only_who_was_inside_it_must_begin_with_nothing(
        self, filled: FilledStore
    ) -> None:
        store = filled.store
        store.fall_off(101, 500)
        store.begin_log(499)
        filled.apply(500)
        for name in (PERSON.source, ORDERS.source):
            store.begin_seeding(name, 500, 0)
            store.end_seeding(name, 500)
        store.activate_caught_up()
        known = r"known up to scn 101 and from scn 499 on, and the consumer is at scn 300"
        with pytest.raises(BootstrapTooYoungError, match=known):
            start(filled, since_scn=300)
        for since_scn in (101, 499):
            assert start(filled, since_scn=since_scn) in (since_scn, 500)
        # The seeding read an empty table: all that was known before the hole is gone.
        events, _ = split(page(filled, snapshot_at(PERSON.source, 500, since_scn=101)).body)
        assert {event.opcode for event in events} == {Opcode.DELETE}
        assert len(events) == 10

    def test_row_ids_of_another_store_mean_nothing(self, filled: FilledStore) -> None:
        other = replace(snapshot_at(PERSON.source, 101), extra={"bootstrap_store_id": "other"})
        with pytest.raises(BootstrapTooYoungError, match="begun on store other"):
            page(filled, other)
        in_log = replace(catch_up_at(101, 101), extra={"bootstrap_store_id": "other"})
        assert page(filled, in_log).is_phase_over

    def test_what_fell_off_the_relay_is_not_served(self, filled: FilledStore) -> None:
        filled.store.fall_off(101, 500)
        with pytest.raises(BootstrapTooOldError, match="fell off relay: no relay holds"):
            start(filled)
        with pytest.raises(BootstrapTooOldError, match="fell off relay"):
            page(filled, snapshot_at(PERSON.source, 101))

    def test_an_unknown_source_is_named_with_those_known(self, filled: FilledStore) -> None:
        with pytest.raises(UnknownSourceError, match=r"'shop.nothing'; known: 2 \(shop.orders\)"):
            start(filled, sources="shop.nothing")

    def test_a_source_whose_producer_has_not_begun_is_worth_waiting_for(
        self, filled: FilledStore
    ) -> None:
        with pytest.raises(BootstrapTooOldError, match="has not read from a relay yet"):
            start(filled, sources="crm.contact")

    def test_a_store_that_does_not_open_is_told_for_its_sources_only(
        self, filled: FilledStore
    ) -> None:
        broken = Stores({"shop": filled.store}, {"crm": BootstrapError("store crm.db is damaged")})
        with pytest.raises(BootstrapError, match="damaged"):
            find_target("crm.contact", broken, LISTED)
        assert find_target("shop.person", broken, LISTED).scn == 101

    def test_sources_of_two_physical_sources_are_asked_for_apart(
        self, filled: FilledStore, tmp_path: Path
    ) -> None:
        crm = FilledStore(tmp_path / "crm.db", {"shop.orders": 2})
        both = Stores({"shop": filled.store, "crm": crm.store})
        try:
            with pytest.raises(
                InvalidParameterError, match=r"several physical sources \(crm, shop\)"
            ):
                find_target("2", both, LISTED)
            assert find_target("1", both, LISTED).scn == 101
        finally:
            crm.close()

    def test_the_snapshots_source_is_one_of_those_asked_for(self, filled: FilledStore) -> None:
        with pytest.raises(InvalidParameterError, match="one of the requested sources"):
            page(filled, snapshot_at(PERSON.source, 101), sources="2")

    def test_a_page_has_room_for_its_checkpoint(self, filled: FilledStore) -> None:
        with pytest.raises(InvalidParameterError, match=r"batchSize.*checkpoint at a page's end"):
            page(filled, snapshot_at(PERSON.source, 101), batchSize="100")

    def test_a_range_of_keys_that_are_no_numbers_is_refused(self, filled: FilledStore) -> None:
        filled.apply(110, put(1, b"Ann", 110))
        only = '{"partitionType":"RANGE","filters":[{"keyRange":{"start":0,"end":5}}]}'
        with pytest.raises(InvalidParameterError, match="needs keys that are numbers"):
            page(filled, snapshot_at(PERSON.source, 110), filter=only)

    @pytest.mark.parametrize(
        ("checkpoint", "rule"),
        [
            (Checkpoint.at(5), "in mode BOOTSTRAP_SNAPSHOT or BOOTSTRAP_CATCHUP"),
            (snapshot_at("", 101), "snapshot_source names"),
            (snapshot_at(PERSON.source, -1), "what /startSCN answered"),
            (snapshot_at(PERSON.source, 101, offset=-1), "snapshot_offset is 0 at a snapshot's"),
            (snapshot_at(PERSON.source, 101, since_scn=102), "not above bootstrap_start_scn"),
            (replace(catch_up_at(101, 101), bootstrap_target_scn=-1), "what /targetSCN answered"),
            (replace(catch_up_at(101, 101), window_scn=102), "windowScn is between"),
        ],
    )
    def test_a_checkpoint_at_no_place_of_a_bootstrap_is_refused(
        self, checkpoint: Checkpoint, rule: str
    ) -> None:
        with pytest.raises(InvalidParameterError, match=rule):
            request(checkpoint)


@settings(max_examples=60, deadline=None)
@given(
    changes=st.lists(st.tuples(st.integers(1, 6), st.booleans(), st.booleans()), max_size=25),
    start_after=st.integers(0, 25),
    batch=st.integers(900, 3000),
    size=st.integers(1, 3),
)
def test_snapshot_and_catch_up_end_with_the_rows_of_the_target(
    tmp_path_factory: pytest.TempPathFactory,
    changes: list[tuple[int, bool, bool]],
    start_after: int,
    batch: int,
    size: int,
) -> None:
    """Whatever is written before the start SCN and after it, in windows of whatever size."""
    filled = make_filled(tmp_path_factory.mktemp("filled") / "shop.db", persons=4, orders=0)
    try:
        model = dict.fromkeys(range(1, 5), "old")
        rows: dict[int | bytes, str] = {}
        windows = [changes[at : at + size] for at in range(0, len(changes), size)]
        cut = min(start_after, len(windows))
        apply(filled, windows[:cut], 110, model)
        start_scn = start(filled)
        apply(filled, windows[cut:], 500, model)
        read_all(filled, snapshot_at(PERSON.source, start_scn), rows, batch)
        target_scn = find_target(PERSON.source, stores(filled), LISTED).scn
        read_all(filled, catch_up_at(start_scn, target_scn), rows, batch)
        assert rows == model
    finally:
        filled.close()


def apply(
    filled: FilledStore,
    windows: list[list[tuple[int, bool, bool]]],
    first_scn: int,
    model: dict[int, str],
) -> None:
    for scn, window in enumerate(windows, first_scn):
        changes = []
        for number, (key, is_deleted, is_order) in enumerate(window):
            src_id = SRC_IDS[ORDERS.source] if is_order else SRC_IDS[PERSON.source]
            name = f"{scn}.{number}"
            changes.append(gone(src_id, key, scn) if is_deleted else put(src_id, key, scn, name))
            if not is_order and is_deleted:
                model.pop(key, None)
            elif not is_order:
                model[key] = name
        filled.apply(scn, *changes)


def read_all(filled: FilledStore, at: Checkpoint, rows: dict[int | bytes, str], batch: int) -> None:
    is_over = False
    while not is_over:
        found = page(filled, at, sources="1", batchSize=str(batch))
        assert len(found.body) <= batch
        is_over = found.is_phase_over
        events, at = split(found.body)
        for event in events:
            if event.opcode is Opcode.DELETE:
                rows.pop(event.key, None)
            else:
                rows[event.key] = row_of(event)["name"]


class TestANullFilledBeforeItsColumnBecameNotNull:
    """Row 1 is made NULL at 110 and filled at 120; the column is NOT NULL from 130 on."""

    def test_the_log_has_each_row_in_a_version_that_it_fits(self, filled: FilledStore) -> None:
        make_not_null(filled)
        events, _ = split(page(filled, catch_up_at(101, 140)).body)
        assert [(e.scn, not_null_row(e)["name"]) for e in events] == [
            (110, None), (115, None), (120, "filled"), (140, "last")
        ]  # fmt: skip
        assert [e.schema_id == schema_id(NOT_NULL) for e in events] == [False, False, True, True]

    @pytest.mark.parametrize("at", [snapshot_at(PERSON.source, 140), catch_up_at(115, 140)])
    def test_a_row_before_is_told_without_the_column(
        self, filled: FilledStore, at: Checkpoint
    ) -> None:
        make_not_null(filled)
        (event,) = (e for e in split(page(filled, at).body)[0] if e.key == 1)
        assert not_null_row(event) == {"id": 1, "name": "filled"}
        assert event.metadata is not None
        metadata = decode_metadata(event.metadata.data)
        assert metadata.before is not None
        assert metadata.notes is not None
        absent = metadata.notes.before_absent
        assert row_codec(NOT_NULL).decode(metadata.before, absent) == {"id": 1}

    def test_json_has_it_too(self, filled: FilledStore) -> None:
        make_not_null(filled)
        for at in (snapshot_at(PERSON.source, 140), catch_up_at(101, 140)):
            assert page(filled, at, output="json").rows

    def test_a_row_at_rest_that_does_not_fit_lets_its_source_be_read_again_and_no_other(
        self, filled: FilledStore
    ) -> None:
        filled.apply(120, changed(1, 120, None, None))
        filled.store.add_schemas(1, [(2, NOT_NULL)])
        filled.apply(130)
        readers = StoreReaders({"shop": filled.path}, threads=1)
        readers.start()
        try:
            asked = request(snapshot_at(PERSON.source, 130))
            work = readers.run(lambda stores: read_page(asked, stores, LISTED))
            with pytest.raises(BootstrapTooOldError, match=r"seed --source shop\.person"):
                work.result(PATIENCE_S)
        finally:
            readers.stop(PATIENCE_S)
        state = filled.store.source(PERSON.source)
        assert state.status is SourceStatus.NEW
        assert "scn 130: shop.person, column 'name': NoneType None does not fit" in state.problem
        assert page(filled, snapshot_at(ORDERS.source, 130)).rows == 5
        filled.seed(PERSON.source, [], scn=130)
        assert not filled.store.read_again(PERSON.source, 130, "late")


class TestRowsReadAsATableThatNoVersionIs:
    """The seeder saw the table otherwise than the relay, and then it was altered."""

    def test_their_source_is_read_again(self, filled: FilledStore) -> None:
        seen = avro_schema(replace(PERSON, columns=(*PERSON.columns[:1], OTHER_NAME)))
        filled.store.add_schemas(1, [(2, seen)])
        row = stored(1, 1, 101, "old")
        event, _ = decode(row.event)
        assert event.payload is not None
        event = event._replace(payload=event.payload._replace(digest=schema_id(seen)))
        filled.store.reset_source(PERSON.source)
        filled.seed(PERSON.source, [row._replace(event=encode(event))], scn=101)
        filled.store.add_schemas(1, [(3, NOT_NULL)])
        filled.apply(130)
        # By itself the statement says what rows became.
        assert filled.store.source(PERSON.source).status is SourceStatus.ACTIVE
        readers = StoreReaders({"shop": filled.path}, threads=1)
        readers.start()
        try:
            asked = request(snapshot_at(PERSON.source, 130))
            work = readers.run(lambda stores: read_page(asked, stores, LISTED))
            with pytest.raises(BootstrapTooOldError, match="the statement was not seen"):
                work.result(PATIENCE_S)
        finally:
            readers.stop(PATIENCE_S)
        state = filled.store.source(PERSON.source)
        assert state.status is SourceStatus.NEW
        assert "its rows are read again" in state.problem


OTHER_NAME = Column("name", "varchar(9)", 1, nullable=True)
NOT_NULL = with_change(
    avro_schema(
        replace(PERSON, columns=(PERSON.columns[0], Column("name", "text", 1, nullable=False)))
    ),
    TableChange(130, shape_id(TEXTS[1])),
)


def make_not_null(filled: FilledStore) -> None:
    filled.apply(110, changed(1, 110, None, "old"))
    filled.apply(115, changed(2, 115, None, "old", is_deleted=True))
    filled.apply(120, changed(1, 120, "filled", None))
    filled.store.add_schemas(1, [(2, NOT_NULL)])
    filled.apply(130)
    filled.apply(140, put(1, 3, 140, "last"))


def changed(
    key: int, scn: int, name: str | None, before: str | None, *, is_deleted: bool = False
) -> tuple[int, StoredEvent]:
    codec = row_codec(TEXTS[1])
    payload = Part(codec.encode({"id": key, "name": name}), schema_id(TEXTS[1]), 1)
    image = codec.encode({"id": key, "name": before})
    metadata = metadata_part(encode_metadata(EventMetadata(Op.UPDATE, before=image)))
    opcode = Opcode.DELETE if is_deleted else Opcode.UPSERT
    event = Event(scn, scn * 10, 1, 0, key, opcode, payload, metadata)
    return 1, StoredEvent(scn, key, is_deleted, encode(event))


def not_null_row(event: Event) -> dict[str, Any]:
    texts = {schema_id(text): text for text in (TEXTS[1], NOT_NULL)}
    return row_codec(texts[event.schema_id]).decode(event.value)
