"""The part of the page about other relays."""

from __future__ import annotations

import time

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

from databus.relay.admin.page_parts.other_relays import OtherRelay, OtherSource
from tests.page.browsing import PHONE, RULES, text_of, visiting
from tests.page.fake_relay import FakeRelay

SHOP = OtherSource(name="shop", state="running", is_connected=True, problem="", delay_s=0.2)
STOPPED = OtherSource(
    name="crm", state="error", is_connected=True, problem="a row does not fit", delay_s=None
)
WELL = OtherRelay(
    url="http://relay-b:11115",
    seen_at=time.time(),
    version="0.1.0",
    is_healthy=True,
    sources=[SHOP],
    clients={"live": 3},
)
ILL = WELL.model_copy(
    update={
        "url": "http://relay-c:11115",
        "is_healthy": False,
        "sources": [SHOP, STOPPED],
        "clients": {"live": 3, "falling": 1},
    }
)
GONE = OtherRelay(
    url="http://relay-d:11115",
    seen_at=time.time() - 60,
    problem="does not answer: Connection refused",
)


def test_a_page_of_one_relay_has_no_such_part(browser: Browser, fake: FakeRelay) -> None:
    with visiting(browser, fake.url) as visit:
        expect(visit.page.locator("#link-text")).to_have_text("healthy")
        expect(visit.page.locator("#relays")).to_be_hidden()
        expect(visit.page.locator("#relays-link")).to_be_hidden()


def test_each_relay_has_a_line_and_what_is_wrong_stands_in_the_banner(
    browser: Browser, fake: FakeRelay
) -> None:
    fake.others = [WELL, ILL, GONE]
    with visiting(browser, fake.url) as visit:
        page = visit.page
        lines = page.locator("#relays tbody tr")
        expect(lines).to_have_count(3)
        for number, words in enumerate(
            [
                ["http://relay-b:11115", "healthy", "shop", "running", "3 live"],
                ["not healthy", "crm", "error", "a row does not fit", "1 falling · 3 live"],
                ["no answer since", "does not answer: Connection refused", "unknown"],
            ]
        ):
            for text in words:
                expect(lines.nth(number)).to_contain_text(text)
        own = lines.nth(0).get_by_role("link", name="http://relay-b:11115")
        expect(own).to_have_attribute("href", "http://relay-b:11115/")
        banner = page.locator("#banner")
        expect(banner).to_contain_text("http://relay-d:11115 does not answer")
        expect(banner).to_contain_text("http://relay-c:11115 is not well")
        expect(banner).to_contain_text("crm: a row does not fit")
        assert "Other relays1 of 3 healthy" in text_of(page, "#overview")
        found = Axe().run(page, options={"runOnly": RULES})
        assert found.violations_count == 0, found.generate_report()


def test_relays_that_are_well_leave_the_banner_well(browser: Browser, fake: FakeRelay) -> None:
    fake.others = [WELL]
    with visiting(browser, fake.url) as visit:
        expect(visit.page.locator("#banner")).to_contain_text("All is well")


def test_it_fits_a_phone(browser: Browser, fake: FakeRelay) -> None:
    fake.others = [WELL, ILL, GONE]
    with visiting(browser, fake.url, viewport=PHONE) as visit:
        expect(visit.page.locator("#relays tbody tr")).to_have_count(3)
        wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert visit.page.evaluate(wide) == 0
