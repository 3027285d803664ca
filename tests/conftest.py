"""What holds for every test: it leaves nothing behind."""

from __future__ import annotations

import platform
import shutil
import sqlite3
from collections.abc import Iterator

import pytest

from databus import __version__
from tests.leaks import take_stock, what_is_left

# Threads and children end a moment after they are told to; anything that takes
# longer was not waited for by the test.
PATIENCE_S = 2.0


def pytest_report_header() -> str:
    """Say what is under test."""
    server = shutil.which("mariadbd", path="/usr/sbin:/usr/local/sbin:/usr/bin") or "not installed"
    return (
        f"databus {__version__}, Python {platform.python_version()}, "
        f"SQLite {sqlite3.sqlite_version}, MariaDB {server}"
    )


@pytest.fixture(autouse=True)
def _leaves_nothing_behind() -> Iterator[None]:
    before = take_stock()
    yield
    left = what_is_left(before, PATIENCE_S)
    if left:
        pytest.fail("left behind: " + "; ".join(left), pytrace=False)
