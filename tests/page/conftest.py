"""A browser for all tests of the page, and a relay that says what a test wants."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.page.browsing import chromium
from tests.page.fake_relay import FakeRelay


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """A headless Chromium."""
    with chromium() as browser:
        yield browser


@pytest.fixture
def fake() -> Iterator[FakeRelay]:
    """A relay with made-up figures."""
    relay = FakeRelay()
    yield relay
    relay.stop()
