"""The plots: axes, spans, and the cursor."""

from __future__ import annotations

import time

from playwright.sync_api import Browser, expect

from databus.relay.admin.models import History
from tests.page.browsing import visiting
from tests.page.fake_relay import FakeRelay


def ramp(name: str, seconds: int) -> History:
    """Return three minutes of figures, the oldest 0, one minute not known."""
    end = time.time()
    known = [not 60 <= n < 120 for n in range(180)]
    values: list[float | None] = [float(n) if k else None for n, k in enumerate(known)]
    return History(
        physical_source=name,
        step_s=1.0,
        at=[end - 179 + n for n in range(180)],
        events_per_s=values,
        bytes_per_s=values,
        delay_s=values,
        behind_s=[None] * 180,
        used_bytes=[n << 20 if k else None for n, k in enumerate(known)],
        capacity_bytes=256 << 20,
    )


def test_a_plot_has_axes_and_leaves_out_what_is_not_known(
    browser: Browser, fake: FakeRelay
) -> None:
    fake.history = ramp
    with visiting(browser, fake.url) as visit:
        plot = visit.page.get_by_role("slider", name="Rate, rows/s")
        expect(plot.locator(".readout")).to_have_text("now 179 rows/s")
        ticks = plot.locator(".grid text").all_text_contents()
        assert ticks[:5] == ["0", "50", "100", "150", "200"]
        assert all(len(text) == len("12:34") and text[2] == ":" for text in ticks[5:])
        curve = plot.locator(".curve-0").get_attribute("d") or ""
        assert curve.count("M") == 2
        ring = visit.page.get_by_role("slider", name="Ring, bytes used")
        expect(ring.locator(".grid text").nth(4)).to_have_text("256 MiB")


def test_the_arrow_keys_read_a_plot_and_those_beside_it(browser: Browser, fake: FakeRelay) -> None:
    fake.history = ramp
    with visiting(browser, fake.url) as visit:
        page = visit.page
        plot = page.get_by_role("slider", name="Rate, rows/s")
        expect(plot.locator(".readout")).to_have_text("now 179 rows/s")
        page.evaluate(
            "() => { window.fetch = () => new Promise(() => {}) }"
        )  # the figures stand still
        plot.focus()
        page.keyboard.press("Home")
        expect(plot.locator(".readout")).to_contain_text(" 0 rows/s")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        expect(plot.locator(".readout")).to_contain_text(" 2.00 rows/s")
        assert "2.00 rows/s" in (plot.get_attribute("aria-valuetext") or "")
        expect(page.get_by_role("slider", name="Lag").locator(".readout")).to_contain_text(
            "commit to ring 2.0 s"
        )
        page.keyboard.press("Escape")
        expect(plot.locator(".readout")).to_have_text("now 179 rows/s")


def test_the_pointer_reads_a_plot(browser: Browser, fake: FakeRelay) -> None:
    fake.history = ramp
    with visiting(browser, fake.url) as visit:
        plot = visit.page.get_by_role("slider", name="Rate, rows/s")
        expect(plot.locator(".readout")).to_have_text("now 179 rows/s")
        canvas = plot.locator("svg")
        canvas.hover(position={"x": 60, "y": 50})  # before the first figure
        expect(plot.locator(".readout")).to_contain_text(" 0 rows/s")
        assert plot.locator(".cursor").get_attribute("d") != ""
        visit.page.locator("h1").hover()
        expect(plot.locator(".readout")).to_contain_text("now")


def test_spans_are_chosen(browser: Browser, fake: FakeRelay) -> None:
    asked: list[int] = []
    answer = fake.history

    def note(name: str, seconds: int) -> History:
        asked.append(seconds)
        return answer(name, seconds)

    fake.history = note
    with visiting(browser, fake.url) as visit:
        for name, seconds in (("1 h", 3600), ("1 day", 86_400), ("10 min", 600)):
            button = visit.page.get_by_role("button", name=name)
            with visit.page.expect_response(lambda one: f"seconds={seconds}" in one.url):  # noqa: B023
                button.press("Enter")
            expect(button).to_have_attribute("aria-pressed", "true")
    assert {600, 3600, 86_400} <= set(asked)
