"""A connection to a fresh database of each kind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import sqlalchemy as sa

from databus.demo.private_mariadb import HOST, PrivateMariaDB
from tests.mariadb_server import fresh_database
from tests.postgres_server import PrivatePostgres, fresh_url


@pytest.fixture(params=["sqlite", "mariadb", "mysql", "postgresql"])
def connection(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    postgres: PrivatePostgres,
    mariadb: PrivateMariaDB,
    mysql_server: PrivateMariaDB,
) -> Iterator[sa.Connection]:
    """Connect to a fresh database, of each kind in turn; needs their plugins."""
    dialect: str = request.param
    with ExitStack() as stack:
        url = f"sqlite:///{tmp_path}/some.db"
        if dialect == "postgresql":
            url = stack.enter_context(fresh_url(postgres))
        elif dialect != "sqlite":
            server = mariadb if dialect == "mariadb" else mysql_server
            name = stack.enter_context(fresh_database(server)).name
            login = f"{server.user}:{server.password}@{HOST}:{server.port}"
            url = f"{dialect}+pymysql://{login}/{name}?charset=utf8mb4"
        engine = sa.create_engine(url, poolclass=sa.NullPool)
        yield stack.enter_context(engine.connect())
