"""The distribution's Chromium, and a page that notes whatever is not as it should be."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests import PATIENCE_S

PATIENCE_MS = 1000 * PATIENCE_S
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]  # of axe
PHONE = {"width": 375, "height": 800}
DESK = {"width": 1360, "height": 900}
# What Chromium itself says of an answer that is an error, or of none.
_OF_A_REQUEST = "Failed to load resource"

expect.set_options(timeout=PATIENCE_MS)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run a headless Chromium; fails where there is none."""
    program = shutil.which("chromium")
    if program is None:
        pytest.fail("no chromium: run tools/install_system_packages.sh", pytrace=False)
    # Its sandbox does not work for root, as which containers run tests.
    words = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=words)
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Visit:
    """A page that is open, and what went wrong in it."""

    page: Page
    home: str
    errors: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)

    def watch(self) -> None:
        """Note errors of scripts, answers that are errors, and requests that go elsewhere."""
        self.page.on("console", lambda message: self._note(message.type, message.text))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self._note_request(request.url))

    def _note(self, kind: str, text: str) -> None:
        if text.startswith(_OF_A_REQUEST):
            self.refused.append(text)
        elif kind in ("error", "warning"):
            self.errors.append(text)

    def _note_request(self, url: str) -> None:
        if urlsplit(url).netloc != urlsplit(self.home).netloc:
            self.elsewhere.append(url)


@contextmanager
def visiting(browser: Browser, url: str, **options: Any) -> Iterator[Visit]:
    """Open a page in a fresh profile; fails when anything went wrong in it."""
    context = browser.new_context(**({"viewport": DESK} | options))
    try:
        visit = Visit(context.new_page(), url)
        visit.page.set_default_timeout(PATIENCE_MS)
        visit.watch()
        visit.page.goto(url)
        yield visit
    finally:
        context.close()
    assert visit.errors == []
    assert visit.elsewhere == []


def text_of(page: Page, selector: str) -> str:
    """Return the text of the one element, blanks as one."""
    return " ".join((page.locator(selector).text_content() or "").split())
