"""A sink that begins with the rows that are there, which a bootstrap server has."""

from __future__ import annotations

import random
import time
from contextlib import closing
from pathlib import Path

from databus.demo.processes import python_module, wait_until
from databus.demo.stage import Stage
from tests.client.sinks.serving.test_killed import PATIENCE_S, archived, copied

ROWS, KILLS = 3000, 6
TABLE = "CREATE TABLE t1 (id INTEGER PRIMARY KEY, v INTEGER, s TEXT)"
SINKS = """
data_dir = "state"
relays = ["{relay}"]
bootstrap_servers = ["{bootstrap}"]

[[sinks]]
name = "exact"
kind = "tests.client.sinks.copy_sink:ExactCopy"
sources = ["shop.*"]
options = {{ path = "{folder}/exact.db" }}
flush = {{ rows = 100, seconds = 0.02 }}

[[sinks]]
name = "lanes"
kind = "tests.client.sinks.copy_sink:UpsertCopy"
sources = ["shop.*"]
order = "row"
lanes = 3
options = {{ path = "{folder}/lanes.db" }}
flush = {{ rows = 100, seconds = 0.02 }}
tables = [{{ sources = ["*"], where = "v < 2000" }}]

[[sinks]]
name = "archive"
kind = "files"
sources = ["shop.*"]
options = {{ folder = "archive" }}
flush = {{ rows = 500, seconds = 0.1 }}
"""


def test_kills_in_the_load_and_after_it_leave_the_rows_of_the_source(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    with (
        Stage("sqlite", [TABLE], ["shop.t1"]) as stage,
        closing(stage.database.connect()) as session,
    ):
        session.begin()
        for key in range(ROWS):
            session.execute("INSERT INTO t1 VALUES (?, ?, ?)", [key, key, f"row {key}"])
        session.commit()
        stage.start_relay()
        stage.start_bootstrap()
        session.execute("UPDATE t1 SET s = 'first' WHERE id = 0")
        stage.await_seeded()
        folder = stage.folder
        text = SINKS.format(relay=stage.url, bootstrap=stage.bootstrap_url, folder=folder)
        (folder / "sink.toml").write_text(text)
        command = python_module("databus.cli.main", "sink", "run", "-c", folder / "sink.toml")
        sinks = stage.child("sinks", command)
        for kill in range(KILLS):
            sinks.start()
            # At first within the load.
            time.sleep(0.8 + rng.random() * (0.5 if kill < 3 else 1.0))
            sinks.kill()
            for _ in range(20):
                key = rng.randrange(ROWS)
                session.execute("UPDATE t1 SET v = ? WHERE id = ?", [rng.randrange(4000), key])
            session.execute("DELETE FROM t1 WHERE id = ?", [rng.randrange(ROWS)])
        sinks.start()
        wanted = {
            ("shop.t1", key): {"id": key, "v": v, "s": s}
            for key, v, s in session.rows("SELECT id, v, s FROM t1")
        }
        some = {place: row for place, row in wanted.items() if row["v"] < 2000}
        for name, rows in (("exact", wanted), ("lanes", some)):
            path = folder / f"{name}.db"
            wait_until(lambda path=path, rows=rows: copied(path) == rows, PATIENCE_S, name)  # type: ignore[misc]
        wait_until(lambda: archived(folder / "archive")[0] == wanted, PATIENCE_S, "archive")
