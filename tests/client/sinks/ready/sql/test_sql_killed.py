"""`databus sink run` into SQL tables, process and server killed: no change twice."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pymysql
import pytest

from databus.demo.private_mariadb import PrivateMariaDB
from databus.demo.processes import python_module, wait_until
from databus.demo.stage import Stage
from tests.client.sinks.serving.test_killed import PATIENCE_S, rows, stage, writing
from tests.mariadb_server import connect

pytestmark = pytest.mark.mariadb

KILLS = 5
SINKS = """
data_dir = "state"
relays = ["{url}"]

[[sinks]]
name = "copy"
kind = "sql"
sources = ["shop.*"]
options = {{ url = "{target}", password_file = "password" }}
flush = {{ rows = 20, seconds = 0.02 }}
failures = {{ back_off = {{ first_s = 0.05, max_s = 0.2 }} }}

[[sinks]]
name = "history"
kind = "sql"
sources = ["shop.*"]
flush = {{ rows = 20, seconds = 0.02 }}
failures = {{ back_off = {{ first_s = 0.05, max_s = 0.2 }} }}

[sinks.options]
url = "{target}"
password_file = "password"
table = "{{table}}_log"
mode = "append_history"
"""


def copied(server: PrivateMariaDB) -> dict[tuple[str, int], dict[str, Any]]:
    found = {}
    with closing(connect(server, database="copy")) as connection:
        for table in ("t1", "t2"):
            for key, v, s in selected(connection, f"SELECT id, v, s FROM {table}"):
                found[f"shop.{table}", key] = {"id": key, "v": v, "s": s}
    return found


def selected(connection: Any, query: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        try:
            cursor.execute(query)
        except pymysql.err.ProgrammingError:
            return []  # not made yet
        return list(cursor.fetchall())


def settings_of(made: Stage, server: PrivateMariaDB) -> Path:
    password = made.folder / "password"
    password.write_text(f"{server.password}\n")
    password.chmod(0o600)
    target = f"mariadb://{server.user}@127.0.0.1:{server.port}/copy"
    file = made.folder / "sink.toml"
    file.write_text(SINKS.format(url=made.url, target=target))
    return file


def kill_again_and_again(
    rng: random.Random, start: Callable[[], None], kill: Callable[[], None], server: PrivateMariaDB
) -> None:
    start()
    for turn in range(KILLS):
        # After it has begun to write, and some time later.
        time.sleep(1.5 + rng.random())
        if turn % 2:
            server.restart(kill=True)
        else:
            kill()
            start()


def test_after_kills_of_sink_and_server_the_copy_is_the_source() -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    with PrivateMariaDB() as server, stage("sqlite") as made:
        with closing(connect(server)) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE copy CHARACTER SET utf8mb4")
        command = python_module("databus.cli.main", "sink", "run", "-c", settings_of(made, server))
        sinks = made.child("sinks", command)
        with writing(made, rng):
            kill_again_and_again(rng, sinks.start, sinks.kill, server)
        with closing(made.database.connect()) as session:
            wanted = rows(session)
        wait_until(lambda: copied(server) == wanted, PATIENCE_S, "the copy")
        wait_until(lambda: replayed(server) == wanted, PATIENCE_S, "the history")


def replayed(server: PrivateMariaDB) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the rows that the changes of the history amount to."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    with closing(connect(server, database="copy")) as connection:
        for table in ("t1", "t2"):
            query = f"SELECT id, v, s, _databus_op, _databus_scn, _databus_id FROM {table}_log"
            changes = selected(connection, query)
            ids = [one[5] for one in changes]
            assert len(ids) == len(set(ids))
            # A change of the key is a delete, and an insert with the same number.
            for key, v, s, op, _scn, _id in sorted(changes, key=order):
                found.pop((f"shop.{table}", key), None)
                if op != "delete":
                    found[f"shop.{table}", key] = {"id": key, "v": v, "s": s}
    return found


def order(change: tuple[Any, ...]) -> tuple[int, int, bool]:
    return change[4], int(str(change[5]).split(":")[1]), change[3] != "delete"
