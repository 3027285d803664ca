"""Make the pictures of docs/page.md anew: `python -m tests.page.pictures`.

Everything in them is real: a relay, a bootstrap pair and consumers as
processes, and a writer, for two minutes; then five states with their causes.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, expect

from tests.page.browsing import DESK, PHONE, chromium, visiting
from tests.page.falling import play
from tests.page.scene import ConsumerProcess, Scene, playing
from tests.page.states.causes import STATES, State
from tools.repository import ROOT

FOLDER = ROOT / "docs" / "pictures"
OTHERS = ("mail", "search-index", "warehouse")
PHONE_LONG = {**PHONE, "height": 1250}  # down to the buttons and plots
SIZES: dict[str, Any] = {
    "desk": {"width": 1280, "height": 720},
    "phone": {"width": 390, "height": 844},
}
NARROW = {"width": 1180, "height": 760}
LOOKS: dict[str, dict[str, Any]] = {
    "page-light": {"viewport": DESK},
    "page-dark": {"viewport": DESK, "color_scheme": "dark"},
    "page-phone": {"viewport": PHONE_LONG},
}


def main() -> None:
    """Play the scene and take every picture."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        browser = stack.enter_context(chromium())
        scene = stack.enter_context(playing(folder))
        scene.writer.start()
        for name in OTHERS:
            _start(stack, scene.consumer(name))
        billing = scene.consumer("billing")
        _start(stack, billing)
        _take_states(browser, scene, billing)
        for name, options in LOOKS.items():
            _take_look(browser, scene.relay.url, name, options)
        for state in STATES:
            _take_cause(browser, state, folder / state.name)


def _start(stack: ExitStack, consumer: ConsumerProcess) -> None:
    stack.callback(consumer.child.stop)
    consumer.child.start()


def _take_states(browser: Browser, scene: Scene, consumer: ConsumerProcess) -> None:
    with visiting(browser, scene.relay.url, viewport=NARROW) as visit:
        page = visit.page

        def take(name: str) -> None:
            _settle(page)
            page.screenshot(path=FOLDER / f"consumer-{name}.png", animations="disabled")

        play(page, scene, consumer, take)


def _take_look(browser: Browser, url: str, name: str, options: dict[str, Any]) -> None:
    with visiting(browser, url, **options) as visit:
        page = visit.page
        expect(page.locator("#rows-body tbody tr").first).to_be_visible()
        page.locator("#schemas summary").first.click()
        page.evaluate("scrollTo(0, 0)")
        _settle(page)
        page.screenshot(
            path=FOLDER / f"{name}.png", full_page=name != "page-phone", animations="disabled"
        )


def _take_cause(browser: Browser, state: State, folder: Path) -> None:
    """Take a state of `causes` on a desk and on a phone, above the fold."""
    folder.mkdir()
    with state.caused(folder) as url:
        for size, viewport in SIZES.items():
            with visiting(browser, url, viewport=viewport) as visit:
                expect(visit.page.locator("#banner")).to_have_attribute("data-kind", state.kind)
                _settle(visit.page)
                path = FOLDER / f"state-{state.name}-{size}.png"
                visit.page.screenshot(path=path, animations="disabled")


def _settle(page: Page) -> None:
    """Wait for figures of this very moment."""
    with page.expect_response(lambda answer: answer.url.endswith("/clients")):
        pass
    page.wait_for_timeout(300)


if __name__ == "__main__":
    main()
