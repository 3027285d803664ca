"""What the tests of the pages share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.docs.terminal import Reader


@pytest.fixture
def reader() -> Iterator[Reader]:
    """Somebody with an empty folder; all that they start ends with the test.

    It is on a disk: `databus doctor` warns of a folder in memory, where other tests have theirs.
    """
    with TemporaryDirectory(prefix="databus-page-", dir="/var/tmp") as folder:
        made = Reader(Path(folder))
        try:
            yield made
        finally:
            made.close()
