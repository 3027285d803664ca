"""A TRUNCATE: no row from before it survives, at whatever point anybody is when it comes."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from databus.bootstrap.producer.producer import Producer
from databus.bootstrap.server.pages import Page, find_start, find_target, read_page
from databus.bootstrap.server.parameters import parse_page_request, parse_start_request
from databus.bootstrap.server.source_lookup import Stores
from databus.bootstrap.store.log_table import LogRange
from databus.bootstrap.store.retention import Retention
from databus.bootstrap.store.snapshot_pages import needed_rows
from databus.bootstrap.store.store import SourceStatus, Store
from databus.conf.settings import HttpSettings
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import BootstrapTooYoungError
from databus.schemas.event.event import Event, Opcode
from databus.schemas.event.metadata import EventMetadata, Op, encode_metadata, metadata_part
from databus.schemas.event.v2 import decode
from tests import PATIENCE_S
from tests.bootstrap.filled import (
    ORDERS,
    PERSON,
    SRC_IDS,
    Change,
    FilledStore,
    emptied,
    gone,
    is_truncate,
    make_filled,
    put,
    stored,
)
from tests.bootstrap.producer.child import settings_for
from tests.bootstrap.serving import pair_settings
from tests.bootstrap.walking import Walker, catch_up_at, snapshot_at, split
from tests.client.fake_relay import FakeRelay
from tests.client.shop import ORDERS_ID, order, wait_until

LIMITS = HttpSettings(max_response_bytes=1 << 20)
LISTED = {"shop": [PERSON.source, ORDERS.source]}
MOD = '{"partitionType":"MOD","filters":[{"numBuckets":2,"bktRange":{"start":0,"end":1}}]}'
RANGE = '{"partitionType":"RANGE","filters":[{"keyRange":{"start":3,"end":5}}]}'


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[FilledStore]:
    made = make_filled(tmp_path / "shop.db")
    yield made
    made.close()


class Direct:
    """Answers as the server does, without HTTP."""

    def __init__(self, store: Store) -> None:
        self._stores = Stores({"shop": store})

    def __call__(self, path: str, parameters: Mapping[str, Any]) -> Any:
        texts = {name: str(value) for name, value in parameters.items()}
        if path == "/targetSCN":
            return _answer(json.dumps(find_target(texts["source"], self._stores, LISTED).scn))
        if path == "/startSCN":
            start = find_start(parse_start_request(texts), self._stores, LISTED)
            return _answer(json.dumps(start.scn), {"x-databus-store": start.store_id})
        page = self.page(texts)
        return _answer(page.body, {"PhaseCompleted": "TRUE"} if page.is_phase_over else {})

    def page(self, texts: Mapping[str, str]) -> Page:
        return read_page(parse_page_request(texts, LIMITS), self._stores, LISTED)


def _answer(body: Any, headers: Mapping[str, str] | None = None) -> Any:
    return SimpleNamespace(status=200, headers=headers or {}, body=body)


def events_of(filled: FilledStore, at: Checkpoint, **more: str) -> list[Event]:
    asked = {"sources": "1", "checkPoint": at.to_json(), "batchSize": "100000", "maxev": "2"}
    asked["truncate"] = "true"
    return split(Direct(filled.store).page(asked | more).body)[0]


def keys_of(filled: FilledStore, source: str = PERSON.source) -> list[int | bytes]:
    page = filled.store.snapshot_page(source, needed_rows(0, 1 << 62, 0, None), 1 << 30)
    return [row.key for row in page.rows]


# What the store has


def test_all_rows_of_the_source_are_gone_with_its_window(filled: FilledStore) -> None:
    filled.apply(110, gone(1, 2, 110))
    filled.apply(120, emptied(1, 120))
    assert keys_of(filled) == []
    assert keys_of(filled, ORDERS.source) == [1, 2, 3, 4, 5]
    sizes = filled.store.sizes().sources[PERSON.source]
    assert (sizes.rows, sizes.tombstones, sizes.log_rows) == (0, 1, 2)


def test_what_comes_behind_it_in_its_window_stays(filled: FilledStore) -> None:
    changes: list[Change] = [put(1, 1, 110), emptied(1, 110), put(1, 2, 110), put(2, 9, 110)]
    filled.apply(110, *changes, emptied(1, 110), put(1, 7, 110), put(1, 1, 110))
    assert keys_of(filled) == [7, 1]
    assert keys_of(filled, ORDERS.source) == [1, 2, 3, 4, 5, 9]


@pytest.mark.parametrize("first", range(4))
@pytest.mark.parametrize("second", range(4))
def test_wherever_it_stands_in_its_window_what_is_left_is_what_came_behind_the_last(
    filled: FilledStore, first: int, second: int
) -> None:
    keys = range(20, 24)
    changes: list[Change] = []
    for place, key in enumerate(keys):
        changes += [emptied(1, 110)] * ((place == first) + (place == second)) + [put(1, key, 110)]
    filled.apply(110, *changes)
    left = list(keys)[max(first, second) :]
    assert keys_of(filled) == left
    sizes = filled.store.sizes().sources[PERSON.source]
    assert (sizes.rows, sizes.tombstones, sizes.log_rows) == (len(left), 1, 6)


def test_a_row_of_any_key_is_known_to_be_gone(filled: FilledStore) -> None:
    filled.apply(110, emptied(1, 110))
    filled.apply(120, put(1, 2, 120))
    found = filled.store.rows_by_key(PERSON.source, [1, 2, 77])
    assert {key: (row.scn, row.is_deleted) for key, row in found.items()} == {
        1: (110, True),
        2: (120, False),
        77: (110, True),
    }


# What a consumer gets


def test_one_in_the_middle_of_a_snapshot_ends_without_the_rows(filled: FilledStore) -> None:
    def empty(number: int) -> None:
        if number == 2:
            filled.apply(110, emptied(1, 110), put(1, 3, 110))

    walker = Walker(Direct(filled.store), SRC_IDS, batch_bytes=700, before_page=empty)
    walker.linear()
    assert walker.rows == {(1, 3): "new", **{(2, key): "old" for key in range(1, 6)}}


def test_one_who_has_rows_gets_it_before_what_came_after(filled: FilledStore) -> None:
    filled.apply(110, put(1, 4, 110))
    filled.apply(120, emptied(1, 120))
    filled.apply(130, put(1, 5, 130), put(1, 4, 130), put(1, 6, 130))
    filled.apply(140, gone(1, 6, 140))
    events = events_of(filled, snapshot_at(PERSON.source, 140, since_scn=105))
    assert [event.key for event in events] == [b"", 5, 4, 6]
    assert is_truncate(events[0])
    assert events[0].scn == 120
    assert events[3].opcode is Opcode.DELETE
    assert not any(map(is_truncate, events_of(filled, snapshot_at(PERSON.source, 140, 0, 120))))


def test_one_with_nothing_does_not_get_it(filled: FilledStore) -> None:
    filled.apply(110, emptied(1, 110))
    filled.apply(120, put(1, 5, 120))
    assert [event.key for event in events_of(filled, snapshot_at(PERSON.source, 120))] == [5]


def test_one_that_begins_anew_gets_it_when_it_came_since_the_first_attempt(
    filled: FilledStore,
) -> None:
    filled.apply(110, emptied(1, 110))
    filled.apply(120, put(1, 5, 120))
    at = snapshot_at(PERSON.source, 120)
    assert [e.key for e in events_of(filled, replace(at, seen_scn=105))] == [b"", 5]
    assert [e.key for e in events_of(filled, replace(at, seen_scn=115))] == [5]


@pytest.mark.parametrize("wanted", [MOD, RANGE])
def test_it_passes_every_filter_in_its_place(filled: FilledStore, wanted: str) -> None:
    filled.apply(110, put(1, 4, 110), put(1, 9, 110), emptied(1, 110), put(1, 4, 110))
    caught_up = events_of(filled, catch_up_at(101, 110), filter=wanted)
    assert [event.key for event in caught_up] == [4, b"", 4]
    snapshot = events_of(filled, snapshot_at(PERSON.source, 110, since_scn=105), filter=wanted)
    assert [event.key for event in snapshot] == [b"", 4]


def test_a_row_whose_key_is_empty_is_no_truncate(filled: FilledStore) -> None:
    filled.apply(110, put(1, b"", 110))
    filled.apply(120, emptied(1, 120), put(1, b"", 120))
    filled.apply(130, gone(1, b"", 130))
    events = events_of(filled, snapshot_at(PERSON.source, 130, since_scn=105))
    assert [(event.key, is_truncate(event)) for event in events] == [(b"", True), (b"", False)]
    events = events_of(filled, snapshot_at(PERSON.source, 130, since_scn=125))
    assert [(event.key, is_truncate(event)) for event in events] == [(b"", False)]


@pytest.mark.parametrize("filter", [{}, {"filter": MOD}], ids=["all", "filtered"])
@pytest.mark.parametrize("since_scn", [0, 105])
def test_who_does_not_ask_for_it_gets_all_but_it(
    filled: FilledStore, since_scn: int, filter: dict[str, str]
) -> None:
    filled.apply(110, put(1, 2, 110), emptied(1, 110), put(1, 4, 110))
    filled.apply(120, emptied(1, 120), put(1, 6, 120))
    for at in (catch_up_at(101, 120), snapshot_at(PERSON.source, 120, since_scn=since_scn)):
        asked = events_of(filled, at, **filter)
        unasked = events_of(filled, at, truncate="false", **filter)
        assert unasked == [event for event in asked if not is_truncate(event)]
        assert len(unasked) < len(asked) or not since_scn
        page = {"sources": "1", "checkPoint": at.to_json(), "batchSize": "100000"}
        read = Direct(filled.store).page(page | filter)
        assert read.is_phase_over
        assert read.rows == len(unasked)


@pytest.mark.parametrize("output", ["json_plain_value", "json", "binary"])
@pytest.mark.parametrize("version", ["1", "2"])
def test_it_has_a_form_of_every_kind(filled: FilledStore, output: str, version: str) -> None:
    filled.apply(110, emptied(1, 110))
    at = catch_up_at(101, 110).to_json()
    asked = {"sources": "1", "checkPoint": at, "batchSize": "100000"}
    asked["truncate"] = "true"
    page = Direct(filled.store).page({**asked, "maxev": version, "output": output})
    assert page.rows == 1
    assert page.is_phase_over


def test_who_comes_back_when_it_is_forgotten_begins_with_nothing(filled: FilledStore) -> None:
    filled.apply(110, emptied(1, 110))
    filled.apply(120, put(1, 5, 120))
    (filled.path.parent / "pair").mkdir()
    quick = pair_settings(filled.path.parent, deleted_retention_s=0.001)
    later = Store.open(filled.path, now_ns=lambda: 1 << 62)
    with closing(later):
        while Retention(later, quick, lambda: 1 << 62).step():
            pass
    assert filled.store.source(PERSON.source).tombstone_floor_scn == 110
    with pytest.raises(BootstrapTooYoungError, match="begin with an empty target"):
        events_of(filled, snapshot_at(PERSON.source, 120, since_scn=105))


# While a source is seeded


def seeding(path: Path, scn: int = 100) -> FilledStore:
    made = FilledStore(path)
    made.store.begin_seeding(PERSON.source, scn, 3)
    return made


def test_rows_read_before_it_do_not_come_back(tmp_path: Path) -> None:
    with closing(seeding(tmp_path / "shop.db")) as filled:
        store = filled.store
        chunks = [[stored(1, key, 100)] for key in (1, 2, 3)]
        assert store.merge_chunk(PERSON.source, chunks[0], "1") == 1
        filled.apply(110, put(1, 8, 110), emptied(1, 110), put(1, 2, 110, "after"))
        assert store.merge_chunk(PERSON.source, chunks[1], "2") == 0
        assert store.merge_chunk(PERSON.source, chunks[2], "3") == 0
        store.end_seeding(PERSON.source, 110)
        assert store.activate_caught_up() == [PERSON.source]
        assert keys_of(filled) == [2]
        assert store.source(PERSON.source).seed_rows == 3


def test_rows_read_after_one_that_the_log_has_yet_to_tell_of_stay(tmp_path: Path) -> None:
    with closing(FilledStore(tmp_path / "shop.db")) as filled:
        store = filled.store
        filled.seed_rows(PERSON.source, [1, 2, 3])
        filled.apply(101)
        store.reset_source(PERSON.source)
        store.begin_seeding(PERSON.source, 120, 2)
        store.merge_chunk(PERSON.source, [stored(1, 1, 120), stored(1, 7, 120)], None)
        filled.apply(110, emptied(1, 110))
        assert sorted(keys_of(filled)) == [1, 7]
        store.end_seeding(PERSON.source, 120)
        filled.apply(120)
        assert store.source(PERSON.source).status is SourceStatus.ACTIVE
        events = events_of(filled, snapshot_at(PERSON.source, 120, since_scn=101))
        # Before the rows that are as of later, though one of them had the first id.
        assert [event.key for event in events] == [b"", 7, 1]


def test_what_was_left_from_before_is_not_buried_again(tmp_path: Path) -> None:
    with closing(seeding(tmp_path / "shop.db", 120)) as filled:
        filled.apply(110, emptied(1, 110), put(1, 4, 110), put(1, 5, 110))
        filled.store.merge_chunk(PERSON.source, [stored(1, 4, 120)], None)
        filled.store.end_seeding(PERSON.source, 120)
        filled.apply(120)
        events = events_of(filled, snapshot_at(PERSON.source, 120, since_scn=105))
        assert [(event.key, event.scn, event.opcode) for event in events] == [
            (b"", 110, Opcode.DELETE),
            (4, 120, Opcode.UPSERT),
            (5, 120, Opcode.DELETE),
        ]


# From a relay


def test_the_producer_takes_it_from_the_relay(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    metadata = metadata_part(encode_metadata(EventMetadata(Op.TRUNCATE)))
    truncate = Event(9, 1009, ORDERS_ID, 0, b"", Opcode.DELETE, None, metadata)
    windows = [[order(7, 1), order(7, 2)], [truncate], [order(10, 3)]]
    with FakeRelay(windows) as relay:
        producer = Producer(*settings_for(path, relay.url, sources=("shop.orders",)), path)
        producer.start()
        try:
            wait_until(lambda: producer.status().scn == 10)
            assert producer.is_healthy
        finally:
            assert producer.stop(PATIENCE_S)
    with closing(Store.open(path)) as store:
        page = store.snapshot_page("shop.orders", needed_rows(5, 10, 0, None), 1 << 30)
        assert [row.key for row in page.rows] == [b"", 3]
        log = store.log_page(LogRange([ORDERS_ID], (0, -1), 10, {}), 1 << 30)
        assert [decode(row.event)[0].key for row in log.rows] == [1, 2, b"", 3]
        assert decode(log.rows[2].event)[0] == truncate


# Whatever comes, and wherever the pages end

WRITES = st.lists(
    st.tuples(
        st.sampled_from([1, 1, 2]),
        st.integers(0, 6),
        st.sampled_from(["put", "put", "put", "put", "delete", "truncate"]),
    ),
    max_size=5,
)


def changes_of(scn: int, writes: list[tuple[int, int, str]], rows: dict[Any, str]) -> list[Change]:
    """Return a window's changes, and do them to the model."""
    changes: list[Change] = []
    for index, (src_id, key, what) in enumerate(writes):
        if what == "truncate":
            changes.append(emptied(src_id, scn))
            for place in [place for place in rows if place[0] == src_id]:
                del rows[place]
        elif what == "put":
            rows[src_id, key] = f"{scn}.{index}"
            changes.append(put(src_id, key, scn, rows[src_id, key]))
        elif rows.pop((src_id, key), None) is not None:
            changes.append(gone(src_id, key, scn))
    return changes


@given(
    windows=st.lists(WRITES, min_size=1, max_size=14),
    windows_a_page=st.integers(0, 3),
    first=st.integers(0, 8),
    has_slept=st.booleans(),
    batch_bytes=st.sampled_from([500, 640, 1000, 1500]),
    is_linear=st.booleans(),
)
@settings(deadline=None, max_examples=80)
def test_whatever_comes_a_consumer_ends_with_the_rows(
    windows: list[list[tuple[int, int, str]]],
    windows_a_page: int,
    first: int,
    has_slept: bool,
    batch_bytes: int,
    is_linear: bool,
) -> None:
    with tempfile.TemporaryDirectory() as folder, closing(FilledStore(Path(folder) / "s.db")) as f:
        for source in SRC_IDS:
            f.seed_rows(source, range(4))
        f.apply(101)
        rows: dict[Any, str] = {(src_id, key): "old" for src_id in (1, 2) for key in range(4)}
        held = dict(rows)
        left = list(enumerate(windows, 110))

        def go_on(count: int) -> None:
            for scn, writes in left[:count]:
                f.apply(scn, *changes_of(scn, writes, rows))
            del left[:count]

        go_on(first)
        walker = Walker(
            Direct(f.store),
            SRC_IDS,
            since_scn=101 if has_slept else 0,
            batch_bytes=batch_bytes,
            before_page=lambda _: go_on(windows_a_page),
            rows=held if has_slept else {},
        )
        if is_linear:
            walker.linear()
        else:
            walker.classic()
        at = {(src_id, key): "old" for src_id in (1, 2) for key in range(4)}
        for scn, writes in enumerate(windows, 110):
            if scn <= walker.checkpoint.bootstrap_target_scn:
                changes_of(scn, writes, at)
        assert walker.rows == at
