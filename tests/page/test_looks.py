"""Who uses the page by keyboard, on a phone, in the dark, or with a screen reader."""

from __future__ import annotations

import time
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from databus.relay.admin.models import Problem
from tests.page.browsing import DESK, PHONE, RULES, visiting
from tests.page.fake_relay import FakeRelay, make_client, make_row, make_source

LOOKS: dict[str, dict[str, Any]] = {
    "light": {"viewport": DESK, "color_scheme": "light"},
    "dark": {"viewport": DESK, "color_scheme": "dark"},
    "phone": {"viewport": PHONE, "color_scheme": "light", "has_touch": True},
    "phone, dark": {"viewport": PHONE, "color_scheme": "dark", "has_touch": True},
}
STATES = (
    *("live", "behind", "falling", "fallen", "bootstrapping", "silent"),
    *("paused", "suspended"),
)
LONG = "a-name-that-is-longer-than-a-phone-is-wide-and-has-no-place-to-break-it-at-all"


@pytest.fixture
def full(fake: FakeRelay) -> FakeRelay:
    """A relay with something of everything."""
    fake.clients = [make_client(state, state, 0.2) for state in STATES]
    fake.clients += [make_client(LONG, last_error=LONG, last_error_at=time.time())]
    fake.clients += [make_client(f"app-{n}") for n in range(20)]
    fake.sources = [
        make_source(),
        make_source(LONG, state="error", problem=LONG, warnings=[LONG], uri=f"sqlite:/{LONG}"),
        make_source("third", state="paused"),
    ]
    fake.rows += [
        make_row(8, op="delete"),
        make_row(9, op="update", row={"id": 9, "note": LONG}, before={"id": 9, "note": "a"}),
    ]
    fake.problems = [
        Problem(
            at=time.time(),
            physical_source="shop",
            client=LONG,
            scn=7,
            place=LONG,
            text=LONG,
            count=2,
        )
    ]
    return fake


def open_everything(page: Page) -> None:
    """Show what is folded."""
    expect(page.locator("#rows-body tbody tr")).to_have_count(7)
    page.get_by_role("button", name="more: ").press("Enter")
    page.locator(".client .more").first.press("Enter")
    page.locator("#schemas summary").press("Enter")
    page.get_by_role("button", name="Avro").first.press("Enter")


@pytest.mark.parametrize("look", LOOKS)
def test_nothing_is_wrong_by_the_rules_of_accessibility(
    browser: Browser, full: FakeRelay, look: str
) -> None:
    with visiting(browser, full.url, **LOOKS[look]) as visit:
        open_everything(visit.page)
        found = Axe().run(visit.page, options={"runOnly": RULES})
        assert found.violations_count == 0, found.generate_report()
        # What axe could not decide, of contrast, would be a hole in the test.
        assert [html for html in _of_unknown_contrast(found.response) if "→" not in html] == []


def _of_unknown_contrast(response: Any) -> list[str]:
    unsure = [one for one in response["incomplete"] if one["id"] == "color-contrast"]
    found = [node["html"] for one in unsure for node in one["nodes"]]
    return [html for html in found if not html.startswith("<text")]  # drawn: see the next test


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_in_drawings_has_enough_contrast(
    browser: Browser, full: FakeRelay, scheme: Any
) -> None:
    with visiting(browser, full.url, color_scheme=scheme) as visit:
        expect(visit.page.locator("#map text").first).to_be_visible()
        assert visit.page.evaluate(_LEAST_CONTRAST) >= 4.5


# As WCAG 2 has it; drawings stand on panels.
_LEAST_CONTRAST = """() => {
    const numbers = colour => colour.match(/[0-9.]+/g).slice(0, 3).map(Number);
    const light = colour => {
        const [r, g, b] = numbers(colour).map(n => n / 255)
            .map(n => n <= 0.04045 ? n / 12.92 : ((n + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const ground = light(getComputedStyle(document.querySelector(".card")).backgroundColor);
    return Math.min(...[...document.querySelectorAll("svg text")].map(text => {
        const pair = [light(getComputedStyle(text).fill), ground].sort((a, b) => b - a);
        return (pair[0] + 0.05) / (pair[1] + 0.05);
    }));
}"""


@pytest.mark.parametrize("look", LOOKS)
def test_the_questions_are_as_good(browser: Browser, full: FakeRelay, look: str) -> None:
    with visiting(browser, full.url, **LOOKS[look]) as visit:
        visit.page.get_by_role("button", name="Restart…").first.press("Enter")
        visit.page.keyboard.press("Enter")
        expect(visit.page.locator("#confirm-wrong")).to_have_text("Type a place.")
        found = Axe().run(visit.page, options={"runOnly": RULES})
        assert found.violations_count == 0, found.generate_report()


@pytest.mark.parametrize("width", [320, 375, 600, 768, 1024, 1360])
def test_no_width_needs_scrolling_sideways(browser: Browser, full: FakeRelay, width: int) -> None:
    with visiting(browser, full.url, viewport={"width": width, "height": 800}) as visit:
        open_everything(visit.page)
        assert visit.page.evaluate("document.documentElement.scrollWidth") == width


def test_everything_is_reached_and_left_by_tab_in_the_order_of_the_page(
    browser: Browser, full: FakeRelay
) -> None:
    with visiting(browser, full.url) as visit:
        page = visit.page
        expect(page.locator("#rows-body tbody tr")).to_have_count(7)
        page.evaluate("window.fetch = () => new Promise(() => {}), null")
        wanted = page.evaluate(
            "[...document.querySelectorAll("
            "'a[href], button, select, input, summary, [tabindex=\"0\"]')]"
            ".filter(node => node.checkVisibility() && !node.disabled).length"
        )
        tops: list[float] = []
        for _ in range(wanted):
            page.keyboard.press("Tab")
            at = page.evaluate(
                "(() => { const node = document.activeElement, style = getComputedStyle(node);"
                " return {name: node.tagName, outline: style.outline,"
                " section: node.closest('main > section')?.offsetTop ?? -1} })()"
            )
            assert at["name"] != "BODY"
            assert "solid 2px" in at["outline"]
            tops.append(at["section"])
        assert tops == sorted(tops)
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.tagName") == "BODY"


def test_what_is_being_read_is_left_where_it_is_while_figures_change(
    browser: Browser, full: FakeRelay
) -> None:
    with visiting(browser, full.url) as visit:
        page = visit.page
        expect(page.locator(".client")).to_have_count(12)
        button = page.get_by_role("button", name="app-0", exact=True)
        button.press("Enter")
        button.focus()
        full.clients = [
            make_client("app-0", "falling", 0.01),
            *(one for one in full.clients if one.name != "app-0"),
        ]
        expect(page.locator(".client .name").nth(1)).to_have_text("app-0")
        expect(button).to_be_focused()
        expect(button).to_have_attribute("aria-expanded", "true")


def test_nothing_moves_for_who_wants_less_motion(browser: Browser, full: FakeRelay) -> None:
    script = (
        "Math.max(...[...document.querySelectorAll('*')].flatMap(node => {"
        " const style = getComputedStyle(node);"
        " return [style.transitionDuration, style.animationDuration].map(parseFloat) }))"
    )
    with visiting(browser, full.url, reduced_motion="reduce") as visit:
        expect(visit.page.locator(".client")).to_have_count(12)
        assert visit.page.evaluate(script) == 0


def test_live_regions_say_nothing_while_all_is_well(browser: Browser, full: FakeRelay) -> None:
    with visiting(browser, full.url) as visit:
        page = visit.page
        expect(page.locator(".client")).to_have_count(12)
        page.evaluate(
            "window.said = []; for (const node of document.querySelectorAll("
            "'[role=status], [role=alert], [aria-live]')) new MutationObserver(() =>"
            " said.push(node.textContent)).observe(node,"
            " {childList: true, characterData: true, subtree: true, attributes: true}); null"
        )
        for _ in range(3):
            with page.expect_response(lambda answer: answer.url.endswith("/problems")):
                pass
        assert page.evaluate("said") == []
