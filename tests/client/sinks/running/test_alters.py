"""Tables of MariaDB that are altered while a copy follows them, from the log to the target."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from databus.client import DatabusClient
from databus.client.sinks.rules.orders import Order
from databus.demo.private_mariadb import PrivateMariaDB
from tests.client.shop import wait_until
from tests.mariadb_server import fresh_database
from tests.promises.running import RunningRelay, mysql_source

pytestmark = pytest.mark.mariadb
PATIENCE_S = 60.0
COLUMNS = "id, title, c, d, at IS NOT NULL, f"


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateMariaDB]:
    with PrivateMariaDB(options={"binlog-row-metadata": "FULL"}) as server:
        yield server


def rows(file: Path) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(file)) as copy:
        try:
            return copy.execute(f"SELECT {COLUMNS} FROM t ORDER BY id").fetchall()
        except sqlite3.OperationalError:  # not yet
            return []


@pytest.mark.parametrize("lanes", [1, 3])
def test_rows_at_rest_get_what_several_statements_without_rows_gave_them(
    server: PrivateMariaDB, tmp_path: Path, lanes: int
) -> None:
    file = tmp_path / "copy.db"
    with fresh_database(server) as database:
        database.run(
            "RESET MASTER", "CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(20), f FLOAT)"
        )
        source = mysql_source(database, tmp_path, sources=[f"{database.name}.t"])
        relay = RunningRelay(tmp_path / "relay", source)
        with ExitStack() as stack:
            stack.callback(relay.child.stop)
            relay.start()
            client = DatabusClient(
                relays=[relay.url], checkpoint_dir=str(tmp_path / "positions"), start="earliest"
            )
            stack.callback(client.stop)
            options = {"url": f"sqlite:///{file}", "exactly_once": lanes == 1}
            order: Order = "transaction" if lanes == 1 else "row"
            client.register_sink(
                "sql", f"{database.name}.t", name="copy", order=order, lanes=lanes, options=options
            )
            client.start()
            database.run("INSERT INTO t VALUES (1, 'tea', 0.1), (2, 'jam', 0.2)")
            database.run(
                "ALTER TABLE t ADD c VARCHAR(9) NOT NULL DEFAULT 'dé\"f'",
                "ALTER TABLE t RENAME COLUMN name TO title",
                "ALTER TABLE t ADD d INT DEFAULT 7, ADD at TIMESTAMP DEFAULT CURRENT_TIMESTAMP",
                "INSERT INTO t (id, title, c, d, f) VALUES (3, 'salt', 'x', 8, 1.5)",
            )
            old = [(1, "tea", 'dé"f', 7, 1, 0.1), (2, "jam", 'dé"f', 7, 1, 0.2)]
            wait_until(lambda: rows(file) == [*old, (3, "salt", "x", 8, 1, 1.5)], PATIENCE_S)
