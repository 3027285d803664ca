"""A consumer that falls behind, lags out, bootstraps and is live again, in the page.

Every state that the page shows of it is noted by the page itself, with its words,
so that none is missed between two looks.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Locator, Page, expect

from tests.page.scene import ConsumerProcess, Scene
from tests.promises.running import wait_until

SLOW_S = 1.0  # for each row: a hundredth of what is written
READS_S = 0.008  # for each row of the snapshot: 12 s, so that it can be looked at
MORE_THAN_ITS_BUFFER = 200  # windows of the ring, each of two rows of about 200 bytes
OFF_THE_RING = re.compile("fallen|bootstrapping")

_NOTE_STATES = """line => {
    window.seen = [];
    const note = () => {
        const meter = line.querySelector(".distance [role=meter]");
        const state = line.dataset.state;
        if (seen.at(-1)?.state !== state) seen.push({state, words: []});
        const words = line.querySelector(".words").textContent;
        if (seen.at(-1).words.at(-1) !== words) seen.at(-1).words.push(words);
        seen.at(-1).share = Number(meter?.getAttribute("aria-valuenow"));
        seen.at(-1).colour = getComputedStyle(line.querySelector(".state")).color;
    };
    note();
    const changes = {attributes: true, characterData: true, childList: true, subtree: true};
    new MutationObserver(note).observe(line, changes);
}"""

# Which of them depends on how far the pair has applied its log when the consumer asks.
_BOOTSTRAPPED_FROM = """() => seen.some(({state, words}) => state === "bootstrapping" && words.some(
    said => said.includes("snapshot of shop.orders") || said.includes("catches up from the log")
))"""


def _oldest_scn(scene: Scene) -> int:
    scn: int = scene.relay.get("/bufferInfo/inbound/shop/0").json()["minScn"]
    return scn


def line_of(page: Page, name: str) -> Locator:
    """Return the line of a consumer in the page."""
    return page.locator(".client").filter(has=page.get_by_role("button", name=name, exact=True))


def play(
    page: Page, scene: Scene, consumer: ConsumerProcess, take: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Play it; `take(name)` is called at each state. Returns the states that the page showed."""
    line = line_of(page, consumer.name)
    expect(line.locator(".state")).to_have_text("live")
    expect(line.locator(".words")).to_contain_text("the newest")
    line.evaluate(_NOTE_STATES)
    take("live")
    consumer.set_pace(SLOW_S)
    expect(line.locator(".state")).to_have_text("falling")
    # Well before it lags out, and for long enough to be seen.
    expect(line.locator(".words")).to_contain_text("until overwritten")
    meter = line.get_by_role("meter")
    expect(meter).to_have_attribute("aria-valuenow", re.compile("^([1-4][0-9]|[1-9])$"))
    take("falling")
    expect(line.locator(".state")).to_have_text(OFF_THE_RING)
    # Its checkpoint is off the ring; what it asks for after its buffer is so a little later. The
    # ring says when: under load, capture may be behind what the writer has committed.
    oldest = _oldest_scn(scene)
    wait_until(lambda: _oldest_scn(scene) > oldest + MORE_THAN_ITS_BUFFER, "the ring to go on")
    consumer.set_pace(READS_S)
    page.wait_for_function(_BOOTSTRAPPED_FROM)
    take("bootstrapping")
    consumer.set_pace(0)
    expect(line.locator(".state")).to_have_text("live")
    expect(line.locator(".self")).to_contain_text("1 bootstrap")
    take("live-again")
    found: list[dict[str, Any]] = page.evaluate("seen")
    return found
