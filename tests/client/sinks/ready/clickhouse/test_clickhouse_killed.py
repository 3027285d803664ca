"""`databus sink run` into ClickHouse, both killed at random moments: rows equal the source."""

from __future__ import annotations

import random
import time
from contextlib import closing
from typing import Any

from databus.demo.processes import python_module, wait_until
from databus.demo.stage import Stage
from tests.client.sinks.clickhouse_server import PrivateClickHouse
from tests.client.sinks.serving.test_killed import PATIENCE_S, rows, stage, writing

KILLS = 8
SINKS = """
data_dir = "state"
relays = ["{url}"]

[[sinks]]
name = "serial"
kind = "clickhouse"
sources = ["shop.*"]
options = {{ url = "{target}", database = "shop", table = "serial_{{table}}" }}
flush = {{ rows = 50, seconds = 0.1 }}
failures = {{ back_off = {{ first_s = 0.1, max_s = 0.5 }} }}

[[sinks]]
name = "lanes"
kind = "clickhouse"
sources = ["shop.*"]
order = "row"
lanes = 4
options = {{ url = "{target}", database = "shop", table = "lanes_{{table}}" }}
flush = {{ rows = 50, seconds = 0.1 }}
failures = {{ back_off = {{ first_s = 0.1, max_s = 0.5 }} }}

[[sinks]]
name = "history"
kind = "clickhouse"
sources = ["shop.*"]
flush = {{ rows = 50, seconds = 0.1 }}
failures = {{ back_off = {{ first_s = 0.1, max_s = 0.5 }} }}

[sinks.options]
url = "{target}"
database = "shop"
table = "{{table}}_log"
mode = "append_history"
"""
Rows = dict[tuple[str, int], dict[str, Any]]


def copied(server: PrivateClickHouse, sink: str) -> Rows:
    """Return the rows that FINAL shows."""
    return {
        (f"shop.{table}", key): {"id": key, "v": v, "s": s}
        for table in ("t1", "t2")
        for key, v, s in server.rows(
            f"SELECT toInt32(id), toInt32(v), s FROM shop.{sink}_{table} FINAL"
        )
    }


def replayed(server: PrivateClickHouse) -> Rows:
    """Return the rows that the changes of the history amount to."""
    found: Rows = {}
    for table in ("t1", "t2"):
        # A change of the key is a delete, and an insert with the same number.
        order = "_databus_scn, _databus_index, _databus_op != 'delete'"
        query = f"SELECT toInt32(id), toInt32(v), s, _databus_op FROM shop.{table}_log FINAL"
        for key, v, s, op in server.rows(f"{query} ORDER BY {order}"):
            found.pop((f"shop.{table}", key), None)
            if op != "delete":
                found[f"shop.{table}", key] = {"id": key, "v": v, "s": s}
    return found


def kill_again_and_again(made: Stage, rng: random.Random, server: PrivateClickHouse) -> None:
    command = python_module("databus.cli.main", "sink", "run", "-c", made.folder / "sink.toml")
    sinks = made.child("sinks", command)
    sinks.start()
    for turn in range(KILLS):
        # After it has begun to write, and some time later.
        time.sleep(1.5 + rng.random())
        if turn % 2:
            server.kill()
            time.sleep(rng.random())
            server.start()
        else:
            sinks.kill()
            sinks.start()


def test_after_kills_of_both_the_rows_equal_the_source() -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    with (
        PrivateClickHouse() as server,
        stage("sqlite") as made,
        closing(made.database.connect()) as session,
    ):
        server.clear()
        settings = made.folder / "sink.toml"
        settings.write_text(SINKS.format(url=made.url, target=server.url))
        with writing(made, rng):
            kill_again_and_again(made, rng, server)
        wanted = rows(session)
        assert len(wanted) > 20
        for sink in ("serial", "lanes"):
            wait_until(lambda sink=sink: copied(server, sink) == wanted, PATIENCE_S, sink)  # type: ignore[misc]
        wait_until(lambda: replayed(server) == wanted, PATIENCE_S, "the history")
