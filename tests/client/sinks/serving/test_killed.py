"""`databus sink run` over real relays, killed at random moments: targets end as their source."""

from __future__ import annotations

import json
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from databus.client.sinks.serving.positions import NAME, read_positions
from databus.demo.databases import Dialect, Session
from databus.demo.processes import python_module, wait_until
from databus.demo.stage import Stage

PATIENCE_S = 180.0
KILLS = 12
SOURCES = ["shop.t1", "shop.t2"]
TABLES = {
    "sqlite": "CREATE TABLE {} (id INTEGER PRIMARY KEY, v INTEGER, s TEXT)",
    "mysql": "CREATE TABLE {} (id INT PRIMARY KEY, v INT, s VARCHAR(40))",
}
SINKS = """
data_dir = "state"
relays = ["{url}"]

[[sinks]]
name = "exact"
kind = "tests.client.sinks.copy_sink:ExactCopy"
sources = ["shop.*"]
options = {{ path = "{folder}/exact.db" }}
flush = {{ rows = 20, seconds = 0.02 }}

[[sinks]]
name = "lanes"
kind = "tests.client.sinks.copy_sink:UpsertCopy"
sources = ["shop.*"]
order = "row"
lanes = 4
options = {{ path = "{folder}/lanes.db" }}
flush = {{ rows = 20, seconds = 0.02 }}

[[sinks]]
name = "archive"
kind = "files"
sources = ["shop.*"]
options = {{ folder = "archive" }}
flush = {{ rows = 50, seconds = 0.1 }}
"""


@contextmanager
def stage(dialect: Dialect) -> Iterator[Stage]:
    tables = [TABLES[dialect].format(name) for name in ("t1", "t2")]
    with Stage(dialect, tables, SOURCES) as made:
        made.start_relay()
        yield made


def change(session: Session, rng: random.Random, number: int) -> None:
    """Commit one transaction of a few random changes."""
    session.begin()
    for _ in range(rng.randint(1, 5)):
        table, key = rng.choice(["t1", "t2"]), rng.randrange(60)
        op = rng.random()
        if op < 0.2:
            session.execute(f"DELETE FROM {table} WHERE id = ?", [key])
        elif op < 0.3:
            other = rng.randrange(60)
            if not session.rows(f"SELECT id FROM {table} WHERE id = ?", [other]):
                session.execute(f"UPDATE {table} SET id = ? WHERE id = ?", [other, key])
        else:
            row = [key, number, f"row {number}"]
            session.execute(f"REPLACE INTO {table} VALUES (?, ?, ?)", row)
    session.commit()


@contextmanager
def writing(
    made: Stage,
    rng: random.Random,
    commit: Callable[[Session, random.Random, int], None] = change,
) -> Iterator[None]:
    """Commit random transactions, on a thread, until the end of the block."""
    own, is_over = random.Random(rng.random()), threading.Event()

    def write() -> None:
        with closing(made.database.connect()) as session:
            number = 0
            while not is_over.wait(0.005):
                number += 1
                commit(session, own, number)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        is_over.set()
        writer.join()


class Server(Protocol):
    """A server that may be killed."""

    def kill(self) -> None: ...

    def start(self) -> object: ...


def kill_both(made: Stage, rng: random.Random, file: Path, server: Server, kills: int) -> None:
    """Run the sinks of a file, and kill them or their target, so many times; they run then."""
    sinks = made.child("sinks", python_module("databus.cli.main", "sink", "run", "-c", file))
    sinks.start()
    for _ in range(kills):
        time.sleep(1.0 + rng.random() / 2)
        if rng.random() < 0.5:
            sinks.kill()
            sinks.start()
        else:
            server.kill()
            time.sleep(rng.random() / 2)
            server.start()


def rows(session: Session) -> dict[tuple[str, int], dict[str, Any]]:
    return {
        (f"shop.{table}", key): {"id": key, "v": v, "s": s}
        for table in ("t1", "t2")
        for key, v, s in session.rows(f"SELECT id, v, s FROM {table}")
    }


def copied(path: Path) -> dict[tuple[str, int], dict[str, Any]]:
    with closing(sqlite3.connect(path, timeout=30)) as copy:
        try:
            found = copy.execute("SELECT source, id, row FROM copy").fetchall()
        except sqlite3.OperationalError:
            return {}  # not made yet
    return {(source, key): json.loads(row) for source, key, row in found}


def seen(folder: Path) -> int:
    """Return how many changes the exact copy has taken."""
    with closing(sqlite3.connect(folder / "exact.db", timeout=PATIENCE_S)) as exact:
        count: int = exact.execute("SELECT count(*) FROM seen").fetchone()[0]
    return count


def archived(folder: Path) -> tuple[dict[tuple[str, int], dict[str, Any]], list[str]]:
    """Return the rows that the changes of an archive amount to, and the ids of the changes."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    ids: list[str] = []
    changes = []
    for entry in sorted((folder / "_manifest").glob("*.json")):
        for file in json.loads(entry.read_text())["files"]:
            lines = (folder / file["path"]).read_text().splitlines()
            changes += [json.loads(line) for line in lines]
    for one in sorted(changes, key=lambda one: (one["scn"], one["index"], one["op"] != "delete")):
        ids.append(f"{one['scn']}:{one['index']}:{one['op']}")
        if one["op"] == "truncate":
            found = {place: row for place, row in found.items() if place[0] != one["source"]}
            continue
        place = (one["source"], one["key"]["id"])
        if one["after"] is None:
            found.pop(place, None)
        else:
            found[place] = one["after"]
    return found, ids


@pytest.mark.parametrize("dialect", ["sqlite", pytest.param("mysql", marks=pytest.mark.mariadb)])
def test_after_kills_at_random_moments_every_target_equals_the_source(dialect: Dialect) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    with stage(dialect) as made, closing(made.database.connect()) as session:
        folder = made.folder
        (folder / "sink.toml").write_text(SINKS.format(url=made.url, folder=folder))
        command = python_module("databus.cli.main", "sink", "run", "-c", folder / "sink.toml")
        sinks = made.child("sinks", command)
        with writing(made, rng):
            for _ in range(KILLS):
                sinks.start()
                # After it has begun to write, and some time later.
                time.sleep(1.0 + rng.random())
                sinks.kill()
                read_positions(folder / "state" / NAME)  # whole, whatever was cut off
        sinks.start()
        wanted = rows(session)
        for name in ("exact", "lanes"):
            path = folder / f"{name}.db"
            wait_until(lambda path=path: copied(path) == wanted, PATIENCE_S, name)  # type: ignore[misc]
        wait_until(lambda: archived(folder / "archive")[0] == wanted, PATIENCE_S, "archive")
        # The last transaction may have left the rows as they were.
        wait_until(lambda: seen(folder) == len(archived(folder / "archive")[1]), PATIENCE_S, "all")
        ids = archived(folder / "archive")[1]
        assert len(ids) == len(set(ids)) == seen(folder)
        sinks.stop()
        positions = read_positions(folder / "state" / NAME)
        assert len({one.checkpoint.window_scn for one in positions.values()}) == 1
