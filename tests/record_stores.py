"""Fixtures with the stores of leases and records; load with `pytest_plugins`.

    pytest_plugins = ["tests.record_stores"]

A test that asks for `store_url` is run once for each kind of store, on real servers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from databus.demo.private_mariadb import HOST
from databus.leases.places import open_records
from databus.leases.records import Records
from tests.mariadb_server import Database
from tests.zookeeper_server import PrivateZookeeper

pytest_plugins = ["tests.mariadb"]

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[PrivateZookeeper]:
    """Run a private server for the session; leave it running."""
    with PrivateZookeeper() as server:
        yield server


@pytest.fixture(scope="session", params=["file", "sqlite", "mariadb", "zookeeper"])
def store_kind(request: pytest.FixtureRequest) -> str:
    """Return the kind of store, whose server runs already; no test has left it behind."""
    kind = str(request.param)
    if kind in ("mariadb", "zookeeper"):
        request.getfixturevalue(kind)
    return kind


@pytest.fixture
def store_url(store_kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of an empty store."""
    if store_kind == "file":
        return f"file:{tmp_path / 'store'}"
    if store_kind == "sqlite":
        return f"sqlite:///{tmp_path / 'store.db'}"
    if store_kind == "mariadb":
        database: Database = request.getfixturevalue("database")
        server = database.server
        return f"mysql://{server.user}:{server.password}@{HOST}:{server.port}/{database.name}"
    zookeeper: PrivateZookeeper = request.getfixturevalue("zookeeper")
    return zookeeper.url(f"/test-{next(_numbers)}")


@pytest.fixture
def open_store(store_url: str) -> Iterator[Callable[[], Records]]:
    """Return a function that opens the store as another process would; all are closed."""
    opened: list[Records] = []

    def open_one() -> Records:
        opened.append(open_records(store_url))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()
