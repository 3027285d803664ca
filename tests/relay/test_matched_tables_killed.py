"""Tables come, go and are renamed while a relay with patterns is killed: each row comes once."""

from __future__ import annotations

import json
import random
import secrets
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError

import pytest

from databus.demo.processes import Child, free_port, python_module
from tests import PATIENCE_S
from tests.mariadb_server import Database
from tests.relay.fakes import get, wait_until
from tests.relay.test_matched_tables import ids_of

pytest_plugins = ["tests.mariadb"]

STEPS = 120


class Churn:
    """Random statements and kills; `rows` has what each table was given."""

    def __init__(self, database: Database, relay: Child, rng: random.Random) -> None:
        self._run, self._relay, self._rng = database.run, relay, rng
        self.rows: dict[str, list[int]] = {}
        self._tables = [self._make("first")]

    def step(self, number: int) -> None:
        match self._rng.choices(("make", "rename", "drop", "kill", "insert"), (10, 4, 3, 5, 78)):
            case ["make"]:
                self._tables.append(self._make(f"made_{number}"))
            case ["rename"]:
                self._run(f"CREATE TABLE tmp_{number} (id INT PRIMARY KEY)")
                self._run(f"RENAME TABLE tmp_{number} TO renamed_{number}")
                self.rows[f"renamed_{number}"] = []
                self._tables.append(f"renamed_{number}")
            case ["drop"] if len(self._tables) > 1:
                self._run(f"DROP TABLE {self._tables.pop()}")
            case ["kill"]:
                self._relay.kill()
                self._relay.start()
            case _:
                table = self._rng.choice(self._tables)
                self._run(f"INSERT INTO {table} VALUES ({2 * number}), ({2 * number + 1})")
                self.rows[table] += [2 * number, 2 * number + 1]

    def _make(self, table: str) -> str:
        self._run(f"CREATE TABLE {table} (id INT PRIMARY KEY)")
        self.rows[table] = []
        return table


@pytest.fixture
def relay(database: Database, tmp_path: Path) -> Iterator[tuple[Child, str]]:
    port, server = free_port(), database.server
    (tmp_path / "password").write_text(server.password)
    (tmp_path / "password").chmod(0o600)
    (tmp_path / "relay.toml").write_text(
        f'data_dir = "data"\n[http]\nport = {port}\n[[physical_sources]]\nname = "shop"\n'
        f'uri = "{server.uri}"\npassword_file = "password"\nreconnect_min_s = 0.05\n'
        f'sources = ["{database.name}.*", "!{database.name}.tmp_*"]\n'
    )
    words = ("relay", "run", "-c", tmp_path / "relay.toml")
    child = Child("relay", python_module("databus.cli.main", *words), tmp_path)
    child.start()
    try:
        yield child, f"http://127.0.0.1:{port}"
    finally:
        child.stop(20)


@pytest.mark.mariadb
def test_each_row_of_each_table_comes_once_whatever_is_killed(
    database: Database, relay: tuple[Child, str]
) -> None:
    child, url = relay
    seed = secrets.randbelow(1 << 32)
    print(f"seed {seed}")
    churn = Churn(database, child, random.Random(seed))
    wait_until(lambda: is_running(url), PATIENCE_S)
    for number in range(STEPS):
        churn.step(number)

    def has_all() -> bool:
        known = {one["name"] for one in json.loads(get(url, "/sources").body)}
        names = {table: f"{database.name}.{table}" for table in churn.rows}
        return known >= set(names.values()) and all(
            sorted(ids_of(url, names[table])) == rows for table, rows in churn.rows.items()
        )

    wait_until(lambda: is_running(url) and has_all(), PATIENCE_S)


def is_running(url: str) -> bool:
    try:
        return get(url, "/health").status == 200
    except (OSError, URLError):
        return False
