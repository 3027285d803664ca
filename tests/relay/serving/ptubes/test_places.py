"""Checkpoints of Ptubes' clients, and the SCNs that they are."""

from __future__ import annotations

from hypothesis import given, strategies as st

from databus.relay.serving.ptubes.places import (
    NO_UUID,
    NOT_MARKED,
    PLAIN_FILE,
    Mode,
    PlaceTimes,
    PtubesCheckpoint,
    epoch_of,
    first_commit_ms,
    gtid_members,
    scn_of,
    server_number,
    split_scn,
)
from databus.relay.sources.epochs import Epoch
from databus.schemas.scn import BinlogPosition


def epoch(number: int, server: str, first_scn: int) -> Epoch:
    return Epoch(number, server, "mysql://x", first_scn, -1, "bin.000001", 4, None, 0)


FIRST = epoch(0, "server-a", 100)
SECOND = epoch(1, "server-b", BinlogPosition(1, 7, 500).to_scn())
BACK = epoch(2, "server-a", BinlogPosition(2, 9, 500).to_scn())
EPOCHS = (FIRST, SECOND, BACK)


def checkpoint(file: int, offset: int, server: int) -> PtubesCheckpoint:
    return PtubesCheckpoint(Mode.NORMAL, server, file, offset)


@given(st.integers(0, 2), st.integers(0, (1 << 23) - 1), st.integers(0, (1 << 32) - 1))
def test_a_place_that_was_told_is_the_scn_again(number: int, file: int, offset: int) -> None:
    scn = BinlogPosition(number, file, offset).to_scn()
    if number == 2 and (file, offset) < (9, 499):
        return  # no window of it was read there
    if number == 0 and (file, offset) >= (9, 499):
        return
    if number == 1 and (file, offset) < (7, 499):
        return
    if number and file == 0:
        return
    found, shown_file, shown_offset = split_scn(scn)
    told = checkpoint(shown_file, shown_offset, server_number(EPOCHS, found))
    if shown_file == PLAIN_FILE:
        told = told._replace(server_id=NOT_MARKED)
    assert scn_of(told, EPOCHS) == scn


def test_places_of_a_server_that_is_not_known_are_none() -> None:
    for server in (1, 4711, -1, server_number([epoch(0, "other", 1)], 0)):
        assert scn_of(checkpoint(7, 500, server), EPOCHS) is None
    assert scn_of(checkpoint(0, 500, server_number(EPOCHS, 0)), EPOCHS) is None
    assert scn_of(checkpoint(7, -1, server_number(EPOCHS, 0)), EPOCHS) is None


def test_server_numbers_are_positive_and_no_readers() -> None:
    numbers = {server_number(EPOCHS, number) for number in (0, 1, 2)}
    assert len(numbers) == 2
    assert all(1 << 30 <= number < (1 << 31) - 1 for number in numbers)
    assert server_number((), 0) == NOT_MARKED


def test_gtids_are_split_as_clients_have_them() -> None:
    uuid = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
    assert gtid_members(f"{uuid}:23") == (uuid, 23)
    assert gtid_members("0-1-17") == (NO_UUID, 17)
    assert gtid_members(None) == (NO_UUID, 0)
    assert gtid_members(f"{uuid}:tag:x") == (NO_UUID, 0)


def test_times_of_places_grow_along_the_log_whatever_the_commit_times() -> None:
    times = PlaceTimes(PtubesCheckpoint(Mode.EARLIEST), None)
    assert [times.of(0, ms) for ms in (5000, 9000, 7000, 9000, 9500)] == [
        *(5000, 9000, 9000, 9000, 9500),
    ]


def test_places_of_the_next_server_are_newer_than_those_of_the_one_before() -> None:
    times = PlaceTimes(PtubesCheckpoint(Mode.EARLIEST), None)
    assert [times.of(*one) for one in ((0, 5000), (1, 5000), (1, 5000), (2, 4000))] == [
        *(5000, 5001, 5001, 5002),
    ]


def test_times_go_on_from_the_place_where_a_session_begins() -> None:
    known = checkpoint(7, 500, server_number(EPOCHS, 1))._replace(timestamp_ms=9000)
    assert PlaceTimes(known, epoch_of(known, EPOCHS)).of(1, 8000) == 9000
    other = known._replace(server_id=4711)
    assert epoch_of(other, EPOCHS) is None
    assert PlaceTimes(other, epoch_of(other, EPOCHS)).of(1, 8000) == 9001


def test_a_place_of_another_relay_is_looked_for_from_before_its_commit() -> None:
    known = checkpoint(7, 500, server_number(EPOCHS, 1))._replace(timestamp_ms=9001)
    assert first_commit_ms(known) == 8000
    assert first_commit_ms(known._replace(timestamp_ms=9500)) == 9000
    assert first_commit_ms(known._replace(server_id=4711)) == 9001
    assert first_commit_ms(known._replace(timestamp_ms=-1)) == -1
