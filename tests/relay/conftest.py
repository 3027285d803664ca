"""A relay on a real port, for the tests of its HTTP commands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.relay.fakes import ServedRelay


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[ServedRelay]:
    served = ServedRelay(tmp_path)
    yield served
    served.close()
