"""The databases that the tests of this folder write to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from databus.demo.private_mariadb import PrivateMariaDB
from tests.client.sinks.ready.sql.targets import DIALECTS, Target
from tests.mariadb_server import fresh_database
from tests.postgres_server import PrivatePostgres, fresh_url

NewTarget = Callable[[str], Target]


@contextmanager
def fresh(
    dialect: str, folder: Path, postgres: PrivatePostgres, servers: dict[str, PrivateMariaDB]
) -> Iterator[Target]:
    """Make a database, dropped at the end."""
    if dialect == "sqlite":
        yield Target(f"sqlite:///{folder / 'copy.db'}", folder)
    elif dialect == "postgresql":
        with fresh_url(postgres) as url:
            yield Target(url, folder)
    else:
        server = servers[dialect]
        with fresh_database(server) as made:
            login = f"{server.user}:{server.password}@127.0.0.1:{server.port}"
            yield Target(f"{dialect}+pymysql://{login}/{made.name}", folder)


@pytest.fixture
def new_target(
    tmp_path: Path,
    postgres: PrivatePostgres,
    mariadb: PrivateMariaDB,
    mysql_server: PrivateMariaDB,
) -> Iterator[NewTarget]:
    """Return what makes a fresh database of a dialect."""
    servers = {"mariadb": mariadb, "mysql": mysql_server}
    with ExitStack() as stack:
        yield lambda dialect: stack.enter_context(fresh(dialect, tmp_path, postgres, servers))


@pytest.fixture(params=DIALECTS)
def target(request: pytest.FixtureRequest, new_target: NewTarget) -> Target:
    """Give a fresh database, of each kind in turn."""
    return new_target(request.param)
