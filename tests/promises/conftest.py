"""Databases and relays that several promises are tested on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from databus.demo.private_mariadb import PrivateMariaDB
from tests.mariadb_server import Database
from tests.promises.running import RunningRelay, Shop, new_database, running

_numbers = itertools.count(1)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    """An SQLite shop."""
    opened = Shop(tmp_path / "shop.db")
    yield opened
    opened.close()


@pytest.fixture
def relay(shop: Shop, tmp_path: Path) -> Iterator[RunningRelay]:
    """A relay of the shop, running."""
    with running(RunningRelay(tmp_path, shop.settings())) as relay:
        yield relay.start()


@pytest.fixture(scope="package")
def server() -> Iterator[PrivateMariaDB]:
    """A MariaDB of this package's own, whose log has nothing of other tests.

    It logs the columns' names, as a relay needs that reads from before an ALTER.
    """
    with PrivateMariaDB(options={"binlog-row-metadata": "FULL"}) as server:
        yield server


@pytest.fixture
def database(server: PrivateMariaDB) -> Iterator[Database]:
    """A fresh database on that server."""
    with new_database(server, f"p{next(_numbers)}") as database:
        yield database
