"""The last window that was delivered is found in another log, or nothing is."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from databus.relay.capture.overlap.overlap import (
    COMPARED_WINDOWS,
    LEAST_WINDOWS,
    overlap_end,
)
from databus.relay.capture.overlap.window_digests import WindowDigest
from databus.relay.sources.epochs import NoOverlapError


def digests(numbers: Sequence[int]) -> list[bytes]:
    return [number.to_bytes(16, "big") for number in numbers]


def log_of(numbers: Sequence[int], begin: int = 1000) -> list[WindowDigest]:
    """Windows at SCNs of their own."""
    return [WindowDigest(begin + 10 * at, one) for at, one in enumerate(digests(numbers))]


def test_what_follows_the_last_delivered_window_is_new() -> None:
    assert overlap_end(digests(range(100)), log_of(range(20, 120))) == 1000 + 10 * 79


@pytest.mark.parametrize("count", [LEAST_WINDOWS, COMPARED_WINDOWS, COMPARED_WINDOWS + 7])
def test_the_log_may_end_with_it_and_begin_with_the_first_that_is_compared(count: int) -> None:
    compared = min(count, COMPARED_WINDOWS)
    log = log_of(range(count - compared, count))
    assert overlap_end(digests(range(count)), log) == log[-1].scn


@pytest.mark.parametrize(
    ("delivered", "log", "problem"),
    [
        (range(LEAST_WINDOWS - 1), range(100), "holds 15 windows with rows, and at least 16"),
        # It lacks the last one, or one in between, or has one more there, or another order.
        (range(100), range(99), "its log does not have the last 64 windows"),
        (range(100), [*range(70), *range(71, 120)], "its log does not have"),
        (range(100), [*range(70), 999, *range(70, 120)], "its log does not have"),
        (range(100), [*range(70), 71, 70, *range(72, 120)], "its log does not have"),
        # It has the run twice.
        (
            range(100),
            [*range(100), *range(36, 100)],
            "its log has the last 64 windows .* than once",
        ),
        # The same changes over and over: which of them were delivered is not to be told.
        ([7] * 100, [7] * 90, "have the same changes more than once"),
        ([1, 2] * 50, [1, 2] * 50, "have the same changes more than once"),
        ([*range(64), *range(64)], range(64), "have the same changes more than once"),
    ],
)
def test_what_is_not_certain_is_no_overlap(
    delivered: Sequence[int], log: Sequence[int], problem: str
) -> None:
    with pytest.raises(NoOverlapError, match=problem):
        overlap_end(digests(delivered), log_of(log))


def test_it_is_never_found_at_a_wrong_place_however_alike_windows_are() -> None:
    """Few different windows, and a log that begins and ends anywhere: right, or refused."""
    draw = random.Random(1)
    found = 0
    for _ in range(1500):
        kinds = draw.choice([1, 2, 3, 50])
        period = draw.choice([0, 0, 1, 5, 40])
        base = [draw.randrange(kinds) for _ in range(200)]
        history = digests([base[at % period] if period else base[at] for at in range(200)])
        end = draw.randrange(90, 150)
        begin_held, begin_log = draw.randrange(end - 80), draw.randrange(end - 80)
        log_end = draw.randrange(end - 3, 200)
        log = [WindowDigest(at, history[at]) for at in range(begin_log, log_end)]
        try:
            scn = overlap_end(history[begin_held:end], log)
        except NoOverlapError:
            continue
        assert scn == end - 1
        found += 1
    assert found > 400
