"""A reader of a catch-up that cannot go on says why, once there is nothing more to read."""

from __future__ import annotations

from typing import Any

import pytest

from databus.relay.catch_up.read_ahead import ReadAhead
from databus.relay.catch_up.reader import CatchUpReader
from databus.relay.clock import Clock
from databus.relay.ring.event_selector import WINDOW_DONE
from databus.schemas.errors import RelayLogError


class Windows:
    """The windows 1 to 10, each of 10 bytes."""

    def newest(self) -> tuple[int, int]:
        """Return the newest window and its end."""
        return 10, 100

    def find(self, scn: int, offset: int) -> int:
        """Return the end of a window, or where it begins."""
        return 10 * scn if offset == WINDOW_DONE else 10 * (scn - 1)


class Time:
    """A clock that stands still until it is told."""

    now_s = 100.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now_s


def reader_of(time: Time) -> CatchUpReader:
    reader = CatchUpReader(
        "the catch-up", lambda: None, lambda: 20, ReadAhead(1000, 0), Clock(time)
    )
    history: Any = Windows()
    reader.use(history)
    return reader


def test_what_it_has_is_read_whatever_its_trouble() -> None:
    time = Time()
    reader = reader_of(time)
    reader.note_trouble("the disk is full")
    time.now_s += 60
    assert reader.find(5, WINDOW_DONE) == 50


def test_behind_that_a_trouble_that_lasts_is_told() -> None:
    time = Time()
    reader = reader_of(time)
    reader.note_trouble("the disk is full")
    assert reader.find(10, WINDOW_DONE) == 100
    time.now_s += 60
    with pytest.raises(RelayLogError, match="the disk is full; ask again later"):
        reader.find(10, WINDOW_DONE)
    with pytest.raises(RelayLogError, match="the disk is full; ask again later"):
        reader.find(11, WINDOW_DONE)


def test_what_is_over_is_not_told() -> None:
    time = Time()
    reader = reader_of(time)
    reader.note_trouble("the disk is full")
    time.now_s += 60
    reader.note_trouble("")
    assert reader.find(10, WINDOW_DONE) == 100
