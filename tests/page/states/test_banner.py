"""What is wrong, where, and what to do: told at the top of the page, in words and in colour."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from databus.relay.admin.trouble import Trouble
from tests.page.browsing import RULES, text_of, visiting
from tests.page.fake_relay import FakeRelay, make_client, make_source
from tests.page.states.causes import STATES, State

DESK, PHONE = {"width": 1280, "height": 720}, {"width": 390, "height": 844}
LOOKS: tuple[dict[str, Any], ...] = (
    {"viewport": DESK, "color_scheme": "light"},
    {"viewport": PHONE, "color_scheme": "dark"},
)
COLOURS = {
    ("well", "light"): "rgb(26, 111, 51)",
    ("well", "dark"): "rgb(76, 194, 100)",
    ("bad", "light"): "rgb(196, 22, 28)",
    ("bad", "dark"): "rgb(255, 128, 121)",
}


@pytest.mark.mariadb
@pytest.mark.parametrize("state", STATES, ids=lambda state: state.name)
def test_each_state_is_told_in_words_and_colour_above_the_fold_and_axe_finds_nothing(
    browser: Browser, tmp_path: Path, state: State
) -> None:
    with state.caused(tmp_path) as url:
        for look in LOOKS:
            with visiting(browser, url, **look) as visit:
                _check(visit.page, state, look)


def _check(page: Page, state: State, look: dict[str, Any]) -> None:
    banner = page.locator("#banner")
    expect(banner).to_have_attribute("data-kind", state.kind)
    for words in state.words:
        expect(banner).to_contain_text(words)
    for label, words in state.parts:
        expect(page.locator("#overview li").filter(has_text=label)).to_contain_text(words)
    colour = banner.evaluate("node => getComputedStyle(node).borderLeftColor")
    assert colour == COLOURS[state.kind, look["color_scheme"]]
    box = banner.bounding_box()
    assert box is not None
    assert box["y"] + box["height"] <= look["viewport"]["height"]
    found = Axe().run(page, options={"runOnly": RULES})
    assert found.violations_count == 0, found.generate_report()


def test_the_worst_comes_first_and_what_is_more_than_three_is_folded(
    browser: Browser, fake: FakeRelay
) -> None:
    fake.sources = [make_source("paused", state="paused"), make_source(warnings=["low on logs"])]
    fake.clients = [make_client(f"app-{n}", "falling", 0.1) for n in range(50)]
    fake.clients += [make_client("ledger", "fallen", None), make_client("mail", "suspended")]
    with visiting(browser, fake.url) as visit:
        page = visit.page
        heads = page.locator("#banner .what")
        expect(heads).to_have_text(
            [
                "ledger has lagged out",
                "50 consumers are about to be overwritten",
                "mail is stopped by an error",
            ]
        )
        expect(page.locator("#banner .why").nth(1)).to_have_text("app-0, app-1, app-10 and 47 more")
        page.get_by_role("button", name="Show 2 more").press("Enter")
        expect(heads).to_have_count(5)
        expect(heads.nth(3)).to_have_text("paused: capture is paused")
        expect(heads.nth(4)).to_have_text("shop: a warning")


def test_a_part_that_fails_does_not_colour_the_others(browser: Browser, fake: FakeRelay) -> None:
    fake.troubles = [_trouble("error", "capture", "a row does not fit")]
    fake.change_source("shop", state="error", is_connected=False)
    with visiting(browser, fake.url) as visit:
        page = visit.page
        expect(page.locator("#overview .state")).to_have_text(["not read", "error", "1 live"])
        expect(page.locator("#map .box").first).to_contain_text("not read")
        fake.troubles = [_trouble("unreachable", "database", "refused")]
        fake.change_source("shop", state="unreachable")
        expect(page.locator("#overview .state")).to_have_text(["unreachable", "ok", "1 live"])


def test_a_problem_that_begins_and_one_that_ends_are_told_once_and_no_countdown_is(
    browser: Browser, fake: FakeRelay
) -> None:
    with visiting(browser, fake.url) as visit:
        page = visit.page
        expect(page.locator("#banner")).to_have_attribute("data-kind", "well")
        page.evaluate(
            "window.said = []; new MutationObserver(() => news.textContent && "
            "said.push(news.textContent)).observe(document.getElementById('news'), "
            "{childList: true, characterData: true, subtree: true}); null"
        )
        fake.troubles = [_trouble("unreachable", "database", "refused")]
        expect(page.locator("#banner .when")).to_contain_text("next try in")
        page.wait_for_timeout(2500)  # two more beats, with other seconds
        fake.troubles = []
        expect(page.locator("#banner")).to_have_attribute("data-kind", "well")
        assert page.evaluate("said") == [
            "shop: the database does not answer",
            "All is well again.",
        ]


def test_a_relay_that_does_not_answer_says_so_and_nothing_of_the_others(
    browser: Browser, fake: FakeRelay
) -> None:
    with visiting(browser, fake.url) as visit:
        page = visit.page
        expect(page.locator("#overview .state")).to_have_text(["connected", "ok", "1 live"])
        fake.stop()
        expect(page.locator("#overview .state")).to_have_text(
            ["not known", "no answer", "not known"]
        )
        assert "The values below are old." in text_of(page, "#banner")


def _trouble(state: str, part: str, text: str) -> Trouble:
    return Trouble.model_validate(
        {
            "physical_source": "shop",
            "part": part,
            "state": state,
            "text": text,
            "since": 1.0,
            "next_try_at": None if state == "error" else 4e9,
        }
    )
