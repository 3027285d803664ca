"""Where a sink begins that is started before its relay."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from databus.client.sinks.running.feed import SinkState
from databus.testing.recorder import Recorder
from tests.client.shop import wait_until
from tests.client.sinks.serving.test_running_sink import keys, process_of, running
from tests.promises.running import RunningRelay, Shop


@pytest.mark.parametrize(
    ("start", "wanted"),
    [
        ({}, [1, 2, 3]),  # earliest: all that the relay holds
        ({"start": "latest"}, [2, 3]),  # what was written since the sink was started
    ],
)
def test_a_sink_that_is_started_before_its_relay_misses_nothing_from_its_start_on(
    tmp_path: Path, start: dict[str, str], wanted: list[int]
) -> None:
    recorder = Recorder()
    with ExitStack() as opened:
        shop = Shop(tmp_path / "shop.db")
        opened.callback(shop.close)
        relay = RunningRelay(tmp_path / "relay", shop.settings())
        opened.callback(relay.child.stop)
        relay.start()
        shop.insert(1)
        wait_until(lambda: relay.max_scn() > 0)
        relay.child.stop()
        time.sleep(1.1)  # commits have seconds
        process = process_of(tmp_path / "sinks", relay.url, {"a": recorder}, **start)
        opened.enter_context(running(process))
        wait_until(lambda: process.sinks[0].state is SinkState.FAILING)
        assert relay.url in process.sinks[0].problem
        time.sleep(1.1)
        shop.insert(2)
        relay.start()
        wait_until(lambda: ("shop.orders", 2) in keys(recorder))
        shop.insert(3)
        wait_until(lambda: ("shop.orders", 3) in keys(recorder))
    assert [key for _, key in keys(recorder)] == wanted
