"""The bootstrap pairs in the page: in the relay's own process, and elsewhere."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from databus.relay.admin.page_parts.bootstrap_beside import Pairs
from tests.page.browsing import visiting
from tests.page.fake_relay import FakeRelay
from tests.page.scene import playing
from tests.standalone.nodes import Node, made, make_shop, sqlite_source

MANY = 4000
RATE = "most_rows_per_s = 400"  # so that the seeding can be looked at


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """`databus run` of `relay.toml`, not started."""
    with made(tmp_path) as node:
        yield node


def test_the_pair_of_databus_run_is_seen_seeding_then_serving_then_paused(
    browser: Browser, node: Node
) -> None:
    node.write(sqlite_source(make_shop(node.folder, MANY)), RATE)
    node.start()
    with visiting(browser, node.url) as visit:
        page = visit.page
        banner, part = page.locator("#banner"), page.locator("#overview li", has_text="Bootstrap")
        expect(banner).to_contain_text("shop: the bootstrap pair is seeding")
        expect(banner).to_contain_text("shop.orders: ")
        expect(part).to_contain_text("seeding")
        expect(page.locator("#bootstrap")).to_contain_text(node.bootstrap_url)
        expect(part).to_contain_text("serving")
        expect(banner).to_have_attribute("data-kind", "well")
        expect(page.locator(".pair-tables li")).to_have_text(f"shop.ordersserving{MANY:,} rows")
        pause = f"{node.bootstrap_url}/api/v1/physicalSources/shop/pause"
        urllib.request.urlopen(urllib.request.Request(pause, method="POST")).close()
        expect(banner).to_contain_text("shop: the bootstrap pair is paused")
        expect(part).to_contain_text("paused")


def test_a_producer_elsewhere_is_shown_as_far_as_it_reports(
    browser: Browser, tmp_path: Path
) -> None:
    with playing(tmp_path) as scene, visiting(browser, scene.relay.url) as visit:
        page = visit.page
        expect(page.locator("#overview li", has_text="Bootstrap")).to_contain_text("serving")
        expect(page.locator("#bootstrap .card")).to_contain_text("bootstrap producer")
        expect(page.locator("#bootstrap")).to_contain_text("report to this relay as clients")
        expect(page.locator(".pair-tables")).to_be_hidden()


def test_a_problem_of_the_pair_is_in_the_banner_and_a_table_behind_it_is_named(
    browser: Browser, fake: FakeRelay
) -> None:
    text = "seeding: the table orders has no primary key"
    table = {"source": "shop.orders", "rows": None, "estimate": None, "percent": None}
    made: dict[str, Any] = {
        "physical_source": "shop",
        "where": "this process",
        "state": "stopped",
        "scn": None,
        "behind_s": None,
        "problems": [text],
        "tables": [table | {"state": "stopped", "left_s": None, "problem": text}],
    }
    fake.pairs = Pairs.model_validate({"url": "http://127.0.0.1:11116", "sources": [made]})
    with visiting(browser, fake.url) as visit:
        page = visit.page
        expect(page.locator("#banner")).to_have_attribute("data-kind", "bad")
        expect(page.locator("#banner .what")).to_have_text("shop: the bootstrap pair has a problem")
        expect(page.locator("#banner .why")).to_have_text(text)
        expect(page.locator("#overview li", has_text="Bootstrap")).to_contain_text("has a problem")
        expect(page.locator(".pair-tables")).to_contain_text(f"stopped{text}")
