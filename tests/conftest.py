"""What holds for every test: it leaves nothing behind."""

from __future__ import annotations

import os
import platform
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from databus import __version__
from databus.demo.private_mariadb import PrivateMariaDB
from tests.fetched_servers import not_run, split_by_presence
from tests.leaks import take_stock, what_is_left
from tests.mysql_server import mysql_basedir

# Threads and children end a moment after they are told to, on a busy machine a long one; anything
# that takes longer was not waited for by the test.
END_S = 10.0
# Tests start hundreds of processes: none of them is to compile what another one has compiled.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# A JVM of Spark's that an example or a command starts ends before more compiling pays.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
# How long examples take says how busy the machine is.
settings.register_profile("databus", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("databus")

# Folders and files whose tests take seconds each, the slowest files first.
SLOW = (
    *("torture/", "promises/switching/", "docs/test_pages", "page/", "client/spark/jobs/"),
    *("client/spark/", "bootstrap/test_", "promises/", "project/test_packaging", "demo/"),
    *("bootstrap/", "benchmarks/", "relay/sources/mysql/"),
)

_LEFT_OUT = pytest.StashKey[dict[str, int]]()


def pytest_report_header() -> str:
    """Say what is under test."""
    server = shutil.which("mariadbd", path="/usr/sbin:/usr/local/sbin:/usr/bin") or "not installed"
    return (
        f"databus {__version__}, Python {platform.python_version()}, "
        f"SQLite {sqlite3.sqlite_version}, MariaDB {server}, "
        f"MySQL {mysql_basedir() or 'not fetched'}"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of servers that could not be fetched."""
    items[:], left_out = split_by_presence(items)
    # Two processes take one file after the other: one that takes minutes must not come last.
    items.sort(key=lambda item: _rank(item.path.relative_to(config.rootpath).as_posix()))
    config.stash[_LEFT_OUT] = {title: len(tests) for title, tests in left_out.items()}
    for tests in left_out.values():
        config.hook.pytest_deselected(items=tests)


def _rank(path: str) -> int:
    """Return the place of a file's folder among the slow ones, or after them."""
    found = (number for number, folder in enumerate(SLOW) if path.startswith(f"tests/{folder}"))
    return next(found, len(SLOW))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand what was left out to the process that prints the summary, when that is another one."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["left_out"] = session.config.stash.get(_LEFT_OUT, {})


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take what a worker left out: each of them has collected all tests."""
    node.config.stash[_LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", {})


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say which tests were left out, and why."""
    for title, count in config.stash.get(_LEFT_OUT, {}).items():
        terminalreporter.write_line(not_run(title, count), yellow=True)


@pytest.fixture(scope="session", autouse=True)
def _template_of_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let all MariaDB servers of this process begin with a copy of one data folder."""
    PrivateMariaDB.templates = tmp_path_factory.mktemp("mariadb")
    yield
    PrivateMariaDB.templates = None


@pytest.fixture(autouse=True)
def _leaves_nothing_behind() -> Iterator[None]:
    before = take_stock()
    yield
    left = what_is_left(before, END_S)
    if left:
        pytest.fail("left behind: " + "; ".join(left), pytrace=False)
