"""Reading is held below a limit, and its rate is known."""

from __future__ import annotations

from databus.bootstrap.seeder.rate_limiter import Progress, RateLimiter


class Clock:
    """A clock that only waiting and reading move."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.waits: list[float] = []

    def monotonic_s(self) -> float:
        return self.now_s

    def wait(self, seconds: float) -> None:
        self.waits.append(round(seconds, 6))
        self.now_s += max(seconds, 0.0)

    def limiter(self, most_rows_per_s: int) -> RateLimiter:
        return RateLimiter(most_rows_per_s, self.wait, self.monotonic_s)


def test_without_a_limit_nothing_waits() -> None:
    clock = Clock()
    clock.limiter(0).count(10**9)
    assert clock.waits == []


def test_the_mean_rate_is_the_limit_whatever_the_reading_takes() -> None:
    clock = Clock()
    limiter = clock.limiter(1000)
    for reading_s in (0.1, 0.0, 0.4, 0.2):
        clock.now_s += reading_s
        limiter.count(500)
    assert clock.waits == [0.4, 0.5, 0.1, 0.3]
    assert limiter.rows_per_s == 1000


def test_lost_time_is_not_made_up_for_by_a_burst() -> None:
    clock = Clock()
    limiter = clock.limiter(1000)
    clock.now_s += 60
    limiter.count(500)
    limiter.count(500)
    assert clock.waits == [0.0, 0.5]


def test_no_more_is_read_at_once_than_a_second_may_have() -> None:
    assert Clock().limiter(100).limit(2000) == 100
    assert Clock().limiter(0).limit(2000) == 2000


def test_time_left_is_known_when_there_is_a_rate_and_a_guess() -> None:
    assert Progress("shop.orders", 250, 1000, 50.0).left_s == 15.0
    assert Progress("shop.orders", 250, 1000, 0.0).left_s is None
    assert Progress("shop.orders", 1200, 1000, 50.0).left_s is None
    assert Progress("shop.orders", 900, 1000, 50.0, is_done=True).left_s == 0.0
