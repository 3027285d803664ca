"""Places in a later server's log that lie before what was read of it."""

from __future__ import annotations

import pytest

from databus.relay.sources.epochs import Epoch, Unread, unread_places
from databus.schemas.scn import epoch_begin

EPOCH_1, EPOCH_2, EPOCH_3 = (epoch_begin(number) for number in (1, 2, 3))


def epoch(number: int, first_scn: int, after_scn: int) -> Epoch:
    return Epoch(number, f"s{number}", "mysql://a", first_scn, after_scn, "b.000001", 4, None, 0)


FIRST, SECOND = epoch(0, 100, -1), epoch(1, EPOCH_1 + 500, 300)


def test_what_a_later_server_has_before_its_first_window_is_unread() -> None:
    assert unread_places((FIRST, SECOND), 50) == [Unread(EPOCH_1, EPOCH_1 + 499, 1)]


def test_an_epoch_that_others_alone_have_read_is_unread_as_a_whole() -> None:
    third = epoch(3, EPOCH_3 + 70, EPOCH_1 + 900)
    assert unread_places((FIRST, SECOND, third), 50) == [
        Unread(EPOCH_1, EPOCH_1 + 499, 1),
        Unread(EPOCH_2, EPOCH_3 + 69, 3),
    ]


@pytest.mark.parametrize(
    ("epochs", "oldest_scn"),
    [
        ((FIRST,), 50),
        # A table that was begun by a later version of the relay than its ring.
        ((epoch(0, 100, 60),), 50),
        # Capture was begun anew in that server's log, perhaps earlier.
        ((FIRST, SECOND), EPOCH_1 + 7),
        # The ring is empty, and has never had anything.
        ((FIRST, SECOND), -1),
    ],
)
def test_otherwise_nothing_is(epochs: tuple[Epoch, ...], oldest_scn: int) -> None:
    assert unread_places(epochs, oldest_scn) == []
