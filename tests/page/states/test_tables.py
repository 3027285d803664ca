"""The tables in the page: their figures, a search, an order, and hundreds of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.page.browsing import visiting
from tests.page.fake_relay import FakeRelay, make_client, make_source
from tests.promises.running import Remembering, RunningRelay, Shop, consuming, running, wait_until

LINES = "#tables tbody tr"


def many(tables: int) -> list[dict[str, object]]:
    """Return the sources of so many tables."""
    return [{"name": f"shop.t{n:03}", "id": n + 1} for n in range(tables)]


def names(page: Page) -> list[str]:
    """Return the tables shown, in order."""
    return page.locator(f"{LINES} th").all_text_contents()


def test_tables_are_searched_sorted_and_folded(browser: Browser, fake: FakeRelay) -> None:
    fake.sources = [make_source(sources=many(500))]
    fake.clients = [make_client("slow", "behind", 0.5, sources=["shop.t007"])]
    with visiting(browser, fake.url) as visit:
        page = visit.page
        expect(page.locator(LINES)).to_have_count(50)
        assert names(page)[:2] == ["shop.t499", "shop.t498"], "the highest rate first"
        page.get_by_role("button", name="Table", exact=True).press("Enter")
        assert names(page)[:2] == ["shop.t000", "shop.t001"]
        lag = page.get_by_role("columnheader", name="Lag of the slowest")
        lag.get_by_role("button").press("Enter")
        assert names(page)[0] == "shop.t007", "unknown lags come last"
        expect(lag).to_have_attribute("aria-sort", "descending")
        expect(page.locator(LINES).first).to_contain_text("6 min 17 s")
        page.get_by_label("Find").fill("T1 9")
        expect(page.locator(LINES)).to_have_count(19)
        expect(page.locator("#tables .summary")).to_contain_text("19 of 500 tables")
        page.get_by_label("Find").fill("")
        page.locator("#tables").get_by_role("button", name="Show 450 more").press("Enter")
        expect(page.locator(LINES)).to_have_count(500)


def test_a_lag_that_is_not_known_of_one_consumer_is_not_known_of_the_table(
    browser: Browser, fake: FakeRelay
) -> None:
    fake.clients = [make_client("a", edge=0.5), make_client("b", "silent", None)]
    with visiting(browser, fake.url) as visit:
        line = visit.page.locator(LINES).filter(has_text="shop.orders")
        expect(line.locator("td").nth(4)).to_have_text("2")
        expect(line.locator("td").nth(5)).to_have_text("unknown")


@pytest.mark.parametrize("tables", [1, 21, 500])
@pytest.mark.parametrize("consumers", [0, 5, 50, 500])
def test_a_relay_of_any_size_is_shown_and_needs_no_scrolling_sideways(
    browser: Browser, fake: FakeRelay, tables: int, consumers: int
) -> None:
    sources = many(tables)
    fake.sources = [make_source(sources=sources)]
    fake.clients = [
        make_client(f"app-{n:03}", sources=[str(sources[n % tables]["name"])])
        for n in range(consumers)
    ]
    for width in (1280, 390):
        with visiting(browser, fake.url, viewport={"width": width, "height": 800}) as visit:
            page = visit.page
            expect(page.locator("#tables .summary")).to_contain_text(
                f"{tables} table{'s' if tables > 1 else ''};"
            )
            expect(page.locator("#consumers-summary")).to_contain_text(
                f"{consumers} consumer{'s' if consumers > 1 else ''}:"
                if consumers
                else "No consumer has read"
            )
            assert page.evaluate("document.documentElement.scrollWidth") == width


def test_the_rows_of_a_table_are_those_that_a_consumer_counts(
    browser: Browser, tmp_path: Path
) -> None:
    shop, consumer = Shop(tmp_path / "shop.db"), Remembering()
    with (
        running(RunningRelay(tmp_path, shop.settings()).start()) as relay,
        consuming([relay.url], ["shop.orders"], consumer, name="counting", report_every_s=0.2),
        visiting(browser, relay.url) as visit,
    ):
        shop.insert(*range(1, 1301), each=4)
        shop.close()
        wait_until(lambda: len(consumer.events) == 1300, "all rows")
        cells = visit.page.locator(f"{LINES} td")
        expect(cells.nth(2)).to_have_text(f"{len(consumer.events):,}")
        expect(cells.nth(4)).to_have_text("1")
