"""A search of the log for which a source waits is shown, and ends when capture is to rest."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import pytest

from databus.relay.capture.status import State
from databus.relay.sources.source import Captured, LogSearch
from tests import PATIENCE_S
from tests.relay.capture.test_capture import Bench
from tests.relay.fakes import PERSON, FakeSource, insert, transaction, wait_until


class Searching(FakeSource):
    """A source whose first read searches until it is told to end."""

    is_searching = True

    def read(self) -> Sequence[Captured]:
        while self.is_searching:
            self._tell_search(LogSearch("which rows", 3 << 30, 10 << 30))
            time.sleep(0.001)
        self._tell_search(None)
        return super().read()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    made.source = Searching(made.settings, [PERSON])
    yield made
    assert made.capture is not None
    assert made.capture.stop(PATIENCE_S)


def test_its_progress_is_a_warning_until_it_is_over(bench: Bench) -> None:
    capture = bench.start()
    wait_until(lambda: bool(capture.status.warnings))
    assert capture.status.warnings == ("searching 3.0 GiB of 10.0 GiB of the log: which rows",)
    assert capture.status.search_left_bytes == 7 << 30
    bench.source.is_searching = False  # type: ignore[attr-defined]
    bench.source.put(transaction(1, insert(1)))
    bench.wait_for(1)
    status = capture.status
    assert not status.warnings
    assert status.search_left_bytes is None


def test_a_pause_ends_it_and_is_no_problem(bench: Bench) -> None:
    capture = bench.start()
    wait_until(lambda: bool(capture.status.warnings))
    capture.pause()
    assert capture.wait_for(State.PAUSED, PATIENCE_S)
    assert (capture.status.warnings, capture.status.reconnects, bench.problems) == ((), 0, [])
