"""What is counted of a registration, with a clock that stands still until it is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from databus.client.machines.position import Position
from databus.client.machines.states import Connection
from databus.client.monitoring.reporter import filters_text, mode_of
from databus.client.puller.buffer_items import BootstrapPage, Phase, ReadWindow
from databus.client.puller.stats import BUCKETS_S, RegistrationStats, quantile
from databus.client.subscription import Subscription
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.filters import ModFilter
from databus.schemas.stream.row_reader import RowWindow
from tests.client.puller.test_page_decoder import CATCH_UP, SNAPSHOT
from tests.client.shop import FakeClock

EVENT = (0,) * 12


def window(scn: int, events: int, timestamp_ns: int = 0) -> ReadWindow:
    rows = tuple(EVENT for _ in range(events))
    return ReadWindow(RowWindow(scn, timestamp_ns, rows, 100), {}, Position(Checkpoint()))  # type: ignore[arg-type]


def take(
    stats: RegistrationStats, clock: FakeClock, item: ReadWindow | BootstrapPage, took_s: float
) -> None:
    began_s = stats.now_s()
    clock.now_s += took_s
    stats.took(item, began_s)


def test_windows_without_events_are_no_windows_and_have_no_callback_time() -> None:
    stats = RegistrationStats(FakeClock())
    stats.took(window(1, 3), 100.0)
    stats.took(window(2, 0), 100.0)
    assert (stats.windows, stats.events, sum(stats.callbacks)) == (1, 3, 1)


def test_the_rate_is_that_of_the_last_few_seconds() -> None:
    clock = FakeClock()
    stats = RegistrationStats(clock)
    for second in range(20):
        take(stats, clock, window(second, 100 if second < 10 else 10), 1.0)
        stats.sample()
    assert stats.events_per_s == pytest.approx(10)


def test_a_rate_of_no_time_is_nothing() -> None:
    stats = RegistrationStats(FakeClock())
    stats.took(window(1, 5), 100.0)
    assert stats.events_per_s == 0


def test_quantiles_are_of_the_last_minute() -> None:
    clock = FakeClock()
    stats = RegistrationStats(clock)
    for number in range(50):
        take(stats, clock, window(number, 1), 8.0)
        stats.sample()
    slow = stats.quantile_s(0.5)
    assert slow is not None
    assert 5 < slow <= 10
    for number in range(100):
        take(stats, clock, window(number, 1), 1.0)
        stats.sample()
    assert stats.quantile_s(0.99) == pytest.approx(1.0, abs=0.5)
    clock.now_s += 61
    stats.sample()
    assert stats.quantile_s(0.5) is None


def test_a_quantile_lies_in_the_bucket_of_its_rank() -> None:
    counts = [0] * (len(BUCKETS_S) + 1)
    assert quantile(counts, 0.5) is None
    counts[3], counts[6] = 98, 2
    assert BUCKETS_S[2] < (quantile(counts, 0.5) or 0) <= BUCKETS_S[3]
    assert BUCKETS_S[5] < (quantile(counts, 0.99) or 0) <= BUCKETS_S[6]
    counts[-1] = 1000
    assert quantile(counts, 0.99) == BUCKETS_S[-1]


def test_lag_is_the_age_of_the_newest_window_when_it_was_consumed() -> None:
    clock = FakeClock()
    stats = RegistrationStats(clock)
    assert stats.lag_s(1000.0, is_waiting=False) is None
    stats.took(window(1, 1, 990 * 10**9), clock.now_s)  # at 1000 by the wall clock
    clock.now_s += 4
    assert stats.lag_s(1004.0, is_waiting=False) == pytest.approx(10)
    clock.now_s += 46
    assert stats.lag_s(1050.0, is_waiting=False) == 0, "nothing has come since"
    assert stats.lag_s(1050.0, is_waiting=True) == pytest.approx(60)


def test_lag_is_known_while_the_very_first_window_is_worked_on() -> None:
    clock = FakeClock()
    stats = RegistrationStats(clock)
    stats.holds(window(1, 1, 990 * 10**9))
    assert stats.lag_s(1050.0, is_waiting=True) == pytest.approx(60)
    stats.took(window(1, 1, 990 * 10**9), clock.now_s)
    clock.now_s += 3600
    stats.holds(window(2, 1, 4640 * 10**9))
    assert stats.lag_s(4650.0, is_waiting=True) == pytest.approx(10), "and not that of an hour"


def test_a_bootstraps_rows_are_counted_by_phase_and_anew_when_it_begins_anew() -> None:
    stats = RegistrationStats(FakeClock())
    stats.begin_bootstrap(is_from_the_start=True)
    events = tuple(EVENT for _ in range(3))
    window_of_page = RowWindow(9, -1, events, 100)  # type: ignore[arg-type]
    snapshot = BootstrapPage(window_of_page, {}, SNAPSHOT, 9)
    catch_up = BootstrapPage(window_of_page, {}, CATCH_UP, 9)
    assert snapshot.phase is Phase.SNAPSHOT
    for item in (snapshot, snapshot, catch_up):
        stats.took(item, 100.0)
    assert (stats.snapshot_rows, stats.catch_up_rows) == (6, 3)
    assert stats.phase is Phase.CATCH_UP
    stats.begin_bootstrap(is_from_the_start=True)
    assert (stats.snapshot_rows, stats.bootstraps) == (0, 1)
    stats.end_bootstrap()
    stats.begin_bootstrap(is_from_the_start=False)
    assert (stats.phase, stats.bootstraps) == (Phase.SNAPSHOT, 2)


@pytest.mark.parametrize(
    ("connection", "phase", "has_read", "mode"),
    [
        (Connection.INITIAL, Phase.LIVE, False, "starting"),
        (Connection.STREAMING, Phase.LIVE, False, "starting"),
        (Connection.STREAMING, Phase.LIVE, True, "online"),
        (Connection.PICKING_RELAY, Phase.LIVE, True, "online"),
        (Connection.PICKING_BOOTSTRAP, Phase.LIVE, True, "snapshot"),
        (Connection.CATCHUP, Phase.SNAPSHOT, True, "snapshot"),
        (Connection.STREAMING, Phase.CATCH_UP, True, "catchup"),
        (Connection.CLOSED, Phase.SNAPSHOT, True, "stopped"),
    ],
)
def test_the_mode_is_that_of_what_is_consumed(
    connection: Connection, phase: Phase, has_read: bool, mode: str
) -> None:
    stats = RegistrationStats(FakeClock())
    stats.phase = phase
    assert mode_of(connection, stats, has_read=has_read) == mode


def test_filters_are_told_by_source() -> None:
    plain = Subscription(("shop.orders",))
    assert filters_text(plain) == ""
    filtered = replace(plain, filters={"shop.orders": ModFilter(4, 0, 1)})
    assert filters_text(filtered).startswith('{"shop.orders": {"partitionType": "MOD"')
