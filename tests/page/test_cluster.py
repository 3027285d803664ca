"""The part of the page about the cluster: groups, servers, leases, relays above."""

from __future__ import annotations

from playwright.sync_api import Browser, expect

from tests.page.browsing import PHONE, visiting
from tests.page.fake_cluster import WRITTEN, make_cluster
from tests.page.fake_relay import FakeRelay


def test_a_relay_that_is_alone_has_no_such_part(browser: Browser, fake: FakeRelay) -> None:
    with visiting(browser, fake.url) as visit:
        expect(visit.page.locator("#link-text")).to_have_text("healthy")
        expect(visit.page.locator("#cluster")).to_be_hidden()
        expect(visit.page.locator("#cluster-link")).to_be_hidden()


def test_groups_servers_leases_and_the_chain_are_shown(browser: Browser, fake: FakeRelay) -> None:
    fake.cluster = make_cluster()
    with visiting(browser, fake.url) as visit:
        page = visit.page
        expect(page.locator("#cluster-summary")).to_contain_text("zookeeper://zk-1:2181")
        tables = page.locator("#cluster .cluster-table")
        groups = tables.nth(0).locator("tbody").nth(0).locator("tr")
        expect(groups).to_have_count(3)
        expect(groups.nth(0)).to_contain_text(WRITTEN)
        expect(groups.nth(0)).to_contain_text("32 of 32")
        expect(groups.nth(1)).to_contain_text("halted: resized by host-a:4711, term 3")
        expect(groups.nth(1)).to_contain_text("unknown")
        expect(groups.nth(2)).to_contain_text("no process runs")
        lines = tables.nth(1).locator("tbody tr")
        order = ["relay-a", "relay-b", "relay-c", "boot-1"]
        expect(lines).to_have_count(len(order))
        for number, name in enumerate(order):
            expect(lines.nth(number)).to_contain_text(name)
        expect(lines.nth(1)).to_contain_text("gone since")
        expect(tables.nth(2)).to_contain_text("here ← http://relay-b:11115 ← database")
        expect(tables.nth(3).locator("tbody tr")).to_have_count(1)
        expect(tables.nth(3)).to_contain_text("capture/shop")


def test_partitions_and_moves_come_on_demand(browser: Browser, fake: FakeRelay) -> None:
    fake.cluster = make_cluster()
    with visiting(browser, fake.url) as visit:
        button = visit.page.get_by_role("button", name=WRITTEN)
        expect(button).to_have_attribute("aria-expanded", "false")
        assert ("group", WRITTEN) not in fake.asked
        button.click()
        details = visit.page.locator(".group-details").first
        expect(details.locator(".partitions tbody tr")).to_have_count(32)
        first = details.locator(".partitions tbody tr").first
        expect(first).to_contain_text("host-a:4711:9f31aa, then host-b:4712:77aa01")
        expect(first).to_contain_text("not begun")
        expect(details.locator(".moves li")).to_contain_text("→ host-b:4712:77aa01: 1, 3, 5")
        assert ("group", WRITTEN) in fake.asked
        button.click()
        expect(details).to_be_hidden()


def test_a_coordinator_that_is_away_is_named(browser: Browser, fake: FakeRelay) -> None:
    fake.cluster = make_cluster("zookeeper://zk-1:2181 cannot be used now: ConnectionLoss")
    with visiting(browser, fake.url) as visit:
        expect(visit.page.locator("#cluster-summary")).to_contain_text("does not answer")
        expect(visit.page.locator("#cluster-summary")).to_contain_text("ConnectionLoss")
        expect(visit.page.locator("#cluster tbody").first).to_be_visible()


def test_it_fits_a_phone(browser: Browser, fake: FakeRelay) -> None:
    fake.cluster = make_cluster()
    with visiting(browser, fake.url, viewport=PHONE) as visit:
        visit.page.get_by_role("button", name=WRITTEN).click()
        expect(visit.page.locator(".group-details").first).to_be_visible()
        wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert visit.page.evaluate(wide) == 0
