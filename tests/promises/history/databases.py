"""A database on a server of its own, which a test may purge, replace or alter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from databus.demo.private_mariadb import PrivateMariaDB
from tests.mariadb_server import Database
from tests.promises.running import new_database


@contextmanager
def own_database(
    request: pytest.FixtureRequest, options: Mapping[str, str | int], *, is_mysql: bool
) -> Iterator[Database]:
    """Start a server with options, MySQL or MariaDB; yield a new database on it."""
    if is_mysql:
        server = request.getfixturevalue("new_mysql")(options=dict(options))
    else:
        server = PrivateMariaDB(options=dict(options))
    with server, new_database(server, "shop") as database:
        yield database
