"""Who did what, and the settings: in the page of an admin, and not of a reader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

from tests.page.browsing import RULES, visiting
from tests.relay.admin.page_parts.test_audit import ADMIN, READER, locked, mark
from tests.relay.fakes import ServedRelay


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[ServedRelay]:
    """A relay with tokens."""
    served = locked(tmp_path)
    yield served
    served.close()


def test_an_admin_sees_what_was_done_and_the_settings(browser: Browser, relay: ServedRelay) -> None:
    with visiting(browser, relay.url) as visit:
        page = visit.page
        page.get_by_role("textbox", name="Token").fill(ADMIN)
        page.keyboard.press("Enter")
        part = page.locator("#administration")
        expect(part).to_contain_text("Nobody has paused")
        page.get_by_role("button", name="Pause").press("Enter")
        line = part.locator("tbody tr").first
        expect(line).to_contain_text(f"admin token {mark(ADMIN)}127.0.0.1")
        expect(line).to_contain_text("physicalSources/shop/pausedone (200)")
        part.locator("summary").press("Enter")
        setting = part.locator("tr").filter(has_text="physical_sources.shop.sources")
        expect(setting).to_contain_text("shop.person, shop.orderssettings")
        assert ADMIN not in page.content()
        found = Axe().run(page, options={"runOnly": RULES})
        assert found.violations_count == 0, found.generate_report()


def test_a_reader_sees_neither(browser: Browser, relay: ServedRelay) -> None:
    with visiting(browser, relay.url) as visit:
        page = visit.page
        page.get_by_role("textbox", name="Token").fill(READER)
        page.keyboard.press("Enter")
        expect(page.locator("#role")).to_have_text("reader")
        expect(page.locator("#administration")).to_be_hidden()
        assert visit.refused == [
            "Failed to load resource: the server responded with a status of 401 (Unauthorized)"
        ] * len(visit.refused)
