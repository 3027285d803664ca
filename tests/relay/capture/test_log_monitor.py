"""The monitor of a database log: when it probes, what it keeps, what it logs."""

from __future__ import annotations

import itertools
import logging
import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from databus.relay.capture.log_monitor import LogMonitor
from databus.relay.sources.log_status import Holding, LogStatus
from databus.relay.sources.source import Newest
from databus.schemas.errors import SourceUnavailableError
from tests import PATIENCE_S
from tests.relay.fakes import wait_until

HELD = LogStatus(Holding.HELD, 0, 0.0, math.inf)
NEAR = LogStatus(Holding.NEAR_PURGE, 5, 60.0, 3.0, "purged in 3.0 hours")
GONE = LogStatus(Holding.GONE, warning="gone")
DOUBTED = LogStatus(Holding.GONE, warning="gone", doubt="reset")
AWAY = SourceUnavailableError("away")


@dataclass
class ScriptedProbe:
    """Finds, probe by probe, what a test says, then the last of it again and again."""

    script: list[LogStatus | Exception]
    seen: list[Newest | None] = field(default_factory=list)
    looked: threading.Event = field(default_factory=threading.Event)
    is_cancelled: bool = False

    def probe(self, newest: Callable[[], Newest | None]) -> LogStatus:
        self.seen.append(newest())
        found = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        self.looked.set()
        if isinstance(found, Exception):
            raise found
        return found

    def cancel(self) -> None:
        self.is_cancelled = True


def monitor_over(*script: LogStatus | Exception) -> LogMonitor:
    return LogMonitor("shop", ScriptedProbe(list(script)), lambda: Newest(7, 1))


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    """Return what was logged as warnings so far."""
    with caplog.at_level(logging.WARNING, "databus.relay.capture.log_monitor"):
        yield lambda: [record.getMessage() for record in caplog.records]


def test_a_change_of_state_is_logged_once(warnings: Callable[[], list[str]]) -> None:
    nearer = LogStatus(Holding.NEAR_PURGE, 9, 90.0, 2.9, "purged in 2.9 hours")
    monitor = monitor_over(HELD, NEAR, nearer, nearer, GONE, GONE, HELD, HELD)
    assert [monitor.probe_now().holding for _ in range(8)] == [
        *(Holding.HELD, Holding.NEAR_PURGE, Holding.NEAR_PURGE, Holding.NEAR_PURGE),
        *(Holding.GONE, Holding.GONE, Holding.HELD, Holding.HELD),
    ]
    assert warnings() == [
        "the log of shop: purged in 3.0 hours",
        "the log of shop: gone",
        "the log of shop: the server has what capture needs again",
    ]


def test_a_database_that_cannot_be_asked_is_a_warning_and_asked_again(
    warnings: Callable[[], list[str]],
) -> None:
    monitor = monitor_over(AWAY, AWAY, HELD)
    assert "could not be asked about its log: away" in monitor.probe_now().warning
    assert monitor.probe_now().holding is Holding.UNKNOWN
    assert len(warnings()) == 1
    assert monitor.probe_now() == monitor.status == HELD


def test_an_error_of_the_look_itself_does_not_end_the_watch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    monitor = monitor_over(KeyError("x"), HELD)
    assert "internal error: KeyError('x')" in monitor.probe_now().warning
    assert "probing the log of shop failed" in caplog.text
    assert monitor.probe_now() == HELD


def test_it_looks_on_a_thread_of_its_own_at_once_and_until_it_is_stopped() -> None:
    probe = ScriptedProbe([HELD])
    monitor = LogMonitor("shop", probe, lambda: Newest(7, 1), every_s=1e6)
    monitor.start()
    monitor.start()
    assert probe.looked.wait(PATIENCE_S)
    assert monitor.stop(PATIENCE_S)
    assert (monitor.status, probe.is_cancelled) == (HELD, True)
    assert probe.seen == [Newest(7, 1)]


def test_as_long_as_nothing_is_known_it_looks_soon_again() -> None:
    probe = ScriptedProbe([LogStatus(), LogStatus(), HELD])
    monitor = LogMonitor("shop", probe, lambda: None, every_s=1e6)
    monitor.start()
    wait_until(lambda: monitor.status == HELD)
    assert monitor.stop(PATIENCE_S)
    assert len(probe.seen) == 3


def test_a_stream_that_is_silent_has_it_look_soon_again_and_a_doubt_is_told() -> None:
    probe = ScriptedProbe([HELD, HELD, DOUBTED])
    doubts: list[str] = []
    monitor = LogMonitor(
        "shop",
        probe,
        lambda: Newest(7, 1),
        every_s=1e6,
        reading_at=lambda: 7,
        on_doubt=doubts.append,
        quiet_every_s=0.01,
    )
    monitor.start()
    wait_until(lambda: "reset" in doubts)
    assert monitor.stop(PATIENCE_S)


@pytest.mark.parametrize("is_open", [True, False])
def test_a_stream_that_brings_something_or_none_at_all_has_it_wait(*, is_open: bool) -> None:
    probe = ScriptedProbe([HELD])
    places = itertools.count()
    asked: list[int] = []

    def reading_at() -> int | None:
        asked.append(1)
        return next(places) if is_open else None

    monitor = LogMonitor(
        "shop", probe, lambda: None, every_s=1e6, reading_at=reading_at, quiet_every_s=0.001
    )
    monitor.start()
    wait_until(lambda: len(asked) > 5)
    assert monitor.stop(PATIENCE_S)
    assert len(probe.seen) == 1


def test_where_there_is_nothing_to_look_at_nothing_is_known() -> None:
    monitor = LogMonitor("shop", None, lambda: None)
    monitor.start()
    assert monitor.probe_now() == monitor.status == LogStatus()
    assert monitor.stop(0)
