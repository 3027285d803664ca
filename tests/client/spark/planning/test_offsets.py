"""Offsets: the same text for the same place, and the ranges between two of them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from databus.client.spark.planning.offsets import (
    AtScn,
    Group,
    InSnapshot,
    Place,
    Proof,
    QueryOffset,
    from_offset,
    to_offset,
)
from databus.client.spark.planning.ranges import (
    LogRange,
    Range,
    SnapshotEnd,
    SnapshotRange,
    cut_rows,
    cut_windows,
    range_from_text,
    range_to_text,
    ranges_between,
)
from databus.schemas.errors import CheckpointError

SOURCES = ("shop.orders", "shop.people")
SCNS = st.integers(0, (1 << 63) - 1)

at_scn = st.builds(AtScn, SCNS, SCNS, st.none() | SCNS)
in_snapshot = st.builds(
    InSnapshot,
    at_scn=SCNS,
    since_scn=SCNS,
    source=st.sampled_from(SOURCES),
    row=SCNS,
    server=st.text(max_size=9),
    store=st.text(max_size=9),
    is_read=st.booleans(),
    left=st.none() | st.tuples(st.sampled_from(SOURCES)),
)
places = st.dictionaries(st.text(max_size=5), at_scn | in_snapshot, max_size=3)


@given(places)
def test_an_offset_is_read_back_after_spark_kept_it_as_text(places: dict[str, Place]) -> None:
    for offset in (QueryOffset(SOURCES, places), QueryOffset(SOURCES, places, places)):
        assert from_offset(json.loads(json.dumps(to_offset(offset)))) == offset


@given(places, st.randoms())
def test_equal_places_have_equal_texts_whatever_their_order(places, random) -> None:  # type: ignore[no-untyped-def]
    shuffled = list(places.items())
    random.shuffle(shuffled)
    names = list(SOURCES)
    random.shuffle(names)
    offset = QueryOffset(tuple(names), dict(shuffled), dict(shuffled))
    same = QueryOffset(SOURCES, places, places)
    assert json.dumps(to_offset(offset)) == json.dumps(to_offset(same))


@pytest.mark.parametrize(
    "offset",
    [
        {},
        {"v": 2, "physical": {}, "sources": list(SOURCES)},
        {
            "v": 1,
            "joining": {"shop.orders": {"scn": 1, "timeMs": 0}},
            "physical": {},
            "sources": [],
        },
        {"v": 1, "physical": {"shop": {"scn": -2, "timeMs": 0}}, "sources": []},
        {"v": 1, "physical": {"shop": {"scn": True, "timeMs": 0}}, "sources": []},
        {"v": 1, "physical": {"shop": 7}, "sources": []},
        {"v": 1, "physical": [], "sources": []},
    ],
)
def test_an_offset_that_makes_no_sense_is_shown(offset: dict[str, object]) -> None:
    with pytest.raises(CheckpointError, match="another checkpoint folder"):
        from_offset(offset)


def test_an_offset_of_the_version_before_says_nothing_of_what_is_left() -> None:
    snapshot = {
        **{"atScn": 9, "isRead": False, "row": 3, "server": "s", "sinceScn": 0},
        **{"source": "shop.orders", "store": "x"},
    }
    offset = {"physical": {"shop": {"snapshot": snapshot}}, "sources": ["shop.orders"], "v": 1}
    found = from_offset(offset)
    place = found.places["shop"]
    assert isinstance(place, InSnapshot)
    assert place.left is None
    assert to_offset(found) == offset


def snapshot(**more: object) -> InSnapshot:
    values = {
        "at_scn": 50,
        "since_scn": 0,
        "source": "shop.orders",
        "row": 10,
        "server": "s",
        "store": "x",
    }
    return InSnapshot(**{**values, **more})  # type: ignore[arg-type]


def between(start: Place | None, end: Place) -> list[Range]:
    return ranges_between(Group("shop", SOURCES), start, end)


def test_the_first_batch_begins_where_its_end_says() -> None:
    assert between(None, AtScn(9, from_scn=4)) == [LogRange("shop", SOURCES, 4, 9)]


def test_a_task_is_told_the_windows_that_prove_the_log_of_its_range() -> None:
    window = (8, 80, "shop.people")
    begin, end = Proof((4, 40), (4, 40, "shop.orders")), Proof((8, 80), window)
    for start, proof in (
        (AtScn(4, proof=begin), begin),
        # The mark of the end may be of sources that another one has caught up with.
        (AtScn(4), Proof(None, window)),
        (None, Proof(None, window)),
    ):
        (one,) = between(start, AtScn(9, from_scn=4, proof=end))
        told = range_from_text(range_to_text(one))
        assert isinstance(told, LogRange)
        assert [part.proof for part in cut_windows(told, [5])] == [proof, proof]


def test_tasks_share_windows_at_the_ends_of_some() -> None:
    one = LogRange("shop", SOURCES, 4, 9)
    assert cut_windows(one, []) == [one]
    found = cut_windows(one, [5, 7])
    assert [(part.from_scn, part.to_scn) for part in found] == [(4, 5), (5, 7), (7, 9)]


@given(st.integers(0, 50), st.integers(1, 50), st.integers(1, 9))
def test_tasks_share_a_snapshots_rows_by_their_ids(first: int, count: int, parts: int) -> None:
    one = SnapshotRange("shop", "shop.orders", first, first + count, 9, 0, "http://s", "store")
    found = cut_rows(one, parts)
    rows = [row for part in found for row in range(part.from_row + 1, part.to_row + 1)]
    assert rows == list(range(first + 1, first + count + 1))
    assert len(found) == min(parts, count)


def test_nothing_is_read_where_nothing_moved() -> None:
    assert between(AtScn(4), AtScn(4)) == []
    assert between(None, AtScn(4, from_scn=4)) == []


def test_a_batch_that_goes_back_is_refused() -> None:
    with pytest.raises(CheckpointError, match="goes back"):
        between(AtScn(10), AtScn(9))


def test_a_first_batch_without_its_beginning_is_refused() -> None:
    with pytest.raises(CheckpointError, match="has no begin for the batch that ends at scn 9"):
        between(None, AtScn(9))


def test_a_snapshot_is_read_on_from_the_row_where_it_was() -> None:
    (found,) = between(snapshot(row=10), snapshot(row=25))
    assert isinstance(found, SnapshotRange)
    assert (found.from_row, found.to_row) == (10, 25)


@pytest.mark.parametrize(
    "start",
    [None, AtScn(4), snapshot(row=99, store="another"), snapshot(row=99, source="shop.people")],
)
def test_a_snapshot_that_begins_is_read_from_its_first_row(start: Place | None) -> None:
    (found,) = between(start, snapshot(row=25))
    assert isinstance(found, SnapshotRange)
    assert (found.from_row, found.to_row) == (0, 25)


def test_the_end_of_a_whole_snapshot_is_marked_for_each_source() -> None:
    start = snapshot(is_read=True)
    assert between(start, AtScn(50)) == [SnapshotEnd("shop", SOURCES, 50)]


def test_the_end_of_what_changed_since_has_no_mark() -> None:
    assert between(snapshot(is_read=True, since_scn=7), AtScn(50)) == []


@given(
    st.builds(LogRange, st.text(), st.just(SOURCES), SCNS, SCNS)
    | st.builds(SnapshotEnd, st.text(), st.just(SOURCES), SCNS)
)
def test_a_range_is_read_back_from_its_text(one: LogRange | SnapshotEnd) -> None:
    assert range_from_text(range_to_text(one)) == one
