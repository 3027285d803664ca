"""Which way the sources of a test read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.relay.sources.read_back import WAYS, Reading


@pytest.fixture(params=WAYS)
def both_ways(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run a test in Python alone, and with the compiled decoder."""
    Reading.way = request.param
    yield
    Reading.way = WAYS[0]
