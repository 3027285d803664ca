"""Where a sink begins, of two positions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from databus.client.sinks.contract import Position
from databus.client.sinks.rules.beginnings import (
    beginning,
    is_new,
    known_scn,
    with_known,
    with_own,
)
from databus.schemas.checkpoint import Checkpoint
from tests.client.sinks.changes import made


def at(scn: int) -> Position:
    return Position("shop", Checkpoint.at(scn))


def stored(scn: int, own: Position | None) -> Position:
    return Position("shop", with_own(Checkpoint.at(scn), own))


@pytest.mark.parametrize(
    ("kept", "own", "expected"),
    [
        (None, None, None),
        (stored(5, None), None, 5),
        (None, at(5), 5),
        # The target has come further than what is stored, or was put back.
        (stored(5, at(5)), at(7), 7),
        (stored(7, at(7)), at(5), 5),
        # Windows with nothing for the target came behind its position.
        (stored(9, at(5)), at(5), 9),
        # Another process stored this, or the target was written before its position was.
        (stored(9, None), at(5), 5),
        (stored(4, at(5)), at(5), 5),
    ],
)
def test_the_target_is_believed_unless_the_stored_position_knows_more(
    kept: Position | None, own: Position | None, expected: int | None
) -> None:
    found = beginning(kept, own)
    assert (None if found is None else found.scn) == expected


def test_a_sink_goes_back_for_another_source_and_leaves_out_what_it_has() -> None:
    own = at(20)
    begin = with_own(with_known(Checkpoint.at(8), 20, ["shop.a"]), own)
    found = beginning(Position("shop", begin), own)
    assert found is not None
    assert found.scn == 8
    wanted = is_new(found)
    changes = [
        made("insert", 1, source, scn=scn) for source in ("shop.a", "shop.b") for scn in (20, 21)
    ]
    assert [wanted(one) for one in changes] == [False, True, True, True]


def test_on_the_way_the_position_of_the_target_counts_again() -> None:
    known = with_known(Checkpoint.at(8), 20, ["shop.a"])
    # It has flushed a transaction of the way, whose checkpoint has what is known, too.
    own = Position("shop", replace(known, window_scn=11, prev_scn=11))
    kept = Position("shop", with_own(known, at(20)))
    found = beginning(kept, own)
    assert found == own
    assert known_scn(own.checkpoint) == 20


def test_without_anything_known_all_changes_are_new() -> None:
    assert is_new(None)(made("insert", 1))
    assert is_new(at(5))(made("insert", 1))
    assert known_scn(Checkpoint.at(5)) == -1
