"""The text form of places: what is read, how it is written, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from databus.conf.named_places import (
    BinlogPlace,
    GtidPlace,
    GtidSetPlace,
    NamedPlace,
    ScnPlace,
    TimePlace,
    Word,
    parse_place,
    parse_source_start,
)
from databus.schemas.errors import SettingsError
from databus.schemas.scn import MAX_FILE_NUMBER, MAX_OFFSET, MAX_SCN

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
TEN_O_CLOCK_NS = 1_795_255_200_000_000_000


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("earliest", Word.EARLIEST),
        (" latest ", Word.LATEST),
        ("beginning", Word.BEGINNING),
        ("8589936646", ScnPlace(8589936646)),
        (8589936646, ScnPlace(8589936646)),
        ("scn:8589936646", ScnPlace(8589936646)),
        ("binlog:mysql-bin.000012:4567", BinlogPlace("mysql-bin.000012", 4567)),
        ("binlog:db.one.log.7:4", BinlogPlace("db.one.log.7", 4)),
        ("gtid:0-1-17", GtidPlace("0-1-17")),
        (f"gtid:{UUID.upper()}:17", GtidPlace(f"{UUID}:17")),
        (f"gtid:{UUID}:nightly:17", GtidPlace(f"{UUID}:nightly:17")),
        ("time:2026-11-21T10:00:00Z", TimePlace(TEN_O_CLOCK_NS)),
        ("2026-11-21T10:00:00Z", TimePlace(TEN_O_CLOCK_NS)),
        ("2026-11-21T10:00:00", TimePlace(TEN_O_CLOCK_NS)),
        ("time:2026-11-21T12:00:00.000001+02:00", TimePlace(TEN_O_CLOCK_NS + 1000)),
        ("time:2026-11-21", TimePlace(TEN_O_CLOCK_NS - 36_000_000_000_000)),
    ],
)
def test_a_place_is_read(text: str | int, place: NamedPlace) -> None:
    assert parse_place(text) == place


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "write earliest"),
        ("newest", "write earliest"),
        ("Earliest", "write earliest"),
        (-1, "write earliest"),
        (MAX_SCN + 1, "a number from 0 to"),
        ("scn:٣", "a number from 0 to"),
        ("scn:", "a number from 0 to"),
        ("binlog:mysql-bin.000012", "write binlog:FILE:OFFSET"),
        ("binlog:mysql-bin:4", "write binlog:FILE:OFFSET"),
        ("binlog:a/b.000001:4", "write binlog:FILE:OFFSET"),
        (f"binlog:a.{MAX_FILE_NUMBER + 1}:4", "write binlog:FILE:OFFSET"),
        (f"binlog:a.1:{MAX_OFFSET + 1}", "write binlog:FILE:OFFSET"),
        ("gtid:0-1", "of one transaction"),
        ("gtid:0-1-17,1-1-3", "of one transaction"),
        (f"gtid:{UUID}:1-17", "of one transaction"),
        ("time:yesterday", "write a time like"),
        ("time:2026-11-21T10:00:00.1234567Z", "to the microsecond at most"),
        ("time:1969-12-31T23:59:59Z", "between 1970 and 2262"),
        ("time:2500-01-01", "between 1970 and 2262"),
        ("2026-13-01", "write a time like"),
    ],
)
def test_what_names_no_place_is_refused(text: str | int, problem: str) -> None:
    with pytest.raises(SettingsError, match="names no place: .*" + problem):
        parse_place(text)


places = st.one_of(
    st.sampled_from(Word),
    st.integers(0, MAX_SCN).map(ScnPlace),
    st.builds(
        BinlogPlace,
        st.integers(0, MAX_FILE_NUMBER).map("mysql-bin.{:06}".format),
        st.integers(0, MAX_OFFSET),
    ),
    st.integers(0, (1 << 63) - 1).map(lambda n: GtidPlace(f"0-1-{n}")),
    # To the microsecond, as Python's times.
    st.integers(0, MAX_SCN // 1000).map(lambda us: TimePlace(us * 1000)),
)


@given(place=places)
def test_a_place_is_written_as_it_is_read(place: NamedPlace) -> None:
    assert parse_place(str(place)) == place


@given(text=st.text(max_size=40))
def test_any_text_is_a_place_or_refused(text: str) -> None:
    try:
        place = parse_place(text)
    except SettingsError:
        return
    assert parse_place(str(place)) == place


@given(place=places)
def test_a_relay_may_begin_wherever_a_consumer_may_but_at_the_rows_of_a_table(
    place: NamedPlace,
) -> None:
    if place is Word.BEGINNING:
        with pytest.raises(SettingsError, match="write earliest or latest"):
            parse_source_start(str(place))
    else:
        assert parse_source_start(str(place)) == place


def test_a_set_of_gtids_is_a_place_for_a_relay_only() -> None:
    text = f"gtid-set: {UUID}:1-5:9,\n{UUID}:tag:1"
    assert parse_source_start(text) == GtidSetPlace(f"{UUID}:1-5:9,{UUID}:tag:1")
    with pytest.raises(SettingsError, match="name the last transaction"):
        parse_place(text)
