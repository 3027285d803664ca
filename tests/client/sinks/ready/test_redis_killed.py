"""`databus sink run` into Redis, both killed at random moments: nothing is lost or doubled."""

from __future__ import annotations

import json
import random
from contextlib import closing
from typing import Any

import pytest

from databus.demo.processes import wait_until
from tests.client.sinks.redis_server import PrivateRedis
from tests.client.sinks.serving.test_killed import PATIENCE_S, kill_both, rows, stage, writing

pytestmark = pytest.mark.redis

KILLS = 10
SINKS = """
data_dir = "state"
relays = ["{url}"]

[[sinks]]
name = "rows"
kind = "redis"
sources = ["shop.*"]
options = {{ url = "{redis}", key = "row-{{table}}-{{id}}" }}
flush = {{ rows = 20, seconds = 0.02 }}
failures = {{ back_off = {{ first_s = 0.1, max_s = 0.5 }} }}

[[sinks]]
name = "hashes"
kind = "redis"
sources = ["shop.*"]
options = {{ url = "{redis}", write = "hash", key = "hash-{{table}}-{{id}}" }}
flush = {{ rows = 50, seconds = 0.1 }}
failures = {{ back_off = {{ first_s = 0.1, max_s = 0.5 }} }}

[[sinks]]
name = "stream"
kind = "redis"
sources = ["shop.*"]
options = {{ url = "{redis}", write = "stream", key = "changes" }}
flush = {{ rows = 20, seconds = 0.02 }}
failures = {{ back_off = {{ first_s = 0.1, max_s = 0.5 }} }}
"""

Rows = dict[tuple[str, int], dict[str, Any]]


def place(name: str) -> tuple[str, int]:
    _, table, key = name.split("-")
    return f"shop.{table}", int(key)


def strings(client: Any) -> Rows:
    names = client.scan_iter("row-*")
    return {place(name): json.loads(client.get(name) or "null") for name in names}


def hashes(client: Any) -> Rows:
    found = {place(name): client.hgetall(name) for name in client.scan_iter("hash-*")}
    return {
        at: {column: text if column == "s" else int(text) for column, text in row.items()}
        for at, row in found.items()
    }


def streamed(client: Any) -> tuple[Rows, list[str]]:
    """Return the rows that the changes of the stream amount to, and the ids of the changes."""
    found: Rows = {}
    ids: list[str] = []
    for _, entry in client.xrange("changes"):
        ids.append(entry["id"])
        change = json.loads(entry["value"])
        at = (change["source"], change["key"]["id"])
        if change["after"] is None:
            found.pop(at, None)
        else:
            found[at] = change["after"]
    return found, ids


def test_after_kills_of_both_the_target_equals_the_source() -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    with (
        PrivateRedis() as server,
        stage("sqlite") as made,
        closing(made.database.connect()) as session,
    ):
        settings = made.folder / "sink.toml"
        settings.write_text(SINKS.format(url=made.url, redis=server.url))
        with writing(made, rng):
            kill_both(made, rng, settings, server, KILLS)
        wanted = rows(session)
        with server.client() as client:
            wait_until(lambda: strings(client) == wanted, PATIENCE_S, "the strings")
            wait_until(lambda: hashes(client) == wanted, PATIENCE_S, "the hashes")
            wait_until(lambda: streamed(client)[0] == wanted, PATIENCE_S, "the stream")
            ids = streamed(client)[1]
            names = client.zcard("databus:rows:keys:shop.t1")
        assert len(ids) == len(set(ids)) > 100
        assert names == sum(source == "shop.t1" for source, _ in wanted)
        print(f"{len(ids)} changes, {len(wanted)} rows")
