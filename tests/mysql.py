"""Fixtures with a real MySQL; load with `pytest_plugins = ["tests.mysql"]`.

One private server serves the whole session; each test that asks for
`mysql_database` gets a fresh one. Without a MySQL these tests are left out, and
the end of the run says so (`tests/conftest.py`); they are not when the
environment says that it must be there, and then fail here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import pytest

from databus.demo.private_mariadb import PrivateMariaDB
from tests.fetched_servers import needed
from tests.mariadb_server import Database, fresh_database
from tests.mysql_server import PrivateMySQL, initialize, mysql_basedir
from tools.fetch_test_servers import MYSQL


@pytest.fixture(scope="session")
def new_mysql(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., PrivateMySQL]:
    """Return what makes a private MySQL, given server options; not started."""
    basedir = needed(MYSQL, mysql_basedir())
    template = tmp_path_factory.mktemp("mysql") / "data"
    initialize(basedir, template)
    return functools.partial(PrivateMySQL, basedir, template)


@pytest.fixture(scope="session")
def mysql_server(new_mysql: Callable[..., PrivateMySQL]) -> Iterator[PrivateMariaDB]:
    """Run a private MySQL for the session; leave its settings as they are."""
    with new_mysql() as server:
        yield server


@pytest.fixture
def mysql_database(mysql_server: PrivateMariaDB) -> Iterator[Database]:
    """Make a fresh database, dropped at the end."""
    with fresh_database(mysql_server) as made:
        yield made
