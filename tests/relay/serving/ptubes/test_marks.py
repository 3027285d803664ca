"""What proves that a checkpoint is of the log where it is resumed."""

from __future__ import annotations

from hypothesis import given, strategies as st

from databus.relay.serving.ptubes.marks import Claim, claim_of, members_of_mark, members_of_row
from databus.relay.serving.ptubes.places import NO_UUID, Mode, PtubesCheckpoint
from databus.relay.sources.epochs import Epoch
from databus.schemas.scn import MAX_SCN, BinlogPosition

SERVER = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
SCN = BinlogPosition(1, 7, 500).to_scn()
EPOCHS = (
    Epoch(0, "a", "mysql://a", 100, -1, "bin.000001", 4, None, 0),
    Epoch(1, "b", "mysql://b", BinlogPosition(1, 6, 200).to_scn(), -1, "bin.000006", 4, None, 0),
)


def place(uuid: str, number: int, row_index: int = -1, ms: int = 5000) -> PtubesCheckpoint:
    return PtubesCheckpoint(Mode.NORMAL, 1, 7, 500, row_index, ms, uuid, number)


@given(st.integers(0, MAX_SCN))
def test_a_mark_that_was_told_is_the_window_again(timestamp_ns: int) -> None:
    mark = (SCN - 100, timestamp_ns)
    told = claim_of(place(*members_of_mark(mark, 1)), SCN, EPOCHS)
    assert told is not None
    assert told.mark == mark
    assert not told.is_refuted(mark, None)
    assert told.is_refuted((mark[0], timestamp_ns + 1), None)
    assert told.is_refuted((mark[0] - 1, timestamp_ns), None)


@given(st.integers(0, MAX_SCN), st.integers(1, 10**18 - 1))
def test_a_row_is_known_by_its_own_window_and_keeps_its_number(ns: int, number: int) -> None:
    uuid, told_number = members_of_row(f"0-1-{number}", (SCN + 1, ns), 1)
    assert told_number == number
    told = claim_of(place(uuid, number, 3), SCN, EPOCHS)
    assert told == Claim(SCN + 1, ns)
    assert members_of_row(f"{SERVER}:{number}", (SCN + 1, ns), 1) == (SERVER, number)


def test_a_row_without_a_gtid_is_known_by_its_window() -> None:
    told = claim_of(place(*members_of_row(None, (SCN + 1, 77), 1), 3), SCN, EPOCHS)
    assert told == Claim(SCN + 1, 77)


def test_a_row_of_an_older_relay_is_known_by_its_time_and_its_gtid() -> None:
    told = claim_of(place(SERVER, 23, 0), SCN, EPOCHS)
    assert told == Claim(SCN + 1, newest_ms=5000, gtid=(SERVER, 23))
    same = (SCN + 1, 5_000_999_999)
    assert not told.is_refuted(same, f"{SERVER}:23")
    assert not told.is_refuted((SCN + 1, 4_000_000_000), None)
    assert told.is_refuted(same, f"{SERVER}:24")
    assert told.is_refuted((SCN + 1, 5_001_000_000), f"{SERVER}:23")
    assert told.is_refuted((SCN - 1, 4_000_000_000), None)
    numbered = claim_of(place(NO_UUID, 23, 0), SCN, EPOCHS)
    assert numbered == Claim(SCN + 1, newest_ms=5000)


def test_what_an_older_relay_wrote_without_a_window_says_nothing() -> None:
    assert claim_of(place(NO_UUID, 0), SCN, EPOCHS) is None
    assert claim_of(place(NO_UUID, 0, 3), SCN, EPOCHS) is None  # a statement, perhaps


def test_a_window_of_another_epoch_is_not_told_and_not_believed() -> None:
    before = (BinlogPosition(0, 7, 400).to_scn(), 5)
    assert members_of_mark(before, 1) == (NO_UUID, 0)
    early = (BinlogPosition(1, 6, 100).to_scn(), 5)  # in an epoch of the server before this one
    assert claim_of(place(*members_of_mark(early, 1)), SCN, EPOCHS) is None
    late = (SCN + 2, 5)
    assert claim_of(place(*members_of_mark(late, 1)), SCN, EPOCHS) is None


@given(st.text(), st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-1, 3))
def test_whatever_a_stranger_writes_is_no_window_or_one_up_to_its_place(
    uuid: str, number: int, row_index: int
) -> None:
    for text in (uuid, members_of_mark((SCN, 5), 1)[0], members_of_row("0-1-2", (SCN, 5), 1)[0]):
        told = claim_of(place(text, number, row_index), SCN, EPOCHS)
        assert told is None or 0 < told.scn <= SCN + 1
