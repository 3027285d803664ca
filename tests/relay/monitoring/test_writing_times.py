"""How long a ring lasts: exact for a steady load, without jumps for one that comes in bursts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings, strategies as st

from databus.relay.monitoring.writing_times import WritingTimes

BURST_BYTES = 1_000_000


def lasting(writes: Iterator[int], size_bytes: int) -> Iterator[tuple[float, float | None]]:
    """Yield each second, and how long the ring is said to last then."""
    times, tail = WritingTimes(), 0
    for second, written in enumerate(writes):
        tail += written
        times.add(float(second), tail)
        yield float(second), times.lasts_s(size_bytes, float(second), tail)


def bursts(period_s: int, on_s: int, seconds: int) -> Iterator[int]:
    """Yield what is written each second: the same every period, within its first seconds."""
    return (BURST_BYTES // on_s if n % period_s < on_s else 0 for n in range(seconds))


@settings(max_examples=30, deadline=None)
@given(
    period_s=st.integers(2, 700),
    share_on=st.floats(0.02, 1.0),
    periods=st.integers(4, 10),
)
def test_bursts_that_come_in_a_ring_several_times_move_the_answer_little_and_never_by_jumps(
    period_s: int, share_on: float, periods: int
) -> None:
    on_s = max(1, int(period_s * share_on))
    seconds, lasts_s = period_s * periods * 3, period_s * periods
    size_bytes = BURST_BYTES // on_s * on_s * periods
    said = [
        lasts
        for second, lasts in lasting(bursts(period_s, on_s, seconds), size_bytes)
        if second > 2 * lasts_s
    ]
    known = [lasts for lasts in said if lasts is not None]
    assert len(known) == len(said)
    # A consumer that pauses now has the ring for `periods` of them, or for one more; half of the
    # ring doubles this. Older samples are ten or sixty seconds apart.
    allowed_s = 2 * period_s + lasts_s / 40 + 2
    assert all(lasts_s - allowed_s <= lasts <= lasts_s + allowed_s for lasts in known)
    steps = [abs(after - before) for before, after in pairwise(known)]
    assert max(steps) <= allowed_s


@given(rate=st.integers(1, 10**8), lasts_s=st.floats(1, 1e6))
def test_a_steady_load_gives_the_exact_time(rate: int, lasts_s: float) -> None:
    *_, (_, said) = lasting((rate for _ in range(100)), int(rate * lasts_s) or 1)
    assert said == pytest.approx((int(rate * lasts_s) or 1) / rate, rel=0.05)


def test_a_load_that_grows_a_hundredfold_is_noticed_as_fast_as_it_fills_the_ring() -> None:
    size_bytes = 3_600_000
    writes = [1_000] * 7200 + [100_000] * 36
    said = [lasts or 0.0 for _, lasts in lasting(iter(writes), size_bytes)]
    assert said[7199] == pytest.approx(3600, rel=0.01)
    assert said[7199 + 18] < 80, "half of the ring was written: a minute, not an hour"
    assert said[-1] == pytest.approx(36, rel=0.05)


def test_an_emptied_ring_begins_anew_and_one_that_is_not_written_has_no_time() -> None:
    times = WritingTimes()
    assert times.lasts_s(1000, 0.0, 0) is None
    times.add(0.0, 5_000)
    times.add(1.0, 6_000)
    times.add(2.0, 0)
    assert times.lasts_s(1000, 3.0, 0) is None
    times.add(3.0, 100)
    assert times.lasts_s(1000, 3.0, 100) == pytest.approx(10.0)
