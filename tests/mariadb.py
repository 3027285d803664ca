"""Fixtures with a real MariaDB; load with `pytest_plugins = ["tests.mariadb"]`.

One private server serves the whole session; each test that asks for `database`
gets a fresh one. A missing server fails the test and says what to install.
What tests import is in `tests/mariadb_server.py`: a plugin must not be imported.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from databus.demo.private_mariadb import PrivateMariaDB
from tests.fetched_servers import needed
from tests.mariadb_server import Database, fresh_database
from tools.fetch_test_servers import NEWER_MARIADB


@pytest.fixture(scope="session")
def mariadb() -> Iterator[PrivateMariaDB]:
    """Run a private server for the session; leave its settings as they are."""
    with PrivateMariaDB() as server:
        yield server


@pytest.fixture(scope="session")
def newer_mariadb() -> Iterator[PrivateMariaDB]:
    """Run a MariaDB of another version, whose log says less; for tests marked `newer_mariadb`."""
    basedir = needed(NEWER_MARIADB, NEWER_MARIADB.find())
    # It would make itself a certificate at each start, which takes 10 s and more.
    with PrivateMariaDB(basedir=basedir, options={"ssl": "OFF"}) as server:
        yield server


@pytest.fixture
def database(mariadb: PrivateMariaDB) -> Iterator[Database]:
    """Make a fresh database, dropped at the end."""
    with fresh_database(mariadb) as made:
        yield made
