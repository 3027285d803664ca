"""What the page shows, and what one can do with it."""

from __future__ import annotations

import time

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from databus.daemon.client_report import SinkReport
from databus.relay.admin.models import DrainView, Problem
from databus.relay.admin.trouble import Trouble
from databus.schemas.errors import DatabusError
from tests.page.browsing import RULES, text_of, visiting
from tests.page.fake_relay import (
    FakeRelay,
    make_client,
    make_registration,
    make_row,
    make_source,
)
from tests.promises.running import wait_until

EVIL = '<img src="x" onerror="document.title=\'taken\'"><script>document.title="taken"</script>'
STATES = ("live", "behind", "falling", "fallen", "ahead", "bootstrapping", "silent")


def line(page: Page, name: str) -> str:
    """Return the text of a consumer's line."""
    return text_of(page, f'[id="client-{name}-1"]')


def test_each_state_has_a_word_a_shape_and_a_colour_of_its_own(
    browser: Browser, fake: FakeRelay
) -> None:
    fake.clients = [make_client(state, state, 0.1) for state in STATES]
    with visiting(browser, fake.url) as visit:
        found = {}
        for state in STATES:
            mark = visit.page.locator(f'[id="client-{state}-1"] .state')
            expect(mark).to_have_text(state)
            shape = mark.locator("use").get_attribute("href")
            found[shape] = mark.evaluate("node => getComputedStyle(node).color")
    assert len(found) == len(STATES)
    # What must be acted on is red; that its shapes differ tells the three apart.
    assert len(set(found.values())) == len(STATES) - 2


def test_the_worst_consumers_come_first_and_most_are_folded(
    browser: Browser, fake: FakeRelay
) -> None:
    fake.clients = [make_client(f"app-{n:03}") for n in range(200)]
    fake.clients[77] = make_client("app-077", "falling", 0.1)
    fake.clients[150] = make_client("app-150", "behind", 0.5)
    with visiting(browser, fake.url) as visit:
        page = visit.page
        names = page.locator(".client .name")
        expect(names).to_have_count(12)
        assert names.all_text_contents()[:3] == ["app-077", "app-150", "app-000"]
        assert text_of(page, "#consumers-summary") == (
            "200 consumers: 1 falling · 1 behind · 198 live"
        )
        expect(page.locator(".map .rest")).to_have_text("and 188 more: 188 live")
        assert page.locator("#map .box").count() == 1 + 1 + 12
        page.get_by_role("button", name="Show 188 more").press("Enter")
        expect(names).to_have_count(200)
        page.get_by_role("button", name="Show only the first 12").press("Enter")
        expect(names).to_have_count(12)
        assert page.title() == "(1 falling) databus relay 127.0.0.1:11115"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"state": "live", "edge": 1.0}, "at the newest window"),
        ({"state": "behind", "edge": 0.634}, "63 % left"),
        ({"state": "falling", "edge": 0.12}, "14 s until overwritten · 12 % left"),
        ({"state": "fallen", "edge": None}, "lagged out"),
        ({"state": "silent", "edge": 0.004}, "< 1 % left"),
    ],
)
def test_the_ring_left_until_overwritten_is_a_bar_with_words(
    browser: Browser, fake: FakeRelay, changes: dict[str, object], words: str
) -> None:
    fake.clients = [make_client(**changes)]  # type: ignore[arg-type]
    with visiting(browser, fake.url) as visit:
        meter = visit.page.get_by_role("meter", name="Ring of shop left until overwritten")
        expect(meter).to_have_attribute("aria-valuenow", str(round((fake_edge(fake) or 0) * 100)))
        assert " ".join((meter.get_attribute("aria-valuetext") or "").split()) == words
        assert text_of(visit.page, ".distance .words") == words


def fake_edge(fake: FakeRelay) -> float | None:
    """Return the share of the ring left of the first consumer."""
    return fake.clients[0].positions[0].edge_share


def test_what_a_consumer_says_of_itself_is_shown(browser: Browser, fake: FakeRelay) -> None:
    report = fake.clients[0].report
    assert report is not None
    reading = make_registration(
        mode="snapshot", snapshot_source="shop.orders", snapshot_rows=12_300, problem="no disk"
    )
    fake.clients = [
        make_client(
            "ledger",
            "bootstrapping",
            None,
            report=report.model_copy(update={"registrations": [reading]}),
        )
    ]
    with visiting(browser, fake.url) as visit:
        page = visit.page
        expect(page.locator(".distance .words")).to_have_text(
            "snapshot of shop.orders: 12,300 rows"
        )
        assert "callbacks 12 ms" in line(page, "ledger")
        assert "2 retries · 1 bootstrap" in line(page, "ledger")
        assert "no disk" in line(page, "ledger")
        page.get_by_role("button", name="ledger").press("Enter")
        expect(page.get_by_role("heading", name="Registration orders")).to_be_visible()
        assert "Rows90,210" in line(page, "ledger").replace(" ", "")


@pytest.mark.parametrize(
    ("dead_letters", "words"),
    [
        (0, "sink kafka · 10.0.3.17"),
        (1, "sink kafka · 1 dead letter · 10.0.3.17"),
        (None, "sink kafka · dead letters unknown · 10.0.3.17"),
    ],
)
def test_a_sink_says_its_kind_and_its_dead_letters(
    browser: Browser, fake: FakeRelay, dead_letters: int | None, words: str
) -> None:
    report = fake.clients[0].report
    assert report is not None
    sink = SinkReport(kind="kafka", state="running", skipped=2, dead_letters=dead_letters)
    report = report.model_copy(update={"sink": sink})
    fake.clients = [make_client("sink topics", report=report)]
    with visiting(browser, fake.url) as visit:
        page = visit.page
        expect(page.locator(".client .place")).to_contain_text(words)
        page.get_by_role("button", name="sink topics").press("Enter")
        shown = line(page, "sink topics").replace(" ", "")
        assert "Sinkkafka,running" in shown
        assert "Rowsskipped2" in shown


@pytest.mark.parametrize(
    ("state", "has_report", "is_trouble"),
    [
        ("live", True, False),
        ("behind", True, False),  # its report says that it has no problem now
        ("live", False, False),
        ("behind", False, True),
    ],
)
def test_an_error_that_is_over_is_no_trouble_any_more(
    browser: Browser, fake: FakeRelay, state: str, has_report: bool, is_trouble: bool
) -> None:
    client = make_client("early", state, last_error="cannot connect", last_error_at=time.time())
    fake.clients = [client if has_report else client.model_copy(update={"report": None})]
    with visiting(browser, fake.url) as visit:
        shown = visit.page.locator(".client .trouble")
        expect(shown).to_contain_text("cannot connect")
        assert (shown.get_attribute("data-empty") is None) == is_trouble
        assert shown.inner_text().startswith("none since") != is_trouble


def test_scns_and_large_numbers_are_shown_to_the_last_digit(
    browser: Browser, fake: FakeRelay
) -> None:
    largest, odd = 2**63 - 1, 2**53 + 1
    ring = fake.sources[0].ring.model_copy(update={"max_scn": largest, "min_scn": odd})
    fake.change_source("shop", ring=ring, uri="sqlite:/shop.db")
    fake.rows = [make_row(1, scn=odd, row={"id": odd, "deep": {"in": [largest]}, "price": 0.1})]
    with visiting(browser, fake.url) as visit:
        expect(visit.page.locator("#rows-body tbody tr")).to_have_count(1)
        cells = visit.page.locator("#rows-body tbody td").all_text_contents()
        assert cells[1:] == [str(odd), "insert", str(odd), f'{{"in":["{largest}"]}}', "0.1"]
        facts = text_of(visit.page, "#source-shop .facts")
        assert f"Newest SCN{largest}" in facts
        assert f"Oldest SCN{odd}" in facts
        assert "7.00 GiB · 70 % of what is kept" in facts


def test_where_an_scn_of_mysql_is_in_the_binlog_is_said(browser: Browser, fake: FakeRelay) -> None:
    ring = fake.sources[0].ring.model_copy(update={"max_scn": (3 << 55) | (14 << 32) | 4567})
    fake.change_source("shop", ring=ring)
    with visiting(browser, fake.url) as visit:
        expect(visit.page.locator("#source-shop .facts")).to_contain_text(
            "epoch 3, binlog file 14, offset 4567"
        )


def test_an_update_shows_before_and_after(browser: Browser, fake: FakeRelay) -> None:
    fake.rows = [
        make_row(
            1,
            op="update",
            row={"id": 1, "note": "b", "n": 5},
            before={"id": 1, "note": "a", "n": 5},
        )
    ]
    with visiting(browser, fake.url) as visit:
        changed = visit.page.locator("#rows-body td.changed")
        expect(changed).to_have_count(1)
        assert changed.locator("del").text_content() == "a"
        assert changed.locator("ins").text_content() == "b"


def test_a_row_opens_in_full_with_long_values_before_and_after_side_by_side(
    browser: Browser, fake: FakeRelay
) -> None:
    old, new = "old " * 2000, "new " * 2000
    row = {"id": 1, "note": new, "n": None}
    fake.rows = [make_row(1, op="update", row=row, before={"id": 1, "note": old, "n": 5})]
    with visiting(browser, fake.url, viewport={"width": 390, "height": 844}) as visit:
        page = visit.page
        opener = page.get_by_role("button", name="update")
        opener.press("Enter")
        dialog = page.get_by_role("dialog", name="update in shop.orders")
        cells = dialog.locator("[data-changed] td")
        expect(cells).to_have_count(4)
        assert cells.nth(0).text_content() == old
        assert cells.nth(1).text_content() == new
        assert cells.all_text_contents()[2:] == ["5", "null"]
        left, right = cells.nth(0).bounding_box(), cells.nth(1).bounding_box()
        assert left is not None
        assert right is not None
        assert left["x"] + left["width"] <= right["x"] + 1
        assert right["x"] + right["width"] <= 390
        assert Axe().run(page, options={"runOnly": RULES}).violations_count == 0
        page.keyboard.press("Escape")
        expect(dialog).to_have_count(0)
        expect(opener).to_be_focused()


def test_rows_stand_still_while_somebody_looks_at_them(browser: Browser, fake: FakeRelay) -> None:
    with visiting(browser, fake.url) as visit:
        page, rows = visit.page, visit.page.locator("#rows-body tbody tr")
        expect(rows).to_have_count(5)
        page.locator("#rows .rows-frame").hover()
        expect(page.locator(".held")).to_have_text("held while you are in it")
        fake.rows.append(make_row(6))
        wait_for_beats(page, 2)
        assert rows.count() == 5
        page.locator("h1").hover()
        expect(rows).to_have_count(6)
        hold = page.get_by_role("button", name="Hold")
        hold.press("Enter")
        fake.rows.append(make_row(7))
        wait_for_beats(page, 2)
        assert rows.count() == 6
        page.get_by_role("button", name="Continue").press("Enter")
        expect(rows).to_have_count(7)


def wait_for_beats(page: Page, number: int) -> None:
    """Wait until the page has asked the relay so many times."""
    for _ in range(number):
        with page.expect_response(lambda answer: answer.url.endswith("/problems")):
            pass


def test_another_source_is_chosen_by_keyboard(browser: Browser, fake: FakeRelay) -> None:
    fake.rows.append(make_row(9, source="shop.customers", row={"id": 9, "city": "Bern"}))
    with visiting(browser, fake.url) as visit:
        visit.page.get_by_label("Source", exact=True).select_option("shop.customers")
        expect(visit.page.locator("#rows-body th")).to_have_text(
            ["Commit", "SCN", "Change", "id", "city"]
        )


def test_the_history_of_schemas_says_what_changed(browser: Browser, fake: FakeRelay) -> None:
    with visiting(browser, fake.url) as visit:
        page = visit.page
        summary = page.locator("#schemas summary")
        expect(summary).to_have_text("shop.orders id 1 · 3 versions · 1 not compatible")
        summary.press("Enter")
        newest = page.locator("#schemas .versions > li").first
        assert newest.locator(".changes li").all_text_contents() == [
            "changed id int → bigint",
            "removed note varchar(200)",
        ]
        expect(newest).to_contain_text("not compatible with the one before")
        newest.get_by_role("button", name="Avro").press("Enter")
        expect(newest.locator("pre")).to_contain_text('"name": "orders"')


def test_the_columns_of_a_version_are_shown(browser: Browser, fake: FakeRelay) -> None:
    with visiting(browser, fake.url) as visit:
        page = visit.page
        page.locator("#schemas summary").press("Enter")
        page.get_by_role("button", name="Columns").first.press("Enter")
        lines = page.get_by_role("table", name="Columns of version 3").locator("tbody tr")
        expect(lines).to_have_text(["idbigint1", "notevarchar(200) null"])
        assert Axe().run(page, options={"runOnly": RULES}).violations_count == 0


def test_problems_are_shown_with_their_position(browser: Browser, fake: FakeRelay) -> None:
    fake.problems = [
        Problem(
            at=time.time(),
            physical_source="shop",
            client="",
            scn=60_129_542_221,
            place="binlog.000014:77",
            text="row does not fit",
            count=3,
        )
    ]
    with visiting(browser, fake.url) as visit:
        expect(visit.page.locator(".problems li")).to_have_count(1)
        said = text_of(visit.page, ".problems li")
        assert "shop · SCN 60129542221 · binlog.000014:77 · 3 times" in said
        assert "row does not fit" in said


def test_hostile_texts_are_shown_as_texts(browser: Browser, fake: FakeRelay) -> None:
    fake.clients = [
        make_client(EVIL, last_error=EVIL, last_error_at=time.time(), filters=EVIL, agent=EVIL)
    ]
    fake.rows = [
        make_row(1, row={EVIL: EVIL, "__proto__": EVIL}),
        make_row(2, op="update", row={EVIL: EVIL}, before={EVIL: "a"}),
    ]
    fake.problems = [
        Problem(at=1.0, physical_source="shop", client=EVIL, scn=1, place=EVIL, text=EVIL, count=1)
    ]
    fake.sources = [make_source(problem=EVIL, warnings=[EVIL], state="error")]
    with visiting(browser, fake.url) as visit:
        page = visit.page
        page.locator(".client .more").press("Enter")
        expect(page.locator("#rows-body tbody tr")).to_have_count(2)
        for place in (".client .name", ".client .trouble", ".problems .text", ".trouble-box"):
            assert EVIL in (page.locator(place).first.text_content() or "")
        assert page.locator("#rows-body th").all_text_contents()[3:] == [EVIL, "__proto__"]
        assert page.locator("#rows-body ins").text_content() == EVIL
        assert page.locator("img").count() == 0
        assert page.locator("script").count() == 1
        assert page.title().startswith("(")


def test_markup_made_of_a_string_is_refused_by_the_browser(
    browser: Browser, fake: FakeRelay
) -> None:
    with visiting(browser, fake.url) as visit:
        refused = visit.page.evaluate(
            "() => { try { document.body.innerHTML = '<b>x</b>'; return 'made' }"
            " catch (error) { return error.name } }"
        )
        assert refused == "TypeError"
        visit.errors.clear()  # it says so in the console, too


def test_a_relay_that_goes_away_is_said_and_gone_on_with_when_it_is_back(
    browser: Browser, fake: FakeRelay
) -> None:
    with visiting(browser, fake.url) as visit:
        page = visit.page
        expect(page.locator("#link")).to_contain_text("healthy")
        fake.stop()
        expect(page.locator("#banner")).to_contain_text("The relay has not answered since")
        expect(page.locator("#link")).to_contain_text("no answer")
        fake.clients = [make_client("newcomer")]
        fake.come_back()
        expect(page.locator("#link")).to_contain_text("healthy")
        expect(page.locator("#banner")).to_have_attribute("data-kind", "well")
        expect(page.locator("#news")).to_have_text("The relay answers again.")
        expect(page.locator(".client .name")).to_have_text("newcomer")


def test_the_relay_s_box_says_the_state_of_what_is_wrong_with_it_and_no_worse(
    browser: Browser, fake: FakeRelay
) -> None:
    text = "the disk is full; make room"
    fake.troubles = [
        Trouble(physical_source="shop", state="retrying", text=text, since=1.0, next_try_at=2.0)
    ]
    with visiting(browser, fake.url) as visit:
        box = visit.page.locator('#map .box[data-key="relay"]')
        expect(box).to_contain_text("retrying")
        expect(visit.page.locator("#banner")).to_contain_text("make room")
        fake.troubles = [
            Trouble(physical_source="shop", state="unreachable", text="x", since=1.0, next_try_at=2)
        ]
        expect(box).to_contain_text("ok")


def test_an_error_of_the_relay_is_said_and_gone_on_from(browser: Browser, fake: FakeRelay) -> None:
    with visiting(browser, fake.url) as visit:
        expect(visit.page.locator("#link")).to_contain_text("healthy")
        fake.failure = DatabusError("the ring is out of paper")
        banner = visit.page.locator("#banner")
        expect(banner.locator(".what")).to_have_text(
            "The relay answers with an error: the ring is out of paper"
        )
        fake.failure = None
        expect(banner).to_have_attribute("data-kind", "well")


def test_drain_is_done_when_the_newest_scn_is_typed(browser: Browser, fake: FakeRelay) -> None:
    newest = fake.sources[0].ring.max_scn
    with visiting(browser, fake.url) as visit:
        page = visit.page
        page.get_by_role("button", name="Drain…").press("Enter")
        dialog = page.get_by_role("dialog")
        expect(dialog.get_by_role("textbox")).to_be_focused()
        page.keyboard.type("12")
        page.keyboard.press("Enter")
        expect(dialog.get_by_role("alert")).to_have_text(f"It is not {newest}.")
        assert fake.asked == []
        dialog.get_by_role("textbox").fill(str(newest))
        page.keyboard.press("Enter")
        expect(page.locator(".answer")).to_contain_text("drain: the source is paused")
        assert fake.asked == [("drain", None)]
        fake.change_source(
            "shop",
            drain=DrainView(until_scn=newest or 0, waiting_for=["billing"], is_done=False),
        )
        expect(page.locator(".why")).to_have_text(f"Until {newest}; waits for billing.")
        expect(page.locator("#source-shop .state")).to_have_text("draining")


def test_restart_is_done_from_the_place_that_is_typed_or_not_at_all(
    browser: Browser, fake: FakeRelay
) -> None:
    with visiting(browser, fake.url) as visit:
        page = visit.page
        restart = page.get_by_role("button", name="Restart…")
        restart.press("Enter")
        page.keyboard.press("Escape")
        expect(restart).to_be_focused()
        assert fake.asked == []
        restart.press("Enter")
        page.keyboard.type(str(2**63))
        page.keyboard.press("Enter")
        expect(page.locator(".wrong").last).to_contain_text("at most 63 bits")
        page.get_by_role("textbox").fill(str(2**63 - 1))
        page.keyboard.press("Enter")
        expect(page.locator(".answer")).to_contain_text("restart: the source is running")
        restart.press("Enter")
        page.keyboard.type("gtid:0-1-17")
        page.keyboard.press("Enter")
        wait_until(lambda: len(fake.asked) == 2)
        asked = [(verb, body.at, body.scn) for verb, body in fake.asked]
        assert asked == [("restart", str(2**63 - 1), None), ("restart", "gtid:0-1-17", None)]


def test_figures_that_are_not_known_are_dashes(browser: Browser, fake: FakeRelay) -> None:
    nothing = dict.fromkeys(("min_scn", "max_scn", "prev_scn", "oldest_at", "newest_at", "sleep_s"))
    source = fake.sources[0]
    fake.change_source("shop", ring=source.ring.model_copy(update=nothing))
    fake.clients, fake.rows, fake.schemas = [], [], []
    with visiting(browser, fake.url) as visit:
        expect(visit.page.locator("#source-shop .facts")).to_contain_text("Newest SCN\u2013")
        expect(visit.page.locator(".sleep")).to_have_text(
            "no writes: a consumer may pause for any time"
        )
        expect(visit.page.locator("#consumers-summary")).to_have_text(
            "No consumer has read from this relay recently."
        )
        expect(visit.page.locator(".map .rest")).to_have_text("no consumer")


def test_a_page_that_is_not_seen_asks_for_nothing(browser: Browser, fake: FakeRelay) -> None:
    with visiting(browser, fake.url) as visit:
        page = visit.page
        expect(page.locator("#link")).to_contain_text("healthy")
        page.evaluate(
            "Object.defineProperty(document, 'hidden', {value: true, configurable: true})"
        )
        page.wait_for_load_state("networkidle")
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.wait_for_timeout(1500)
        assert asked == []
        page.evaluate(
            "delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))"
        )
        wait_for_beats(page, 2)
