"""A relay on a real port, for the tests of its HTTP commands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.relay.fakes import ServedRelay
from tests.relay.ring.compiled import WAYS, ring_work


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Do it once with the compiled module and once without it."""
    with ring_work(request.param):
        yield request.param


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[ServedRelay]:
    served = ServedRelay(tmp_path)
    yield served
    served.close()
