"""An account with just the grants of the docs sees of the catalogue what root sees."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from databus.relay.sources.mysql.server.catalog import ServerCatalog
from databus.relay.sources.mysql.server.connection import address_of
from databus.relay.sources.mysql.server.initial_history import table_versions
from databus.relay.sources.mysql.server.variables import is_mariadb_of
from databus.relay.sources.mysql.tables.names import Names
from tests.mariadb_server import Database
from tests.relay.sources.mysql.reading import watching

pytest_plugins = ["tests.mariadb", "tests.mysql"]
pytestmark = pytest.mark.mariadb

TABLES = [
    "CREATE TABLE parent (id INT PRIMARY KEY)",
    "CREATE TABLE child (id INT PRIMARY KEY, p INT, CONSTRAINT pay FOREIGN KEY (p)"
    " REFERENCES parent (id) ON DELETE CASCADE ON UPDATE SET NULL)",
    "CREATE TABLE plain (a INT, b VARCHAR(9) CHARACTER SET latin1 DEFAULT 'x', PRIMARY KEY (b, a))",
    "CREATE TABLE made (id INT PRIMARY KEY, twice INT AS (id * 2) STORED, e ENUM('a', 'b'))",
    "CREATE TABLE keyless (a INT UNSIGNED, b BIT(3), c DATETIME(6))",
    "CREATE VIEW seen AS SELECT id FROM parent",
]
VERSIONED = "CREATE TABLE kept (id INT PRIMARY KEY) WITH SYSTEM VERSIONING"
NAMES = ("parent", "child", "plain", "made", "keyless", "seen", "kept")


@contextmanager
def account(shop: Database) -> Iterator[str]:
    """Make tables of many kinds, and an account with the grants of the docs; return its name."""
    user = f"poor_{shop.name}"
    shop.run(
        *TABLES,
        f"CREATE USER {user} IDENTIFIED BY '{shop.server.password}'",
        f"GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {user}",
        f"GRANT SELECT ON {shop.name}.* TO {user}",
    )
    try:
        yield user
    finally:
        shop.run(f"DROP USER {user}")


def seen_by(shop: Database, folder: Path, user: str) -> dict[str, object]:
    """Return all that capture asks the catalogue, as a user sees it."""
    uri = f"mysql://{user}@127.0.0.1:{shop.server.port}"
    settings = watching(shop, folder, *NAMES, uri=uri)
    catalog = ServerCatalog(address_of(settings), settings, 0)
    catalog.names = Names(settings.source_names)
    variables = catalog.variables()
    is_mariadb = is_mariadb_of(variables)
    return {
        "variables": variables,
        "kinds": catalog.kinds(),
        "problems": catalog.table_problems(settings.source_names),
        "definitions": [catalog.definition(name) for name in settings.source_names],
        "history": table_versions(catalog, shop.name),
        "tables": [name for name in catalog.tables() if name[0] == shop.name],
        "dialect": catalog.dialect(is_mariadb=is_mariadb, zero_dates_are_null=False),
    }


def check(shop: Database, folder: Path) -> None:
    """Check that the account sees what root sees, a cascade among it, which is in no log."""
    with account(shop) as user:
        root = seen_by(shop, folder, shop.server.user)
        poor = seen_by(shop, folder, user)
    for what, found in root.items():
        assert poor[what] == found, what
    problems = poor["problems"]
    assert isinstance(problems, list)
    assert [one for one in problems if "foreign key pay" in one and "ON DELETE CASCADE" in one]
    assert [one for one in problems if "foreign key pay" in one and "ON UPDATE SET NULL" in one]


def test_the_account_of_the_docs_sees_what_root_sees_in_mariadb(
    database: Database, tmp_path: Path
) -> None:
    database.run(VERSIONED)
    check(database, tmp_path)


def test_the_account_of_the_docs_sees_what_root_sees_in_mysql(
    mysql_database: Database, tmp_path: Path
) -> None:
    check(mysql_database, tmp_path)
