"""Fixtures for what holds on both kinds of server: each test runs once on each.

Load with `pytest_plugins = ["tests.mariadb", "tests.mysql", "tests.both_servers"]`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from databus.demo.private_mariadb import PrivateMariaDB
from tests.mariadb_server import Database, fresh_database


@pytest.fixture(
    scope="session",
    params=[
        pytest.param("mariadb", marks=pytest.mark.mariadb),
        pytest.param("mysql_server", marks=pytest.mark.mysql),
    ],
)
def either_server(request: pytest.FixtureRequest) -> PrivateMariaDB:
    """Run the session's MariaDB, then its MySQL; leave their settings as they are."""
    server: PrivateMariaDB = request.getfixturevalue(request.param)
    return server


@pytest.fixture
def either_database(either_server: PrivateMariaDB) -> Iterator[Database]:
    """Make a fresh database, dropped at the end."""
    with fresh_database(either_server) as made:
        yield made
