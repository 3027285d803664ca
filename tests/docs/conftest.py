"""What the tests of the pages share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.terminal import Reader


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    """Somebody with an empty folder; all that they start ends with the test."""
    made = Reader(tmp_path)
    try:
        yield made
    finally:
        made.close()
