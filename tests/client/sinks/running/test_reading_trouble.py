"""A sink that cannot read does not look well: it says why and what to do, and goes on itself."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from databus.client.sinks.rules.alerts import Alert
from databus.client.sinks.running.feed import SinkState
from databus.client.sinks.running.plan import make_plan
from databus.client.sinks.serving.process import SinkProcess
from databus.client.sinks.serving.service import health_of
from databus.client.sinks.serving.views import FeedView, problems_of, sinks_view
from databus.conf.loading import build_settings
from databus.conf.sink_settings import SinksSettings
from databus.testing.recorder import Recorder
from tests import PATIENCE_S
from tests.client.sinks.serving.test_running_sink import running
from tests.promises.running import RunningRelay, Shop, wait_until

ALERTS = {"alert_after_s": 0.5}


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    (tmp_path / "one").mkdir()
    shop = Shop(tmp_path / "one" / "shop.db")
    yield shop
    shop.close()


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def relay_of(opened: ExitStack, shop: Shop, folder: Path, port: int = 0) -> RunningRelay:
    relay = RunningRelay(folder, shop.settings(), http={"port": port} if port else None)
    opened.callback(relay.child.stop)
    return relay.start()


def process_of(folder: Path, url: str, recorder: Recorder, told: list[Alert]) -> SinkProcess:
    sink = {
        "name": "a",
        "kind": "recorder",
        "sources": ["shop.*"],
        "flush": {"seconds": 0.01},
        "positions_every_s": 0,
        "failures": ALERTS,
        "start": "earliest",
    }
    quick = {"first_s": 0.05, "max_s": 0.2}
    raw = {"data_dir": folder, "relays": [url], "back_off": quick, "sinks": [sink]}
    settings = build_settings(raw, SinksSettings)
    plan = make_plan(settings.sinks[0], recorder.sink, folder / "x")
    return SinkProcess(settings, [plan], lambda _name, alert: told.append(alert))


def problem(process: SinkProcess) -> str:
    return "; ".join(problems_of(sinks_view(process).sinks[0]))


def is_failing(process: SinkProcess, text: str) -> bool:
    """Whether state, health and what is shown say that the sink fails, and why."""
    health = health_of(process)
    return (
        process.sinks[0].state is SinkState.FAILING
        and not health.is_ok
        and text in problem(process)
        and text in json.dumps(health.details)
    )


def is_well(process: SinkProcess) -> bool:
    is_running = process.sinks[0].state is SinkState.RUNNING
    return is_running and health_of(process).is_ok and not problem(process)


def test_a_relay_that_is_away_is_a_trouble_until_it_answers_again(
    shop: Shop, opened: ExitStack, tmp_path: Path
) -> None:
    told: list[Alert] = []
    recorder = Recorder()
    relay = relay_of(opened, shop, tmp_path / "relay")
    shop.insert(1)
    process = process_of(tmp_path / "sinks", relay.url, recorder, told)
    with running(process):
        wait_until(lambda: recorder.changes and is_well(process))
        relay.child.stop()
        wait_until(lambda: is_failing(process, relay.url))
        wait_until(lambda: [one.is_well for one in told] == [False])
        process.pause("a")
        assert health_of(process).is_ok  # whoever paused it knows that it reads nothing
        process.resume("a")
        relay.start()
        wait_until(lambda: is_well(process))
        shop.insert(2)
        wait_until(lambda: len(recorder.changes) == 2)
        wait_until(lambda: [one.is_well for one in told] == [False, True])


def test_a_relay_of_another_log_that_is_not_so_far_is_a_trouble(
    shop: Shop, opened: ExitStack, tmp_path: Path
) -> None:
    (tmp_path / "two").mkdir()
    other = Shop(tmp_path / "two" / "shop.db")
    opened.callback(other.close)
    recorder = Recorder()
    relay = relay_of(opened, shop, tmp_path / "relay")
    shop.insert(*range(20))
    process = process_of(tmp_path / "sinks", relay.url, recorder, [])
    with running(process):
        wait_until(lambda: len(recorder.changes) == 20 and is_well(process))
        relay.child.stop()
        relay_of(opened, other, tmp_path / "another", relay.port)
        other.insert(1, note="other")
        wait_until(lambda: is_failing(process, "if that lasts, it has another log"))
        assert "remove the checkpoint and what was made of the rows" in problem(process)
    assert len(recorder.changes) == 20


def test_a_relay_whose_capture_has_stopped_is_a_trouble(
    shop: Shop, opened: ExitStack, tmp_path: Path
) -> None:
    recorder = Recorder()
    relay = relay_of(opened, shop, tmp_path / "relay")
    shop.insert(1)
    process = process_of(tmp_path / "sinks", relay.url, recorder, [])
    with running(process):
        wait_until(lambda: recorder.changes and is_well(process))
        shop.path.rename(shop.path.with_suffix(".away"))
        wait_until(lambda: is_failing(process, "the relay captures nothing of shop now"))
        assert "`databus top` say why" in problem(process)
        assert sinks_view(process).sinks[0].physical_sources[0].lag_s is None
        shop.path.with_suffix(".away").rename(shop.path)
        wait_until(lambda: is_well(process))
        assert relay.post("/api/v1/physicalSources/shop/pause").status == 200
        shop.insert(2)
        wait_until(lambda: relay.get("/api/v1/physicalSources/shop").json()["state"] == "paused")
        assert is_well(process)  # whoever paused the source knows that nothing comes


def test_a_sink_that_has_all_that_there_is_has_no_lag_however_old_the_last_row_is(
    shop: Shop, opened: ExitStack, tmp_path: Path
) -> None:
    relay = relay_of(opened, shop, tmp_path / "relay")
    shop.insert(1)
    wait_until(lambda: relay.max_scn() > 0)
    time.sleep(2)
    process = process_of(tmp_path / "sinks", relay.url, Recorder(), [])
    with running(process):

        def feed() -> FeedView | None:
            feeds = sinks_view(process).sinks[0].physical_sources
            return feeds[0] if feeds and feeds[0].rows else None

        seen: list[tuple[int | None, float | None]] = []
        begun_s = time.monotonic()
        end_s = begun_s + PATIENCE_S
        while time.monotonic() < (begun_s + 4 if (0, 0.0) in seen else end_s):
            if (found := feed()) is not None:
                seen.append((found.lag_windows, found.lag_s))
            time.sleep(0.01)
    assert (0, 0.0) in seen
    assert {lag_s for windows, lag_s in seen if windows == 0} == {0.0}
    assert {lag_s for windows, lag_s in seen if windows is None} <= {None}
