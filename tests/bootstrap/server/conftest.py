"""A bootstrap server of a filled store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bootstrap.serving import ServedStore


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedStore]:
    made = ServedStore(tmp_path)
    yield made
    made.close()
