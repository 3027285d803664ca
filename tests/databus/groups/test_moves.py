"""The record of moves: who took what from whom within a day, and never more than some KiB."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from databus.groups.moves import (
    DAY_S,
    MOST_BYTES,
    GroupMoves,
    Move,
    note_taken,
    ranges_text,
    read_moves,
)
from databus.leases.file_records import FileRecords

NONE = GroupMoves("billing", 1000.0)


def read_back(moves: GroupMoves) -> GroupMoves:
    return GroupMoves.decode(moves.encode(), "billing")


def test_what_a_process_takes_came_from_who_took_it_before() -> None:
    first = NONE.taken(0, "a", {0, 1, 2, 3}, 1001.0)
    assert first.moves == (Move(1001.0, 0, "", "a", (0, 1, 2, 3)),)
    assert first.total == 0  # nobody had them before
    second = first.taken(0, "b", {2, 3}, 1002.0).taken(0, "c", {1, 3}, 1003.0)
    assert second.moves[1] == Move(1002.0, 0, "a", "b", (2, 3))
    assert set(second.moves[2:]) == {
        Move(1003.0, 0, "a", "c", (1,)),
        Move(1003.0, 0, "b", "c", (3,)),
    }
    assert second.total == 4
    assert read_back(second) == second


def test_what_a_process_takes_again_has_not_moved() -> None:
    twice = NONE.taken(0, "a", {0, 1}, 1001.0).taken(0, "a", {0, 1}, 1002.0)
    assert len(twice.moves) == 1
    assert twice.total == 0


def test_partitions_of_another_generation_are_others() -> None:
    resized = NONE.taken(0, "a", {0, 1}, 1001.0).taken(1, "b", {0, 1}, 1002.0)
    assert resized.moves[-1] == Move(1002.0, 1, "", "b", (0, 1))
    assert resized.total == 0


def test_what_is_older_than_a_day_is_dropped_and_its_owners_are_known_still() -> None:
    later = NONE.taken(0, "a", {0}, 1001.0).taken(0, "b", {0}, 1002.0 + DAY_S)
    assert later.moves == (Move(1002.0 + DAY_S, 0, "a", "b", (0,)),)
    assert later.since_s == 1002.0


def test_however_much_moves_the_record_stays_small_and_says_from_when_it_is_whole() -> None:
    chance, moves = random.Random(3), NONE
    for at in range(50):
        process = f"host-{chance.randrange(20)}:{at % 7}:" + "x" * 500
        moves = moves.taken(0, process, set(chance.sample(range(1024), 300)), 2000.0 + at)
        assert len(moves.encode()) <= MOST_BYTES
        moves = read_back(moves)
    assert moves.since_s > NONE.since_s
    assert all(one.at_s >= moves.since_s for one in moves.moves)
    assert moves.moves
    assert moves.total > 50 * 100


@pytest.mark.parametrize(
    ("numbers", "text"), [((), ""), ((5,), "5"), ((9, 1, 2, 3, 7, 8), "1-3,7-9"), ((0, 2), "0,2")]
)
def test_numbers_are_shown_as_ranges(numbers: tuple[int, ...], text: str) -> None:
    assert ranges_text(numbers) == text


def test_a_damaged_record_begins_anew(tmp_path: Path) -> None:
    records = FileRecords(tmp_path)
    note_taken(records, "billing", 0, "a", {1})
    (path,) = (tmp_path / "moves").glob("*.json")
    path.write_bytes(path.read_bytes().replace(b"billing", b"billinh"))
    assert read_moves(records, "billing") is None
    note_taken(records, "billing", 0, "b", {1})
    found = read_moves(records, "billing")
    assert found is not None
    assert [(one.former, one.owner) for one in found.moves] == [("", "b")]
