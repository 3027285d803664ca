"""`databus sink run` into MongoDB, both killed at random moments: documents equal the source."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from databus.demo.processes import wait_until
from tests.client.sinks.ready.mongodb.mongo_server import PrivateMongo
from tests.client.sinks.serving.test_killed import PATIENCE_S, kill_both, rows, stage, writing

pytestmark = pytest.mark.mongodb

KILLS = 10
NAMES = ("serial", "lanes", "exact")
SINKS = """
data_dir = "state"
relays = ["{url}"]

[[sinks]]
name = "serial"
kind = "mongodb"
sources = ["shop.*"]
options = {{ url = "{mongo}", database = "serial", collection = "{{source}}" }}
flush = {{ rows = 20, seconds = 0.02 }}
failures = {{ back_off = {{ first_s = 0.1, max_s = 0.5 }} }}

[[sinks]]
name = "lanes"
kind = "mongodb"
sources = ["shop.*"]
order = "row"
lanes = 4
options = {{ url = "{mongo}", database = "lanes", collection = "{{source}}" }}
flush = {{ rows = 50, seconds = 0.1 }}
failures = {{ back_off = {{ first_s = 0.1, max_s = 0.5 }} }}

[[sinks]]
name = "exact"
kind = "mongodb"
sources = ["shop.*"]
options = {{ url = "{mongo}", database = "exact", collection = "{{source}}", exactly_once = true }}
flush = {{ rows = 20, seconds = 0.02 }}
failures = {{ back_off = {{ first_s = 0.1, max_s = 0.5 }} }}
"""

Rows = dict[tuple[str, int], dict[str, Any]]


def documents(mongo: PrivateMongo, sink: str) -> Rows:
    found: Rows = {}
    with mongo.client() as client:
        for source in ("shop.t1", "shop.t2"):
            for row in client[sink][source].find():
                del row["databus_scn"]
                found[source, row.pop("_id")] = row
    return found


def inserted(mongo: PrivateMongo, sink: str) -> list[tuple[str, int, int]]:
    """Return collection, key and SCN of each document that was inserted, as the oplog has them."""
    with mongo.client() as client:
        entries = list(client.local["oplog.rs"].find())
    made = [one for entry in entries for one in entry["o"].get("applyOps", [entry])]
    return [
        (one["ns"], one["o"]["_id"], one["o"]["databus_scn"])
        for one in made
        if one["op"] == "i" and one["ns"].startswith(f"{sink}.")
    ]


def test_after_kills_of_both_the_documents_equal_the_source_and_an_exact_sink_repeats_nothing(
    new_mongo: Callable[[], PrivateMongo],
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    with (
        new_mongo() as mongo,
        stage("sqlite") as made,
        closing(made.database.connect()) as session,
    ):
        settings = made.folder / "sink.toml"
        settings.write_text(SINKS.format(url=made.url, mongo=mongo.url))
        with writing(made, rng):
            kill_both(made, rng, settings, mongo, KILLS)
        wanted = rows(session)
        assert len(wanted) > 20
        for name in NAMES:
            wait_until(lambda name=name: documents(mongo, name) == wanted, PATIENCE_S, name)  # type: ignore[misc]
        again = {
            name: len(found) - len(set(found)) for name in NAMES if (found := inserted(mongo, name))
        }
        print(f"{len(wanted)} rows; inserted again: {again}")
        assert again.keys() == set(NAMES)
        assert again["exact"] == 0
