"""How far rows reach in a store, against the pages that then bring them."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain, groupby, pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings, strategies as st

from databus.bootstrap.server.measure import measure
from databus.bootstrap.server.pages import Page, read_page
from databus.bootstrap.server.parameters import parse_measure_request, parse_page_request
from databus.bootstrap.server.source_lookup import Stores
from databus.bootstrap.store import (
    file as sqlite_bytes,
    log_table,
    snapshot_pages,
    snapshot_table,
)
from databus.bootstrap.store.file import joins_bytes
from databus.bootstrap.store.filter_sql import EVERY_KEY, RowFilter
from databus.bootstrap.store.log_table import LogRange
from databus.bootstrap.store.snapshot_pages import SnapshotRange
from databus.bootstrap.store.values import SnapshotBody, SnapshotMeasure
from databus.conf.settings import HttpSettings
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import BootstrapTooYoungError, InvalidParameterError
from databus.schemas.filters import EventFilter, ModFilter, RangeFilter
from databus.schemas.scn import MAX_SCN
from tests.bootstrap.filled import (
    ORDERS,
    PERSON,
    SRC_IDS,
    FilledStore,
    emptied,
    gone,
    make_filled,
    of_bytes,
    put,
)
from tests.bootstrap.walking import catch_up_at, snapshot_at, split

LIMITS = HttpSettings(max_response_bytes=1 << 22)
LISTED = {"shop": [PERSON.source, ORDERS.source]}
MOD = '{"partitionType":"MOD","filters":[{"numBuckets":3,"bktRange":{"start":0,"end":1}}]}'


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as made:
        snapshot_table.create(made, 1)
        log_table.create(made, 1)
        yield made


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[FilledStore]:
    made = make_filled(tmp_path / "shop.db", persons=300)
    yield made
    made.close()


@pytest.fixture(params=["joined", "row by row"])
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Let pages be joined by SQLite, and be read as where it cannot."""
    is_joined = request.param == "joined"
    with (
        patch.object(snapshot_pages, "joins_bytes", lambda: is_joined),
        patch.object(log_table, "joins_bytes", lambda: is_joined),
    ):
        yield request.param


def ask(filled: FilledStore, checkpoint: Checkpoint, **changes: Any) -> dict[str, int]:
    asked = {"sources": "1", "checkPoint": checkpoint.to_json(), "truncate": "true"}
    request = parse_measure_request(asked | {k: str(v) for k, v in changes.items()}, LIMITS)
    return measure(request, Stores({"shop": filled.store}), LISTED)


def page(filled: FilledStore, checkpoint: Checkpoint, **changes: Any) -> Page:
    asked = {"sources": "1", "checkPoint": checkpoint.to_json(), "batchSize": 1 << 22, "maxev": 2}
    asked["truncate"] = "true"
    request = parse_page_request({k: str(v) for k, v in (asked | changes).items()}, LIMITS)
    return read_page(request, Stores({"shop": filled.store}), LISTED)


# -- the snapshot table ----------------------------------------------------------------------

FILTERS: Sequence[EventFilter | None] = (None, ModFilter(7, 2, 4), RangeFilter(20, 400))


def fill(connection: sqlite3.Connection, shape: str, chosen: random.Random) -> None:
    """Fill the table with rows of sizes and at ids that are of a shape."""
    sizes: dict[str, Callable[[int], int]] = {
        "even": lambda _: 100,
        "small, then large": lambda n: 5 if n < 250 else 5000,
        "some large": lambda _: 20_000 if chosen.random() < 0.02 else 30,
        "many sizes": lambda _: chosen.randrange(1, 500),
        "holes": lambda _: 80,
        "one": lambda _: 300,
    }
    keys = range(1) if shape == "one" else range(500)
    events = [
        of_bytes(
            key,
            chosen.randrange(1, 20),
            chosen.randbytes(sizes[shape](key)),
            chosen.random() < 0.1,
        )
        for key in keys
    ]
    snapshot_table.merge(connection, 1, events, 77)
    if shape == "holes":
        connection.execute("delete from snapshot_1 where id > 90 and id < 480")


def expected(
    connection: sqlite3.Connection, snapshot_range: SnapshotRange, most_rows: int, most_bytes: int
) -> tuple[bytes, SnapshotMeasure]:
    """Return the events that fit, and how far they reach, with a loop over all rows."""
    rows, last_id, is_last, events = 0, snapshot_range.after_id, True, b""
    wanted = snapshot_range.wanted
    assert not isinstance(wanted, RowFilter)
    for row_id, key, scn, deleted_ns, event in connection.execute(
        "select id, key, scn, deleted_ns, event from snapshot_1 order by id"
    ).fetchall():
        is_wanted = wanted is None or wanted.matches(key)
        is_known = deleted_ns == 0 or scn > snapshot_range.deleted_after_scn
        is_within = snapshot_range.after_id < row_id <= snapshot_range.until_id
        if not (is_wanted and is_known and is_within):
            continue
        if not snapshot_range.since_scn < scn <= snapshot_range.start_scn:
            continue
        if rows and (rows + 1 > most_rows or len(events) + len(event) > most_bytes):
            is_last = False
            break
        rows, last_id, events = rows + 1, row_id, events + event
    return events, SnapshotMeasure(last_id, rows, len(events), is_last)


def check_body(
    body: SnapshotBody, events: bytes, measure: SnapshotMeasure, most_bytes: int
) -> None:
    """Check a page against one that is as full as can be."""
    joined, found = b"".join(body.parts), body.measure
    if measure.size_bytes > most_bytes:
        assert found._replace(is_last=measure.is_last) == measure
        assert joined in (b"", events)
        return
    assert events.startswith(joined)
    assert found.size_bytes == len(joined)
    if len(joined) < len(events):
        assert not found.is_last
        assert 0.95 * most_bytes <= len(joined)
        assert found.last_id < measure.last_id
    else:
        assert found == measure


@pytest.mark.parametrize(
    "shape", ["even", "small, then large", "some large", "many sizes", "holes", "one"]
)
@pytest.mark.parametrize("few_changed", [1, 10_000])
def test_rows_are_counted_and_joined_as_a_loop_over_them_would(
    connection: sqlite3.Connection, shape: str, few_changed: int, way: str
) -> None:
    chosen = random.Random(shape)
    fill(connection, shape, chosen)
    for _ in range(150):
        snapshot_range = SnapshotRange(
            since_scn=chosen.choice([0, 0, 0, 5]),
            start_scn=chosen.choice([15, 99]),
            after_id=chosen.choice([0, 0, chosen.randrange(600)]),
            wanted=chosen.choice(FILTERS),
            until_id=chosen.choice([MAX_SCN, MAX_SCN, chosen.randrange(700)]),
            deleted_after_scn=chosen.choice([MAX_SCN, 0, 9]),
        )
        most_rows = chosen.choice([MAX_SCN, 1, chosen.randrange(1, 600)])
        most_bytes = chosen.choice([MAX_SCN, 1, 300, chosen.randrange(1, 100_000)])
        with patch.object(snapshot_pages, "FEW_CHANGED", few_changed):
            measured = snapshot_pages.measure(connection, 1, snapshot_range, most_rows, most_bytes)
            body = snapshot_pages.body(connection, 1, snapshot_range, most_bytes)
        assert measured == expected(connection, snapshot_range, most_rows, most_bytes)[1]
        check_body(body, *expected(connection, snapshot_range, MAX_SCN, most_bytes), most_bytes)


def test_a_range_of_keys_that_are_no_numbers_is_refused(
    connection: sqlite3.Connection, way: str
) -> None:
    events = [of_bytes(key, 5) for key in (b"1", b"2", b"not a number")]
    snapshot_table.merge(connection, 1, events, 0)
    log_table.append(connection, 1, list(enumerate(events)), 0)
    wanted = RangeFilter(0, 9)
    for since_scn in (0, 4):
        snapshot_range = SnapshotRange(since_scn, 99, 0, wanted)
        with pytest.raises(InvalidParameterError, match="RANGE filter needs keys"):
            snapshot_pages.measure(connection, 1, snapshot_range, MAX_SCN, MAX_SCN)
        with pytest.raises(InvalidParameterError, match="RANGE filter needs keys"):
            snapshot_pages.body(connection, 1, snapshot_range, MAX_SCN)
    with pytest.raises(InvalidParameterError, match="RANGE filter needs keys"):
        log_table.measure(connection, LogRange([1], (0, -1), 9, {1: wanted}), MAX_SCN, MAX_SCN)


def test_an_sqlite_that_cuts_bytes_at_a_zero_is_found_out() -> None:
    joins_bytes.cache_clear()
    with patch.object(sqlite_bytes, "_PROBE", "select x'00ff'"):
        assert not joins_bytes()
    joins_bytes.cache_clear()
    assert joins_bytes()


# -- a planned snapshot ----------------------------------------------------------------------


@pytest.mark.parametrize("filter", ["", MOD])
def test_ranges_as_measured_bring_each_row_once(filled: FilledStore, filter: str, way: str) -> None:
    filled.apply(110, put(1, 2, 110), gone(1, 3, 110), put(1, 1000, 110))
    begin = snapshot_at(PERSON.source, 110)
    everything = split(page(filled, begin, filter=filter).body)[0]
    at, is_last, events = begin, False, []
    while not is_last:
        measured = ask(filled, at, rows=40, filter=filter)
        until = measured["snapshotOffset"]
        found, is_over = [], False
        while not is_over:
            one = page(filled, at, untilRow=until, filter=filter, batchSize=3000)
            rows, at = split(one.body)
            found += rows
            is_over = one.is_phase_over
        assert (len(found), at.snapshot_offset) == (measured["rows"], until)
        assert len(found) == 40 or measured["isLast"]
        events += found
        is_last = bool(measured["isLast"])
    assert events == everything
    assert ask(filled, at, filter=filter) == {
        "snapshotOffset": at.snapshot_offset,
        "rows": 0,
        "bytes": 0,
        "isLast": True,
        "maxRow": 301,
    }


def test_a_page_that_ends_at_a_row_asked_for_does_not_say_that_the_snapshot_is_over(
    filled: FilledStore,
) -> None:
    begin = snapshot_at(PERSON.source, 101)
    for until in (0, 7, 10**9):
        found = page(filled, begin, untilRow=until)
        assert (found.is_phase_over, found.checkpoint.snapshot_offset) == (True, until)
        assert found.rows == min(until, 300)
    assert page(filled, begin).checkpoint.snapshot_offset == -1
    looked_at = page(filled, begin, untilRow=7, output="json_plain_value")
    assert looked_at.is_phase_over
    assert len(looked_at.body.splitlines()) == 7 + 1


def test_who_was_away_is_measured_what_changed_and_what_is_gone(filled: FilledStore) -> None:
    filled.apply(110, gone(1, 2, 110), put(1, 3, 110), put(1, 4, 110))
    measured = ask(filled, snapshot_at(PERSON.source, 110, since_scn=105), rows=2)
    assert (measured["rows"], measured["snapshotOffset"], measured["isLast"]) == (2, 3, False)


def test_an_emptied_table_is_one_row(filled: FilledStore) -> None:
    filled.apply(110, emptied(1, 110))
    assert ask(filled, snapshot_at(PERSON.source, 110, since_scn=105))["rows"] == 1
    assert EVERY_KEY == 2


def test_the_last_row_is_told_without_looking_at_the_rows(filled: FilledStore) -> None:
    begin = snapshot_at(PERSON.source, 101)
    assert ask(filled, begin, rows=1)["maxRow"] == 300
    filled.apply(110, gone(1, 299, 110), put(1, 1000, 110))
    # A row that came later has a higher id, one that is deleted keeps its own.
    assert ask(filled, begin, rows=1, untilRow=5)["maxRow"] == 301
    filled.apply(120, emptied(1, 120))
    assert ask(filled, begin, rows=1)["maxRow"] == 1


# -- the log ---------------------------------------------------------------------------------

CHANGES = st.lists(
    st.lists(st.tuples(st.sampled_from([1, 2]), st.integers(1, 9)), min_size=1, max_size=6),
    min_size=1,
    max_size=8,
)


@given(
    CHANGES,
    st.sampled_from(["1", "2", "1,2"]),
    st.integers(1, 12) | st.just(MAX_SCN),
    st.integers(1, 3000) | st.just(MAX_SCN),
    st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_the_log_is_measured_in_whole_windows(
    tmp_path_factory: pytest.TempPathFactory,
    windows: list[list[tuple[int, int]]],
    sources: str,
    rows: int,
    size: int,
    is_filtered: bool,
) -> None:
    filled = FilledStore(tmp_path_factory.mktemp("log") / "shop.db")
    with closing(filled):
        for source in SRC_IDS:
            filled.seed_rows(source, range(3))
        filled.apply(101)
        for number, changes in enumerate(windows):
            scn = 110 + 10 * number
            filled.apply(scn, *(put(src_id, key, scn) for src_id, key in changes))
        target = 110 + 10 * (len(windows) - 1)
        changed = {"filter": MOD} if is_filtered else {}
        begin = catch_up_at(101, target)
        events = split(page(filled, begin, sources=sources, **changed).body)[0]
        scn, count, count_bytes = target, 0, 0
        sizes = [len(one) for one in _cut(page(filled, begin, sources=sources, **changed).body)]
        by_scn = groupby(zip(events, sizes, strict=True), key=lambda one: one[0].scn)
        before = -1
        for window_scn, those in by_scn:
            found = [size for _, size in those]
            too_many = count + len(found) > rows or count_bytes + sum(found) > size
            if count and too_many:
                scn = before
                break
            before, count, count_bytes = window_scn, count + len(found), count_bytes + sum(found)
        measured = ask(filled, begin, sources=sources, rows=rows, bytes=size, **changed)
        assert measured["scn"] == scn
        assert (measured["rows"], measured["bytes"]) == (count, count_bytes)
        assert (measured["fromScn"], measured["maxScn"]) == (101, target)
        assert (measured["timestampNs"], measured["maxTimestampNs"]) == (scn * 10, target * 10)


@pytest.mark.parametrize("filter", ["", MOD])
def test_the_log_of_some_rows_has_each_change_in_one_part(
    filled: FilledStore, filter: str, way: str
) -> None:
    chosen = random.Random(5)
    for scn in range(110, 300, 10):
        keys = chosen.sample(range(320), 5)
        filled.apply(scn, *(chosen.choice([put, gone])(1, key, scn) for key in keys))
    begin = catch_up_at(101, 290)
    events = split(page(filled, begin, filter=filter).body)[0]
    bounds = [0, 60, 120, 120, 250, MAX_SCN]
    found = []
    for after, until in pairwise(bounds):
        asked = {"filter": filter, "afterRow": after, "untilRow": until}
        body = page(filled, begin, **asked).body
        part = split(body)[0]
        measured = ask(filled, begin, **asked)
        assert (measured["rows"], measured["bytes"]) == (len(part), sum(map(len, _cut(body))))
        found.append(part)
    assert [bool(part) for part in found] == [True, True, False, True, True]
    assert sorted(chain.from_iterable(found)) == sorted(events)
    keys_of = [{event.key for event in part} for part in found]
    assert sum(map(len, keys_of)) == len({event.key for event in events})


def test_that_a_table_was_emptied_is_in_the_log_of_any_rows(filled: FilledStore) -> None:
    filled.apply(110, put(1, 2, 110), emptied(1, 110))
    (event,) = split(page(filled, catch_up_at(101, 110), afterRow=50, untilRow=60).body)[0]
    assert event.key == b""


def test_rows_whose_ids_are_forgotten_are_not_left_out_in_silence(filled: FilledStore) -> None:
    begin = catch_up_at(101, 101, start_scn=99)
    assert page(filled, begin).is_phase_over
    for read in (page, ask):
        with pytest.raises(BootstrapTooYoungError, match="up to scn 100 have no ids any more"):
            read(filled, begin, untilRow=5)


def test_the_log_of_rows_of_another_store_is_refused(filled: FilledStore) -> None:
    begin = replace(catch_up_at(101, 101), extra={"bootstrap_store_id": "other"})
    with pytest.raises(BootstrapTooYoungError, match="begun on store other"):
        page(filled, begin, untilRow=5)


def _cut(body: bytes) -> list[bytes]:
    """Return the events of a page, without the checkpoint behind them."""
    events, at = [], 0
    while at < len(body):
        length = int.from_bytes(body[at + 17 : at + 21], "big")
        events.append(body[at : at + length])
        at += length
    return events[:-1]


@pytest.mark.parametrize("filter", ["", MOD])
@pytest.mark.parametrize("sources", ["1", "1,2", "2,1"])
@pytest.mark.parametrize("batch", [1000, 2500, 1 << 22])
def test_pages_of_the_log_have_each_change_once_in_order(
    filled: FilledStore, sources: str, batch: int, filter: str, way: str
) -> None:
    changes: list[tuple[int, int, int]] = []
    chosen = random.Random(9)
    for scn in range(110, 190):
        window = [(scn, chosen.choice([1, 2]), chosen.randrange(50)) for _ in range(scn % 7)]
        filled.apply(scn, *(put(src_id, key, scn) for _, src_id, key in window))
        changes += window
    asked = {int(src_id) for src_id in sources.split(",")}
    at, is_over, found = catch_up_at(101, 180), False, []
    while not is_over:
        one = page(filled, at, sources=sources, filter=filter, batchSize=batch)
        events, at = split(one.body)
        found += [(event.scn, event.src_id, event.key) for event in events]
        is_over = one.is_phase_over
        assert len(one.body) <= batch
    assert (at.window_scn, at.window_offset) == (180, -1)
    assert found == [
        (scn, src_id, key)
        for scn, src_id, key in changes
        if scn <= 180 and src_id in asked and not (filter and key % 3)
    ]


def test_of_a_window_read_in_part_the_rest_is_counted(filled: FilledStore) -> None:
    filled.apply(110, *(put(1 + n % 2, n, 110) for n in range(20)))
    at = replace(catch_up_at(110, 110, offset=3), bootstrap_start_scn=101)
    assert ask(filled, at)["rows"] == 7


def test_a_window_without_rows_has_no_time_but_the_newest(filled: FilledStore) -> None:
    filled.apply(110, put(2, 1, 110))
    filled.apply(120, put(2, 1, 120))
    assert ask(filled, catch_up_at(101, 110))["timestampNs"] == 0
    assert ask(filled, catch_up_at(101, 120))["timestampNs"] == 1200
