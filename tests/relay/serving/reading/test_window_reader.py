"""Places that requests find in a ring."""

from __future__ import annotations

import pytest

from databus.relay.serving.reading.window_reader import stands_for_begin
from databus.schemas.errors import DamagedWindowsError, ScnNotFoundError


class Finding:
    """A ring that answers every search alike."""

    def __init__(self, answer: int | ScnNotFoundError) -> None:
        self._answer = answer

    def newest(self) -> tuple[int, int]:
        return 9, 100

    def find(self, scn: int, window_offset: int) -> int | None:
        if isinstance(self._answer, ScnNotFoundError):
            raise self._answer
        return self._answer


def test_a_window_that_nobody_can_read_inside_stands_for_the_begin_of_capture() -> None:
    assert stands_for_begin(Finding(ScnNotFoundError(5, 5)), 5)
    assert not stands_for_begin(Finding(0), 5)


def test_a_damaged_window_is_not_taken_for_the_begin_of_capture() -> None:
    damaged = DamagedWindowsError("a.ring", "shop", (5, 7), 4096)
    with pytest.raises(DamagedWindowsError):
        stands_for_begin(Finding(damaged), 5)
