"""The page on a real relay, with a consumer that lags out and comes back."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import Browser

from tests.page.browsing import visiting
from tests.page.falling import play
from tests.page.scene import playing

# Of the palette in base.css, in the light scheme.
RED = "rgb(196, 22, 28)"
GREEN = "rgb(26, 111, 51)"


def test_a_consumer_is_seen_red_before_it_lags_out_and_live_again_after_its_bootstrap(
    browser: Browser, tmp_path: Path
) -> None:
    taken: list[str] = []
    with playing(tmp_path) as scene, visiting(browser, scene.relay.url) as visit:
        scene.writer.start()
        consumer = scene.consumer("billing")
        try:
            consumer.child.start()
            seen = play(visit.page, scene, consumer, taken.append)
        finally:
            consumer.child.stop()
    states = [one["state"] for one in seen]
    assert taken == ["live", "falling", "bootstrapping", "live-again"]
    assert re.fullmatch(
        "live (behind )?falling (fallen )?bootstrapping (fallen |falling |behind )*live",
        " ".join(states),
    )
    falling = seen[states.index("falling")]
    assert falling["colour"] == RED
    assert seen[0]["colour"] == seen[-1]["colour"] == GREEN
