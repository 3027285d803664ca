"""What follows a failure, and who is told; times are passed in."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, strategies as st

from databus.client.machines.backoff import BackOff
from databus.client.sinks.errors import SinkRefusedError, SinkUnavailableError
from databus.client.sinks.rules.alerts import Alert, Alerts
from databus.client.sinks.rules.failures import (
    FailureKind,
    FailureRule,
    Failures,
    Then,
    Verdict,
    is_of_a_row,
    kind_of,
)
from databus.client.sinks.rules.flushing import FlushRule
from databus.conf.settings import BackOffSettings
from databus.schemas.errors import SettingsError

EVERY_5_S = BackOffSettings(first_s=5, factor=1, max_s=5, jitter=0)
FOR_EVER = FailureRule(None, Then.STOP)


def failures(rule: FailureRule, fast: int = 2) -> Failures:
    return Failures(dict.fromkeys(FailureKind, rule), fast, BackOff(EVERY_5_S, Random(1)))


def test_two_fast_retries_and_then_one_every_five_seconds() -> None:
    found = failures(FOR_EVER)
    waits = [found.failed(OSError()).wait_s for _ in range(6)]
    assert waits == [0, 0, 5, 5, 5, 5]


@given(st.integers(0, 6), st.integers(0, 3), st.sampled_from(Then))
def test_after_the_last_retry_the_rule_says_what_follows(
    retries: int, fast: int, then: Then
) -> None:
    found = failures(FailureRule(retries, then), fast)
    verdicts = [found.failed(ValueError()) for _ in range(retries + 1)]
    assert [one.wait_s is None for one in verdicts] == [False] * retries + [True]
    assert verdicts[-1] == Verdict(None, then)
    found.reset()
    assert (found.failed(ValueError()).wait_s is None) is (retries == 0)


def test_a_target_that_says_when_to_come_again_is_not_asked_before() -> None:
    found = failures(FOR_EVER)
    assert found.failed(SinkUnavailableError("busy", retry_after_s=7)).wait_s == 7
    assert found.failed(SinkUnavailableError("busy")).wait_s == 0
    assert found.failed(SinkUnavailableError("busy", retry_after_s=2)).wait_s == 5
    assert found.failed(SinkUnavailableError("busy", retry_after_s=30)).wait_s == 30


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (SinkUnavailableError("down"), FailureKind.UNAVAILABLE),
        (ConnectionResetError(), FailureKind.UNAVAILABLE),
        (TimeoutError(), FailureKind.UNAVAILABLE),
        (OSError(28, "no space"), FailureKind.UNAVAILABLE),
        (SinkRefusedError("no"), FailureKind.REFUSED),
        (ValueError("a defect"), FailureKind.OTHER),
        (FileNotFoundError("a wrong path"), FailureKind.OTHER),
    ],
)
def test_each_error_is_of_a_kind(error: Exception, kind: FailureKind) -> None:
    assert kind_of(error) is kind


def test_a_row_is_to_blame_for_what_another_row_may_not_meet() -> None:
    assert is_of_a_row(SinkRefusedError("no"))
    assert is_of_a_row(ValueError("a defect"))
    for error in (SinkUnavailableError("down"), OSError(28, "no space"), SettingsError("x"), None):
        assert not is_of_a_row(error)


def test_an_alert_comes_after_half_a_minute_then_hourly_and_once_when_all_is_well() -> None:
    alerts = Alerts()
    told: list[tuple[float, Alert]] = []
    for now_s in range(10_000):
        if now_s < 8_000:
            alerts.failed(0, "down", now_s)
        else:
            alerts.recovered(0)
        alert = alerts.due(now_s)
        if alert is not None:
            told.append((now_s, alert))
    assert [now_s for now_s, _ in told] == [30, 3630, 7230, 8000]
    assert [alert.is_well for _, alert in told] == [False, False, False, True]


def test_a_short_failure_raises_no_alert_and_no_end_of_one() -> None:
    alerts = Alerts()
    alerts.failed(0, "down", 100)
    assert alerts.due(129) is None
    alerts.recovered(0)
    assert alerts.due(131) is None


def test_a_sink_is_well_when_all_of_its_lanes_are() -> None:
    alerts = Alerts()
    for lane in (0, 1):
        alerts.failed(lane, "down", 0)
    assert alerts.due(30) == Alert(False, 30, "down")
    alerts.recovered(0)
    assert alerts.due(40) is None
    alerts.recovered(1)
    assert alerts.due(50) == Alert(True, 50)


def test_a_lane_flushes_after_so_many_rows_or_so_long_after_the_first() -> None:
    rule = FlushRule(rows=100, seconds=5)
    assert rule.due_in_s(0) is None
    rule.took(60, 10)
    assert rule.due_in_s(11) == 4
    rule.took(40, 12)
    assert rule.due_in_s(12) == 0
    rule.flushed()
    assert rule.due_in_s(13) is None
    rule.took(1, 20)
    assert rule.due_in_s(26) == 0
