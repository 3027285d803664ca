"""The GTIDs of a frame are found among its events, by the compiled walk as by the other one."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from databus.relay.log.gtids import frame_gtids
from databus.relay.log.gtids._frame_gtids import gtids_of as compiled
from databus.relay.log.gtids.frame_gtids import (
    ANY,
    MOST_NUMBER,
    MOST_PREFIXES,
    GtidKey,
    merged,
    plain_gtids_of,
    prefix_bytes,
    prefix_text,
    split_gtid,
)
from databus.schemas.event.v2 import decode
from tests.relay.log.gtids.windows import UUID, row, window
from tests.relay.ring.model import make_event, make_window, split_events

GTIDS = st.one_of(
    st.none(),
    st.from_regex(r"[0-3]-[1-2]-\d{1,20}", fullmatch=True),
    st.from_regex(rf"{UUID}:(tag:)?\d{{1,19}}", fullmatch=True),
    st.text(max_size=300),
)


@pytest.mark.parametrize(
    ("gtid", "prefix", "number"),
    [
        ("0-1-17", b"0-1-", 17),
        (f"{UUID}:17", f"{UUID}:".encode(), 17),
        (f"{UUID}:tag:9", f"{UUID}:tag:".encode(), 9),
        ("0-1-18446744073709551615", b"0-1-1", 8446744073709551615),
        ("17", b"", 17),
        ("none", b"none", 0),
        ("", b"", 0),
        ("0-1-007", b"0-1-", 7),
    ],
)
def test_a_gtid_is_a_prefix_and_a_number(gtid: str, prefix: bytes, number: int) -> None:
    assert split_gtid(gtid.encode()) == (prefix, number)
    assert plain_gtids_of(row(1, gtid)) == compiled(row(1, gtid)) == {prefix: (number, number)}


def test_each_prefix_has_its_lowest_and_its_highest_number() -> None:
    gtids = ["0-1-5", "0-2-9", "0-1-3", f"{UUID}:1", "0-1-4", None, "0-2-12"]
    data = b"".join(window(scn, gtid, 2).data for scn, gtid in enumerate(gtids, 1))
    expected = {b"0-1-": (3, 5), b"0-2-": (9, 12), f"{UUID}:".encode(): (1, 1)}
    assert compiled(data) == plain_gtids_of(data) == expected


def test_events_without_metadata_and_no_events_have_none() -> None:
    for data in (b"", make_window(1).data, window(1, None).data):
        assert compiled(data) == plain_gtids_of(data) == {}


def test_what_cannot_be_read_and_what_is_too_much_may_be_any() -> None:
    many = [row(1, f"{number}-1-7") for number in range(MOST_PREFIXES + 1)]
    assert compiled(b"".join(many[:-1])) == plain_gtids_of(b"".join(many[:-1])) != ANY
    cut = row(1, "0-1-7")[:-1]
    for data in (b"".join(many), row(1, "x" * 256 + "1"), row(1, "x" * 9000), cut, b"x" * 60):
        assert compiled(data) == plain_gtids_of(data) == ANY
    assert GtidKey(b"whatever", MOST_NUMBER).is_in(ANY)


@given(st.lists(GTIDS, max_size=40))
def test_no_gtid_of_a_frame_is_missed(gtids: list[str | None]) -> None:
    events = [row(1, gtid, key) for key, gtid in enumerate(gtids)]
    found = compiled(b"".join([*events, make_event(1)]))
    assert found == plain_gtids_of(b"".join([*events, make_event(1)]))
    for gtid in gtids:
        assert gtid is None or split_gtid(gtid.encode()).is_in(found)


@given(st.lists(GTIDS, min_size=1, max_size=4), st.data())
def test_both_walks_find_the_same_in_damaged_bytes(
    gtids: list[str | None], data: st.DataObject
) -> None:
    events = bytearray(b"".join(row(1, gtid, b"key") for gtid in gtids))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(events) - 1))
        events[at] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF, events[at] ^ 1]))
    harmed = bytes(events[: data.draw(st.integers(0, len(events)))])
    assert compiled(harmed) == plain_gtids_of(harmed)


def test_ranges_of_frames_are_those_of_all_their_gtids() -> None:
    one, other = {b"a": (1, 5), b"b": (2, 2)}, {b"a": (0, 3), b"c": (7, 8)}
    assert merged(one, other) == {b"a": (0, 5), b"b": (2, 2), b"c": (7, 8)}


@given(st.binary(max_size=20))
def test_a_prefix_comes_back_from_json(prefix: bytes) -> None:
    assert prefix_bytes(prefix_text(prefix)) == prefix


def test_the_compiled_walk_is_used_where_it_was_built() -> None:
    assert frame_gtids.gtids_of is compiled
    for event in split_events(window(1, "0-1-7", 3).data):
        assert decode(event)[1] == len(event)
