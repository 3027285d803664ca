"""A MariaDB that quickstart may change, and a database in it for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from databus.demo.private_mariadb import PrivateMariaDB
from tests.mariadb_server import Database, fresh_database


@pytest.fixture(scope="session")
def changeable() -> Iterator[PrivateMariaDB]:
    """Run a server whose settings tests may change."""
    with PrivateMariaDB() as server:
        yield server


@pytest.fixture
def shop(changeable: PrivateMariaDB) -> Iterator[Database]:
    """Make a database with orders from before; accounts and settings are as at first."""
    with fresh_database(changeable) as made:
        made.run(
            "DROP USER IF EXISTS 'capture'@'127.0.0.1'",
            "SET GLOBAL binlog_row_metadata = 'NO_LOG'",
            "SET GLOBAL binlog_row_image = 'FULL'",
            "CREATE TABLE orders (id INT PRIMARY KEY, status VARCHAR(40))",
            "INSERT INTO orders VALUES (1, 'old'), (2, 'old')",
        )
        yield made
