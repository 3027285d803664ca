"""A consumer that stands still with much in its buffer: it looks as bad as it is.

It has asked for all that there is, and a restart would go on after its checkpoint:
the ring overwrites that place, whatever the consumer has read ahead.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Locator, expect

from tests.page.browsing import visiting
from tests.page.falling import line_of
from tests.page.scene import ConsumerProcess, Scene, playing
from tests.promises.running import wait_until
from tests.relay.fakes import get

RED = "rgb(196, 22, 28)"  # of the palette in base.css, in the light scheme
FOR_EVER_S = 50.0  # for one row, below the budget of a callback
# All that is written in the test fits into its buffer.
READS_AHEAD: dict[str, Any] = {"buffer_bytes": 8 << 20, "http": {"port": 0}}


@contextmanager
def consuming(scene: Scene, name: str, pace_s: float = 0.0) -> Iterator[ConsumerProcess]:
    """Run a consumer that reads far ahead, and has no bootstrap server."""
    consumer = scene.consumer(name, **READS_AHEAD, bootstrap_servers=[])
    consumer.set_pace(pace_s)
    try:
        consumer.child.start()
        yield consumer
    finally:
        consumer.child.kill()


def seen(scene: Scene, name: str) -> dict[str, Any]:
    """Return what the relay's API shows of a consumer; nothing before it knows it."""
    clients = scene.relay.get("/api/v1/clients").json()["clients"]
    return next((one for one in clients if one["name"] == name), {})


def own(scene: Scene, name: str, path: str) -> bytes:
    """Ask the consumer's own server."""
    return get(seen(scene, name)["report"]["url"], path).body


def health(scene: Scene, name: str) -> dict[str, Any]:
    """Return what the consumer says of its own health."""
    found: dict[str, Any] = json.loads(own(scene, name, "/health"))
    return found


def expect_state(line: Locator, state: str) -> None:
    """Wait until the page shows a state; it stands where states stand, not in a side note."""
    expect(line.locator(".state")).to_have_text(state)


def test_a_consumer_that_hangs_falls_in_page_api_and_health_while_its_buffer_takes_all(
    browser: Browser, tmp_path: Path
) -> None:
    with playing(tmp_path) as scene, visiting(browser, scene.relay.url) as visit:
        scene.writer.start()
        with consuming(scene, "billing") as consumer:
            line = line_of(visit.page, "billing")
            expect_state(line, "live")
            assert health(scene, "billing")["relaySays"] == "live"
            consumer.set_pace(FOR_EVER_S)
            expect_state(line, "falling")
            expect(line.locator(".words")).to_contain_text("until overwritten")
            colour = line.locator(".state").evaluate("node => getComputedStyle(node).color")
            assert colour == RED
            falling = seen(scene, "billing")
            (place,) = falling["positions"]
            (told,) = falling["report"]["registrations"]
            assert (place["by"], place["scn"]) == ("kept", told["keptScn"])
            assert told["bufferedBytes"] > place["behindBytes"] / 2, "it has read on"
            assert place["behindS"] > 1
            wait_until(
                lambda: (health(scene, "billing")["behindSeconds"] or 0) > 1, "its own health"
            )

            expect_state(line, "fallen")
            expect(line.locator(".words")).to_have_text(
                "checkpoint overwritten: a restart needs a bootstrap"
            )
            (place,) = seen(scene, "billing")["positions"]
            assert (place["isGone"], place["edgeShare"], place["behindS"]) == (True, 0.0, None)
            wait_until(lambda: health(scene, "billing")["relaySays"] == "fallen", "its own health")
            assert health(scene, "billing")["behindSeconds"] is None
            consumer.set_pace(0)  # what is in its buffer brings it back, without a bootstrap
            expect_state(line, "live")
            (told,) = seen(scene, "billing")["report"]["registrations"]
            assert told["bootstraps"] == 0
            scene.writer.stop()


def test_a_consumer_that_hangs_in_its_first_window_is_not_live_and_has_a_lag(
    browser: Browser, tmp_path: Path
) -> None:
    with playing(tmp_path) as scene, visiting(browser, scene.relay.url) as visit:
        scene.writer.start()
        with consuming(scene, "first", FOR_EVER_S):
            line = line_of(visit.page, "first")
            expect_state(line, "falling")
            found = seen(scene, "first")
            (told,) = found["report"]["registrations"]
            assert (told["windows"], told["bufferedBytes"] > 0) == (0, True)
            assert found["positions"][0]["behindS"] > 1
            lags = [
                float(text.split()[-1])
                for text in own(scene, "first", "/metrics").decode().splitlines()
                if text.startswith("databus_client_lag_seconds{")
            ]
            assert len(lags) == 1
            assert lags[0] > 1
            scene.writer.stop()


def test_a_paused_consumer_says_so_where_its_state_stands(browser: Browser, tmp_path: Path) -> None:
    with (
        playing(tmp_path) as scene,
        consuming(scene, "billing"),
        visiting(browser, scene.relay.url) as visit,
    ):
        line = line_of(visit.page, "billing")
        expect_state(line, "live")
        url = seen(scene, "billing")["report"]["url"]
        host = {"Host": urlsplit(url).netloc}
        assert get(url, "/api/v1/client/pause", host, "POST").status == 200
        expect_state(line, "paused")
        assert seen(scene, "billing")["state"] == "paused"
        scene.writer.start()
        expect_state(line, "falling, paused")
        expect_state(line, "fallen, paused")
        scene.writer.stop()
