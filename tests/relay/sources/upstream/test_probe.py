"""What a relay says of its lag when it reads another one."""

from __future__ import annotations

import pytest

from databus.relay.sources.log_status import Holding
from databus.relay.sources.source import Newest
from databus.relay.sources.upstream.answers import UpstreamState
from databus.relay.sources.upstream.probe import status_of

URL = "http://a:1"
AT_S = 1_700_000_000


def state(behind_s: float | None = 2.0) -> UpstreamState:
    return UpstreamState("running", True, "", 10, 30, AT_S, behind_s, 500, "purged soon")


def newest(scn: int, late_s: int = 0) -> Newest:
    return Newest(scn, (AT_S - late_s) * 10**9)


def test_at_the_newest_window_it_is_as_far_behind_as_the_other_relay() -> None:
    found = status_of(newest(30), state(), URL)
    assert (found.holding, found.behind_s, found.behind_bytes) == (Holding.HELD, 2.0, 500)
    assert found.warning == "purged soon"


def test_behind_that_the_time_between_the_two_is_added() -> None:
    found = status_of(newest(20, late_s=7), state(), URL)
    assert found.holding is Holding.HELD
    assert found.behind_s == pytest.approx(9.0)
    assert found.behind_bytes is None
    assert status_of(newest(20), state(None), URL).behind_s is None


def test_what_the_other_relay_lost_is_told_before_it_is_asked_for() -> None:
    assert status_of(newest(10), state(), URL).holding is Holding.HELD
    found = status_of(newest(9), state(), URL)
    assert found.holding is Holding.GONE
    assert "holds what comes after scn 10, and here scn 9 is the newest" in found.warning
    assert status_of(None, state(), URL).holding is Holding.UNKNOWN
