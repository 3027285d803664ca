"""The page on a real relay: its figures, its buttons, its tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from databus.demo.processes import Child, python_module
from tests.page.browsing import text_of, visiting
from tests.promises.running import Remembering, RunningRelay, Shop, consuming, running, wait_until
from tests.relay.fakes import ServedRelay, get, insert, transaction

READER, ADMIN = "a-token-of-a-reader", "a-token-of-an-admin"


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[ServedRelay]:
    """A relay whose source says what the test puts in."""
    served = ServedRelay(tmp_path)
    yield served
    served.close()


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[ServedRelay]:
    """The same, with tokens."""
    files = {}
    for kind, token in (("reader", READER), ("admin", ADMIN)):
        files[f"{kind}_tokens_file"] = tmp_path / kind
        files[f"{kind}_tokens_file"].write_text(token)
        files[f"{kind}_tokens_file"].chmod(0o600)
    served = ServedRelay(tmp_path, http={"port": 0, **files})
    yield served
    served.close()


def api(url: str, path: str, token: str = "") -> Any:
    """Return what the API says."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return json.loads(get(url, f"/api/v1/{path}", headers).body)


def facts(page: Page, place: str) -> dict[str, str]:
    """Return the terms of a list and what is said of each."""
    return {
        " ".join((one.locator("dt").text_content() or "").split()): one.locator("dd").text_content()
        or ""
        for one in page.locator(f"{place} > div").all()
    }


def test_figures_are_those_of_the_api_and_of_who_counts(browser: Browser, tmp_path: Path) -> None:
    shop = Shop(tmp_path / "shop.db")
    consumer = Remembering()
    with (
        running(RunningRelay(tmp_path, shop.settings()).start()) as relay,
        consuming([relay.url], ["shop.orders"], consumer, name="counting", report_every_s=0.2),
        visiting(browser, relay.url) as visit,
    ):
        page = visit.page
        shop.insert(*range(1, 1301), each=4)
        shop.close()
        wait_until(lambda: len(consumer.events) == 1300, "all rows")
        newest = str(consumer.scns[-1])
        source = page.locator("#source-shop .facts")
        expect(source).to_contain_text(f"Newest SCN{newest}")
        expect(source).to_contain_text("1,300 rows")
        line = page.locator(".client").filter(has_text="counting")
        expect(line.locator(".checkpoint")).to_have_text(newest)
        expect(line.locator(".words")).to_have_text("at the newest window")
        expect(line.locator(".state")).to_have_text("live")
        line.get_by_role("button").press("Enter")
        expect(line.locator(".details")).to_contain_text(re.compile("Rows *1,300"))
        _compare(page, relay)


def _compare(page: Page, relay: RunningRelay) -> None:
    said = api(relay.url, "physicalSources/shop")
    shown = facts(page, "#source-shop .facts")
    assert shown["Newest SCN"] == said["ring"]["maxScn"]
    assert shown["Oldest SCN"] == said["ring"]["minScn"]
    assert shown["Since the start"].startswith(f"{said['events']:,} rows · {said['windows']:,} tx")
    assert shown["Sources"] == "shop.orders"
    used = said["ring"]["usedBytes"]
    assert text_of(page, ".ring .words").startswith(f"{int(used / 1024 + 0.5)} KiB of 64.0 MiB")
    last = api(relay.url, "physicalSources/shop/rows?source=shop.orders&limit=30")["rows"]
    scns = page.locator("#rows-body td.scn").all_text_contents()
    assert scns == [row["scn"] for row in reversed(last)]
    ids = page.locator("#rows-body td:nth-child(4)").all_text_contents()
    assert ids == [str(number) for number in range(1300, 1270, -1)]
    (client,) = api(relay.url, "clients")["clients"]
    assert page.locator(".client .checkpoint").text_content() == client["positions"][0]["scn"]


def test_a_source_is_paused_and_resumed_by_keyboard_alone(
    browser: Browser, relay: ServedRelay
) -> None:
    relay.put(transaction(1, insert(1)))
    with visiting(browser, relay.url) as visit:
        page = visit.page
        state = page.locator("#source-shop .state")
        expect(state).to_have_text("running")
        _tab_to(page, "Pause")
        page.keyboard.press("Enter")
        expect(state).to_have_text("paused")
        expect(page.locator(".answer")).to_contain_text("pause: the source is paused")
        expect(page.locator("#map .box").first).to_contain_text("paused")
        assert api(relay.url, "physicalSources/shop")["state"] == "paused"
        # The focus is on the same button, which says something else now.
        page.keyboard.press("Space")
        expect(state).to_have_text("running")
        relay.put(transaction(2, insert(2)))
        expect(page.locator("#source-shop .facts")).to_contain_text("Newest SCN2")


def _tab_to(page: Page, name: str) -> None:
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == name:
            return
    pytest.fail(f"no {name} within 60 steps")


def test_a_token_is_asked_for_and_an_admins_does_everything(
    browser: Browser, locked: ServedRelay
) -> None:
    locked.put(transaction(1, insert(1)))
    with visiting(browser, locked.url) as visit:
        page = visit.page
        dialog = page.get_by_role("dialog", name="Enter a token")
        expect(dialog.get_by_role("textbox", name="Token")).to_be_focused()
        page.keyboard.type("not the one")
        page.keyboard.press("Enter")
        expect(dialog.locator(".wrong")).to_contain_text("no spaces")
        dialog.get_by_role("textbox", name="Token").fill("not-the-one-either")
        page.keyboard.press("Enter")
        expect(dialog).to_contain_text("The relay does not accept that token.")
        page.keyboard.type(ADMIN)
        page.keyboard.press("Enter")
        expect(dialog).to_be_hidden()
        expect(page.locator("#role")).to_have_text("admin")
        page.get_by_role("button", name="Pause").press("Enter")
        expect(page.locator("#source-shop .state")).to_have_text("paused")
        assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
        assert ADMIN not in page.content()
        page.get_by_role("button", name="Forget the token").press("Enter")
        expect(dialog).to_be_visible()
        assert page.evaluate("sessionStorage.length") == 0


def test_a_readers_buttons_are_disabled_and_say_why(browser: Browser, locked: ServedRelay) -> None:
    with _reading(browser, locked) as page:
        for name in ("Pause", "Drain…", "Restart…"):
            button = page.get_by_role("button", name=name)
            expect(button).to_be_disabled()
            expect(button).to_have_accessible_description("These need an admin token.")


def test_a_reader_who_presses_all_the_same_is_told_no(
    browser: Browser, locked: ServedRelay
) -> None:
    with _reading(browser, locked) as page:
        page.locator("#source-shop button").first.evaluate(
            "button => { button.disabled = false; button.click() }"
        )
        expect(page.locator(".answer")).to_contain_text("pause failed: ")
        assert api(locked.url, "physicalSources/shop", READER)["state"] == "running"


@contextmanager
def _reading(browser: Browser, relay: ServedRelay) -> Iterator[Page]:
    with visiting(browser, relay.url) as visit:
        visit.page.get_by_role("textbox", name="Token").fill(READER)
        visit.page.keyboard.press("Enter")
        expect(visit.page.locator("#role")).to_have_text("reader")
        yield visit.page


def test_a_question_about_a_token_can_be_put_off(browser: Browser, locked: ServedRelay) -> None:
    with visiting(browser, locked.url) as visit:
        page = visit.page
        expect(page.get_by_role("dialog")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.locator("#banner .what")).to_have_text("The relay requires a token.")
        page.get_by_role("button", name="Enter a token").press("Enter")
        page.keyboard.type(READER)
        page.keyboard.press("Enter")
        expect(page.locator("#role")).to_have_text("reader")
        expect(page.locator("#banner")).to_have_attribute("data-kind", "well")


def test_a_relay_that_is_killed_and_started_again_goes_on_in_the_page(
    browser: Browser, tmp_path: Path
) -> None:
    shop = Shop(tmp_path / "shop.db")
    with (
        running(RunningRelay(tmp_path, shop.settings()).start()) as relay,
        visiting(browser, relay.url) as visit,
    ):
        page = visit.page
        shop.insert(1)
        expect(page.locator("#rows-body tbody tr")).to_have_count(1)
        relay.child.kill()
        expect(page.locator("#banner")).to_contain_text("The relay has not answered since")
        shop.insert(2)
        shop.close()
        relay.start()
        expect(page.locator("#banner")).to_have_attribute("data-kind", "well")
        expect(page.locator("#rows-body tbody tr")).to_have_count(2)


def test_a_tail_that_has_ended_leaves_the_page_at_once(browser: Browser, tmp_path: Path) -> None:
    shop = Shop(tmp_path / "shop.db")
    with (
        running(RunningRelay(tmp_path, shop.settings()).start()) as relay,
        visiting(browser, relay.url) as visit,
    ):
        shop.insert(1)
        shop.close()
        command = ("databus.cli.main", "tail", "shop.orders", "--relay", relay.url)
        tail = Child("tail", python_module(*command, "--from", "earliest"), tmp_path)
        tail.start()
        expect(visit.page.locator(".client")).to_have_count(1)
        expect(visit.page.locator(".client .self")).to_contain_text("callbacks")
        tail.stop()  # by SIGTERM
        expect(visit.page.locator(".client")).to_have_count(0, timeout=20_000)
